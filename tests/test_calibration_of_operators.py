"""Simulated data of an operator must reach its likelihood."""

import jax
import numpy as np
import pytest

from vihmc.diagnostics.calibration import simulate
from vihmc.models.deeponet import DeepONet
from vihmc.models.mlp import MLP
from vihmc.posterior.operator import OperatorPosterior


def posterior(weights=None):
    rng = np.random.default_rng(0)
    model = DeepONet(branch=MLP((2, 3)), trunk=MLP((1, 3)), output_offset=0.4, output_scale=2.0)
    data = (rng.normal(size=(5, 2)), rng.normal(size=(4, 1)), rng.normal(size=(5, 4)))
    return OperatorPosterior.on_pairs(model, *data, prior_std=1.0, noise_std=0.3, weights=weights, dtype="float64")


@pytest.mark.parametrize("weights", [None, np.arange(20).reshape(5, 4) % 3], ids=["once each", "weighted"])
def test_simulated_fields_are_those_that_the_likelihood_reads(x64, weights):
    given = posterior(weights)
    simulated = simulate(given, jax.random.key(1))
    new, theta = simulated.posterior, simulated.theta
    count = np.ones((5, 4)) if weights is None else weights

    def misfit(fields):
        return -0.5 * np.sum(count * np.square(fields - given.predict(theta, given.inputs))) / 0.3**2

    difference = new.log_likelihood(theta) - given.log_likelihood(theta)
    np.testing.assert_allclose(difference, misfit(new.targets) - misfit(given.targets), rtol=1e-9)
    # The noise of the simulation has the likelihood's own size: a misfit of about half a unit per observed value.
    assert abs(misfit(new.targets) / (-0.5 * count.sum()) - 1) < 5 * np.sqrt(2 / np.sum(count > 0)) * count.max()
    assert abs(difference) > 10  # with the old fields it would be zero
