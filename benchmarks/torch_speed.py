"""Time of a gradient: a PyTorch network through torchax, the same network in JAX, and called from JAX; in one run.

python benchmarks/torch_speed.py
"""

import json
import time
import warnings
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch

import vihmc
from vihmc.frameworks import torch as adapter

RESULTS = Path(__file__).parent / "results"
NUM_ROUNDS, NUM_CALLS = 20, 50


def seconds(functions):
    """Least time of a call of each, measured in turns."""
    best = dict.fromkeys(functions, np.inf)
    for gradient in functions.values():
        gradient().block_until_ready()
    for _ in range(NUM_ROUNDS):
        for name, gradient in functions.items():
            begin = time.perf_counter()
            for _ in range(NUM_CALLS):
                gradient().block_until_ready()
            best[name] = min(best[name], (time.perf_counter() - begin) / NUM_CALLS)
    return best


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 8)).astype(np.float32)
    y = np.sin(x[:, :1])
    layers = (torch.nn.Linear(8, 50), torch.nn.Tanh(), torch.nn.Linear(50, 50), torch.nn.Tanh(), torch.nn.Linear(50, 1))
    module = torch.nn.Sequential(*layers)
    scales = {"noise_std": 0.1, "prior_std": 1.0}
    through = vihmc.Posterior.of(module, x, y, **scales)
    plain = vihmc.Posterior.of(vihmc.MLP((8, 50, 50, 1)), x, y, **scales)
    params = {"layers": [{"weight": jnp.asarray(one.weight.detach().numpy().T), "bias": jnp.asarray(one.bias.detach())}
                         for one in layers[::2]]}  # fmt: skip
    adapter._why_not_torchax = lambda *_: "it was asked for"
    with warnings.catch_warnings(action="ignore"):
        called = vihmc.Posterior.of(module, x, y, **scales)
    at = {"torchax": through.initial, "jax": plain.layout.ravel(params), "callback": through.initial}
    gradients = {"torchax": through, "jax": plain, "callback": called}
    compiled = {name: partial(jax.jit(jax.grad(one.log_density)), at[name]) for name, one in gradients.items()}
    densities = [float(one.log_density(at[name])) for name, one in gradients.items()]
    np.testing.assert_allclose(densities, densities[0], rtol=1e-5)
    found = seconds(compiled)
    result = {f"{name}_us": round(1e6 * value, 1) for name, value in found.items()} | {
        "torchax_to_jax": round(found["torchax"] / found["jax"], 3),
        "callback_to_jax": round(found["callback"] / found["jax"], 1),
    }
    print(json.dumps(result, indent=1))
    (RESULTS / "torch_speed.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
