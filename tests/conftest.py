"""Shared fixtures.

Statistical tests compare with closed forms by z-scores at fixed seeds; |z| < 5 has a false-alarm rate of 6e-7 per
number for a correct program, so a suite of some thousand numbers fails by chance less than once in a thousand seeds.
"""

import sys
from dataclasses import dataclass

import jax
import numpy as np
import pytest

from linear import linear_apply
from vihmc.cli.app import main
from vihmc.devices import drop_programs_if_many
from vihmc.posterior.density import Posterior

# One device, on every machine: draws depend on their number. Tests of several start processes of their own.
jax.config.update("jax_num_cpu_devices", 1)
jax.devices()

Z_LIMIT = 5.0


def pytest_collection_modifyitems(items):
    # Tests are short: what they draw is seldom to be trusted, and their data are few.
    for name in ("UntrustedWarning", "DataWarning"):
        for item in items:
            item.add_marker(pytest.mark.filterwarnings(f"ignore::vihmc.errors.{name}"))


@pytest.fixture(autouse=True)
def few_compiled_programs():
    drop_programs_if_many()


@pytest.fixture(params=["float32", "float64"])
def precision(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@dataclass
class LinearGaussian:
    """A network without hidden layers: posterior, VI optimum, scores and predictive are known in closed form."""

    features: np.ndarray
    targets: np.ndarray
    prior_std: float
    noise_std: float

    @property
    def posterior(self):
        params = {"weight": np.zeros((self.features.shape[1], 1))}
        return Posterior.of(
            linear_apply,
            params,
            self.features,
            self.targets,
            prior_std=self.prior_std,
            noise_std=self.noise_std,
        )

    @property
    def precision_matrix(self):
        return self.features.T @ self.features / self.noise_std**2 + np.eye(self.features.shape[1]) / self.prior_std**2

    @property
    def covariance(self):
        return np.linalg.inv(self.precision_matrix)

    @property
    def mean(self):
        return self.covariance @ self.features.T @ self.targets[:, 0] / self.noise_std**2

    def conditional(self, kept, center):
        """Mean and covariance of the kept parameters given that the others are at `center`."""
        kept = np.asarray(kept)
        frozen = np.setdiff1d(np.arange(len(center)), kept)
        covariance = np.linalg.inv(self.precision_matrix[np.ix_(kept, kept)])
        pull = self.precision_matrix[np.ix_(kept, frozen)] @ (center[frozen] - self.mean[frozen])
        return self.mean[kept] - covariance @ pull, covariance


@pytest.fixture
def linear_gaussian():
    rng = np.random.default_rng(7)
    features = rng.normal(size=(30, 5)) @ np.array(
        [[1, 0.6, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0.5, 0, 0], [0, 0, 0, 2, 0.5], [0, 0, 0, 0, 1]]
    )
    targets = features @ rng.normal(size=(5, 1)) + 0.3 * rng.normal(size=(30, 1))
    return LinearGaussian(features, targets, prior_std=1.5, noise_std=0.3)


def vihmc(monkeypatch, capsys, *arguments):
    """Run the command in this process; return exit code, output and errors."""
    monkeypatch.setattr(sys, "argv", ["vihmc", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "200")
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    before = jax.config.read("jax_enable_x64")
    yield lambda *arguments: vihmc(monkeypatch, capsys, *arguments)
    jax.config.update("jax_enable_x64", before)  # the command sets it for its own process
