"""The same seed, version and number of devices give the same bits; other numbers of devices the same distribution."""

import os
import subprocess
import sys

import numpy as np
import pytest

from conftest import Z_LIMIT
from vihmc.diagnostics.convergence import assess

pytestmark = pytest.mark.statistics

SCRIPT = """
import sys
import jax
import numpy as np

jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))

from vihmc import infer
from vihmc.runs.config import build_config, load_preset
from vihmc.data import build_problem

for precision in ("float32", "float64"):
    with jax.enable_x64(precision == "float64"):
        settings = {"vi": {"map_steps": 500, "num_steps": 500}, "hmc": {"num_chains": 64, "num_warmup": 150}}
        settings["hmc"] |= {"num_draws": 60, "thin": 1, "max_integration_steps": 63}
        config = build_config(load_preset("sine_large", "quick"), settings)
        problem = build_problem(config.problem)
        found = infer(problem.posterior, config)
        values = np.asarray(found.predict(problem.validation_inputs[:4], quantiles=(0.1, 0.9)).mean)
        assert jax.local_device_count() == int(sys.argv[1])
        np.savez(f"{sys.argv[2]}-{precision}.npz", draws=found.sampled.chains.positions, mean=values)
"""


def run(folder, *, num_devices, name):
    command = [sys.executable, "-c", SCRIPT, str(num_devices), str(folder / name)]
    subprocess.run(command, check=True, env=os.environ | {"XLA_FLAGS": ""})
    found = {}
    for precision in ("float32", "float64"):
        with np.load(folder / f"{name}-{precision}.npz") as stored:
            found[precision] = stored["draws"]
    return found


def test_devices_and_bits(tmp_path):
    one, one_again = (run(tmp_path, num_devices=1, name=name) for name in ("a", "b"))
    two, two_again = (run(tmp_path, num_devices=2, name=name) for name in ("c", "d"))
    for precision in ("float32", "float64"):
        assert one[precision].dtype == np.dtype(precision)
        np.testing.assert_array_equal(one[precision], one_again[precision])
        np.testing.assert_array_equal(two[precision], two_again[precision])
        # The log of the sum of squares: a number that no swap of neurons changes.
        sizes = [
            np.log(np.sum(draws.astype(float) ** 2, axis=-1, keepdims=True))
            for draws in (one[precision], two[precision])
        ]
        errors = [assess(size).mcse_mean for size in sizes]
        assert abs(sizes[0].mean() - sizes[1].mean()) < Z_LIMIT * np.hypot(*errors)
