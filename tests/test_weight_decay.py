"""The weight decay of a mode, one or chosen among several by what the fit leaves out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linear import linear_apply
from remembering import Remembering
from vihmc import VIConfig
from vihmc.config.method import MethodConfig
from vihmc.fit.evidence import hold_out
from vihmc.fit.map import maximum_a_posteriori
from vihmc.posterior.density import Posterior

RATES = (20.0, 2.0, 0.0)
SETTINGS = {"map_steps": 400, "learning_rate": 0.02, "record_every": 100}
KEY = jax.random.key(1)


def problem(noise_std, *, num_rows=80):
    """As many weights as a fit can use up: with much noise a fit to it predicts worse than zero."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(num_rows, 60))
    targets = features @ rng.normal(size=(60, 1)) / 60**0.5 + noise_std * rng.normal(size=(num_rows, 1))
    return Posterior.of(linear_apply, {"weight": np.zeros((60, 1))}, features, targets, prior_std=100.0, noise_std=1.0)


def mode_of(posterior, rate, **others):
    config = VIConfig(weight_decay=rate, **SETTINGS)
    return maximum_a_posteriori(posterior, jnp.zeros(60), config, KEY, **others)


@pytest.mark.parametrize(("noise_std", "expected"), [(0.01, 2), (5.0, 0)])
def test_the_best_of_several_is_kept(x64, monkeypatch, noise_std, expected):
    monkeypatch.setattr("vihmc.fit.evidence.LEFT_OUT", 0.3)  # so many that chance does not choose
    posterior = problem(noise_std, num_rows=120)
    division = hold_out(posterior, has_choice=True)
    alone = [mode_of(division.fitted, rate) for rate in RATES]
    assert int(np.argmax([division.held_out.log_likelihood(mode.theta) for mode in alone])) == expected
    told = []
    found = mode_of(posterior, RATES, on_record=lambda done, _: told.append(done))
    np.testing.assert_array_equal(found.theta, alone[expected].theta)
    np.testing.assert_array_equal(found.records, alone[expected].records)
    assert told == list(range(100, 1300, 100))
    assert (
        MethodConfig(first_stage="laplace", vi={"weight_decay": RATES, **SETTINGS}).num_fit_steps(num_scales=0) == 1200
    )


def test_a_choice_goes_on_from_any_checkpoint(x64):
    posterior, memory = problem(5.0), Remembering()
    whole = mode_of(posterior, RATES, checkpoints=memory)
    for state in (memory.kept[2], memory.kept[3], memory.kept[8]):
        rest = Remembering([state])
        resumed = mode_of(posterior, RATES, checkpoints=rest)
        assert 0 < len(rest.kept) < len(memory.kept)
        np.testing.assert_array_equal(resumed.theta, whole.theta)
        np.testing.assert_array_equal(resumed.records, whole.records)


def test_with_too_few_rows_to_leave_any_out_the_first_is_taken(x64):
    posterior = problem(0.01, num_rows=30)
    np.testing.assert_array_equal(mode_of(posterior, RATES).theta, mode_of(posterior, RATES[0]).theta)


def test_weights_shrink_where_nothing_pulls(x64):
    nothing = (np.zeros((80, 60)), np.zeros((80, 1)))
    posterior = Posterior.of(linear_apply, {"weight": np.zeros((60, 1))}, *nothing, prior_std=1e9, noise_std=1.0)
    config = VIConfig(weight_decay=3.0, map_steps=50, learning_rate=0.01, record_every=50)
    theta = maximum_a_posteriori(posterior, jnp.ones(60), config, KEY).theta
    rates = 0.01 * 0.5 * (1 + np.cos(np.pi * np.arange(50) / 50))
    np.testing.assert_allclose(theta, np.prod(1 - 3 * rates), atol=1e-6)
