"""Error bars for your own model and arrays: any pure function of a parameter tree works."""

import jax
import jax.numpy as jnp
import numpy as np

import vihmc

rng = np.random.default_rng(0)
x = rng.uniform(-2, 2, size=(60, 1))
y = np.sin(2 * x) + 0.1 * rng.normal(size=x.shape)


def apply(params, inputs):  # your network; any pytree of parameters
    hidden = jnp.tanh(inputs @ params["w1"] + params["b1"])
    return hidden @ params["w2"]


keys = jax.random.split(jax.random.key(0), 2)
params = {"w1": jax.random.normal(keys[0], (1, 16)), "b1": jnp.zeros(16), "w2": jax.random.normal(keys[1], (16, 1))}

posterior = vihmc.Posterior.of(apply, params, x, y)  # noise and prior scale are learnt
result = vihmc.infer(posterior, initial_params=params)
prediction = result.predict(np.linspace(-3, 3, 7)[:, None])

noise = result.draws["noise_std"]
print(f"noise std {noise.mean():.2f} ± {noise.std():.2f}")
for position, mean, std in zip(np.linspace(-3, 3, 7), prediction.mean[:, 0], prediction.total_std[:, 0], strict=True):
    print(f"x = {position:+.0f}: y = {mean:+.2f} ± {std:.2f}")
