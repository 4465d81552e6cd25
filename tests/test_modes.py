import numpy as np
import pytest

from test_diagnostics import autoregressive
from vihmc.diagnostics.modes import find_modes

CURVES = np.random.default_rng(0).normal(size=(3, 50))


def functions(rho, *, chains, draws, seed):
    """Chains of random functions of three coefficients, at 50 inputs."""
    values = [autoregressive(rho, chains=chains, draws=draws, seed=100 * seed + i) for i in range(3)]
    return np.stack(values, axis=-1) @ CURVES


def test_two_modes_are_found_and_their_chains_named():
    values = functions(0.8, chains=6, draws=400, seed=0)
    shift = np.zeros(50)
    shift[20:30] = 6 * values[..., 20:30].std()
    values[[1, 4]] += shift
    groups, distance, where = find_modes(values)
    assert groups == ((0, 2, 3, 5), (1, 4))
    assert 20 <= where < 30
    within = values[0][:, where].std()
    assert abs(distance / (shift[where] / within) - 1) < 0.3
    assert find_modes(values).renumbered((0, 1, 3, 5, 6, 9)).groups == ((0, 3, 5, 9), (1, 6))


def test_a_stray_chain_and_chains_that_all_disagree_are_named():
    values = autoregressive(0.9, chains=8, draws=1000)[..., None]
    assert find_modes(values + 4 * (np.arange(8) == 5)[:, None, None]).groups == ((0, 1, 2, 3, 4, 6, 7), (5,))
    apart = find_modes(values + 20 * np.arange(8)[:, None, None])
    assert apart.groups == tuple((chain,) for chain in range(8))


@pytest.mark.slow
def test_slow_chains_of_one_mode_are_not_split():
    splits = sum(len(find_modes(functions(0.95, chains=4, draws=200, seed=seed)).groups) > 1 for seed in range(100))
    assert splits <= 5


def test_what_cannot_be_told_apart_is_one_group():
    assert find_modes(np.random.default_rng(0).normal(size=(1, 100, 3))).groups == ((0,),)
    assert find_modes(np.arange(6.0).reshape(2, 3, 1)).groups == ((0, 1),)
    assert find_modes(np.full((3, 100, 2), 1.0)).groups == ((0, 1, 2),)
