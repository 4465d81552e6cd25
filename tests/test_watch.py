"""Chains that end when their predictions have converged, or their budget is spent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import vihmc
from vihmc.config.method import SamplerConfig
from vihmc.config.settings import parse_seconds
from vihmc.diagnostics.verdict import ESS_LIMIT, RHAT_LIMIT
from vihmc.diagnostics.watch import FIRST_LOOK, PredictionWatch
from vihmc.samplers import sample


def log_density(position):
    return -0.5 * jnp.sum(position**2)


def predict(position, rows):
    return rows @ position


def run(num_draws, *, budget=None, seed=0, on_look=None):
    """Chains on two independent Gaussians, each of which is a prediction."""
    config = SamplerConfig(
        num_chains=4, num_warmup=0, num_draws=num_draws, step_size=0.5, metric="identity", num_integration_steps=3,
        budget=budget,
    )  # fmt: skip
    watch = PredictionWatch(predict, jnp.eye(2), on_look=on_look)
    starts = jax.random.normal(jax.random.key(seed + 1), (4, 2))
    return sample(log_density, starts, config, jax.random.key(seed), initial_var=jnp.ones(2), watch=watch).chains


def test_chains_end_at_the_first_look_that_is_good_enough():
    looks = []
    stopped, longer = run(5000, budget=1e6, on_look=looks.append), run(5000)
    assert [look.is_enough for look in looks] == [False] * (len(looks) - 1) + [True]
    assert looks[-1].rhat <= RHAT_LIMIT
    assert looks[-1].ess >= ESS_LIMIT
    assert stopped.num_draws == looks[-1].num_draws < 5000
    # Which draws there are does not depend on when the chains ended.
    np.testing.assert_array_equal(stopped.positions, longer.positions[:, : stopped.num_draws])


def test_looks_are_at_fixed_numbers_of_draws():
    watch = PredictionWatch(predict, jnp.eye(2))
    looks = [watch.next_look(0)]
    while len(looks) < 6:
        looks.append(watch.next_look(looks[-1]))
    assert looks == [FIRST_LOOK, 120, 144, 173, 208, 250]
    assert all(watch.next_look(look - 1) == look for look in looks)


def test_a_spent_budget_ends_the_chains_and_no_budget_does_not():
    stopped = run(100_000, budget=1e-9)
    assert 0 < stopped.num_draws <= FIRST_LOOK
    assert run(150).num_draws == 150


@pytest.mark.parametrize(
    ("words", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), (12, 12), ("2h", 7200), ("1h1m1s", 3661)]
)
def test_times_in_words(words, seconds):
    assert SamplerConfig(budget=words).budget == seconds == float(parse_seconds(words))


@pytest.mark.parametrize("words", ["soon", "", "-1", "0m", "10 minutes"])
def test_a_budget_that_is_no_time_is_refused_by_name(words):
    with pytest.raises(vihmc.InputError, match="`budget`"):
        SamplerConfig(budget=words)


@pytest.mark.statistics
def test_bands_of_stopped_chains_hold_what_they_say():
    """500 runs that stopped by themselves: a new value is in the 95 % band as often as it should be."""
    held, errors = [], []
    for seed in range(500):
        chains = run(5000, budget=1e6, seed=1000 + seed)
        draws = chains.positions.reshape(-1, 2)
        low, high = np.quantile(draws, [0.025, 0.975], axis=0)
        # The probability of the band under the exact posterior, instead of one new value that is in it or is not.
        held.append(norm.cdf(high) - norm.cdf(low))
        errors.append(draws.mean(axis=0) * np.sqrt(ESS_LIMIT))
    assert abs(np.mean(held) - 0.95) < 0.005
    # Means in units of their largest Monte Carlo error: at most one, and without bias (5 standard errors of 1,000).
    assert np.std(errors) < 1.1
    assert abs(np.mean(errors)) < 5 / np.sqrt(1000)
