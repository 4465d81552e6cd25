"""Noise that depends on the input: the network predicts the logarithm of the noise std beside the mean."""

import jax
import numpy as np

import vihmc

rng = np.random.default_rng(0)


def observe(x):  # the noise grows from 0.05 on the left to 0.5 on the right
    return np.sin(2 * x) + np.exp(np.interp(x, [-2, 2], np.log([0.05, 0.5]))) * rng.normal(size=x.shape)


x = rng.uniform(-2, 2, size=(300, 1))
new = np.linspace(-2, 2, 400)[:, None]
y, y_new = observe(x), observe(new)

model = vihmc.MLP((1, 12, 2))  # two outputs: mean and log std
params = model.init(jax.random.key(0))
posterior = vihmc.Posterior.of(model, params, x, y, likelihood=vihmc.GaussianWithScale())
config = vihmc.MethodConfig(
    selection=vihmc.SelectionConfig(threshold=1.0),
    hmc=vihmc.SamplerConfig(num_chains=4, num_warmup=300, num_draws=300, jitter=1.0, max_integration_steps=127),
)
prediction = vihmc.infer(posterior, config, initial_params=params).predict(new, truth=y_new)

for position in (-2, 0, 2):
    row = np.abs(new[:, 0] - position).argmin()
    noise = np.sqrt(prediction.total_std[row, 0] ** 2 - prediction.epistemic_std[row, 0] ** 2)
    print(f"x = {position:+d}: noise std {noise:.2f}")
scores = vihmc.scores(prediction, y_new)
print(f"95 % band holds {100 * scores.coverage['95']:.0f} % of {len(new)} new observations")
print(f"log predictive density {scores.log_predictive_density:.2f} nats")
