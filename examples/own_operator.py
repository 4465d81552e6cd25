"""Error bars for your own neural operator: learn the antiderivative of smooth functions.

Run it with ``python examples/own_operator.py``; it takes about a minute.
"""

import jax
import jax.numpy as jnp
import numpy as np

import vihmc

jax.config.update("jax_enable_x64", True)  # energies of many pairs are summed in float64; the networks use float32

rng = np.random.default_rng(0)
sensors = np.linspace(0, 1, 20)
locations = np.linspace(0, 1, 30)[:, None]
waves = np.arange(1, 4)
amplitudes = rng.normal(size=(60, 3)) / waves
functions = amplitudes @ np.cos(np.pi * np.outer(waves, sensors))
fields = amplitudes / (np.pi * waves) @ np.sin(np.pi * np.outer(waves, locations[:, 0]))

model = vihmc.DeepONet.of_size(
    num_sensors=20, num_coordinates=1, branch_hidden=(16,), trunk_hidden=(16, 16), latent_size=8
)
posterior = vihmc.OperatorPosterior.on_pairs(
    model, functions[:50], locations, fields[:50], prior_std=0.5, noise_std=0.02
)
config = vihmc.MethodConfig(
    vi=vihmc.VIConfig(optimizer="muon", map_steps=1500, num_steps=1500, num_samples=2, initial_std="curvature"),
    hmc=vihmc.SamplerConfig(num_chains=4, num_warmup=150, num_draws=150, max_integration_steps=100),
)
result = vihmc.infer(posterior, config, initial_params=model.init(jax.random.key(0)))
prediction = result.predict(functions[50:])

error = np.linalg.norm(prediction.mean - fields[50:]) / np.linalg.norm(fields[50:])
inside = np.mean(jnp.abs(prediction.mean - fields[50:]) < 2 * prediction.total_std)
print(f"selected {result.subspace.num_selected} of {posterior.num_params} parameters")
print(f"relative error on ten new functions {error:.1%}; within two standard deviations in {inside:.0%} of places")
