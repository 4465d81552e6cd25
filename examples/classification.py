"""Three classes: probabilities with error bars, and how well they are calibrated."""

import jax
import numpy as np

import vihmc
from vihmc.diagnostics.scores import classify

rng = np.random.default_rng(0)


def spirals(count):  # three arms that overlap a little
    label = rng.integers(0, 3, count)
    radius = rng.uniform(0.2, 1.0, count)
    angle = 2 * np.pi * label / 3 + 2.5 * radius + 0.7 * rng.normal(size=count)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1), label


x, labels = spirals(300)
x_new, labels_new = spirals(1000)

model = vihmc.MLP((2, 16, 3))  # an output for each class
params = model.init(jax.random.key(0))
posterior = vihmc.Posterior.of(model, params, x, labels, likelihood=vihmc.Categorical())
config = vihmc.MethodConfig(
    selection=vihmc.SelectionConfig(threshold=1.0),
    hmc=vihmc.SamplerConfig(num_chains=4, num_warmup=300, num_draws=300, jitter=1.0, max_integration_steps=127),
)
prediction = vihmc.infer(posterior, config, initial_params=params).predict(x_new)

found = classify(prediction.mean, labels_new)
print(f"accuracy {100 * found.accuracy:.1f} %, log score {found.log_score:.3f} nats")
print(f"Brier score {found.brier:.3f}, calibration error {100 * found.calibration_error:.1f} %")
sure = prediction.mean.max(axis=1) > 0.9
print(f"where one class has more than 90 %: {100 * np.mean(prediction.mean.argmax(1) == labels_new, where=sure):.0f} %")
