"""Chains on two devices, in a process that has two: the compiler cannot divide convolutions between them by itself."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)

from vihmc.config.method import SamplerConfig
from vihmc.devices import distribute_chains
from vihmc.samplers.chains import init_chains
from vihmc.samplers.kernel import Tuning
from vihmc.samplers.loop import step_chains
from vihmc.samplers.sample import build_kernel

FIELDS = jax.random.normal(jax.random.key(0), (6, 1, 16))

def log_density(weights):
    hidden, out = weights[:8].reshape(8, 1, 1), weights[8:].reshape(1, 8, 1)
    convolve = lambda values, kernel: jax.lax.conv_general_dilated(values, kernel, (1,), [(0, 0)])
    return -jnp.mean((convolve(jnp.tanh(convolve(FIELDS, hidden)), out) - 1) ** 2) - jnp.sum(weights**2)

config = SamplerConfig(kernel=sys.argv[1], num_chains=4, chains_at_once=sys.argv[2])
starts = jax.random.normal(jax.random.key(1), (4, 16))
tuning = Tuning(jnp.asarray(0.1), jnp.ones(16), jnp.asarray(5))
found = []
for chains in (starts, distribute_chains(starts)):
    kernel = build_kernel(config, chains)
    step = jax.jit(lambda state: step_chains(kernel, log_density, state, tuning, jax.random.key(2), jnp.asarray(0)))
    state, _ = step(init_chains(log_density, kernel, chains))
    found.append(state.position)
one, two = found
assert len(one.sharding.device_set) == 1 and len(two.sharding.device_set) == 2
assert np.all(np.any(np.asarray(one) != np.asarray(starts), axis=1)), "every chain moves"
np.testing.assert_allclose(one, two, atol=1e-4)
"""


@pytest.mark.parametrize(("kernel", "at_once"), [("hmc", "all"), ("hmc", "one"), ("nuts", "all")])
def test_two_devices_step_convolutional_networks_as_one_does(kernel, at_once):
    command = [sys.executable, "-c", SCRIPT, kernel, at_once]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env=os.environ | {"XLA_FLAGS": ""}
    )
    assert done.returncode == 0, done.stderr[-2000:]
