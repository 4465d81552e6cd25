import arviz_stats
import numpy as np

from vihmc.diagnostics import assess, find_bad_chains, to_datatree
from vihmc.samplers.chains import Chains


def make_chains(positions, acceptance=0.8, divergent=0.0):
    shape = positions.shape[:2]
    acceptance = np.broadcast_to(np.reshape(acceptance, (-1, 1)), shape)
    is_divergent = np.arange(shape[1]) < np.reshape(divergent, (-1, 1)) * shape[1]
    zeros = np.zeros(shape)
    return Chains(positions, zeros, acceptance, np.broadcast_to(is_divergent, shape), zeros, zeros.astype(int), 1.0)


def autoregressive(rho, chains=4, draws=4000, seed=0):
    rng = np.random.default_rng(seed)
    values = np.empty((chains, draws))
    values[:, 0] = rng.normal(size=chains)
    for i in range(1, draws):
        values[:, i] = rho * values[:, i - 1] + np.sqrt(1 - rho**2) * rng.normal(size=chains)
    return values


def test_ess_and_mcse_of_a_known_process():
    values = autoregressive(0.8)
    result = assess(values[..., None])
    exact = values.size * (1 - 0.8) / (1 + 0.8)
    assert abs(result.ess_bulk[0] / exact - 1) < 0.2
    assert abs(result.mcse_mean[0] * np.sqrt(exact) - 1) < 0.2
    assert result.rhat[0] < 1.01


def test_rhat_sees_chains_that_disagree_and_a_single_chain_that_drifts():
    values = autoregressive(0.1)
    shifted = values + np.array([0, 0, 0, 2.0])[:, None]
    assert assess(shifted[..., None]).rhat[0] > 1.1
    drift = values[:1] + np.linspace(0, 5, values.shape[1])
    assert assess(drift[..., None]).rhat[0] > 1.1
    assert assess(values[:1][..., None]).rhat[0] < 1.02


def test_a_quantity_that_never_changes_is_not_converged():
    values = np.stack([autoregressive(0.1), np.full((4, 4000), 3.0)], axis=-1)
    result = assess(values)
    assert np.isinf(result.rhat[1])
    assert result.ess_bulk[1] == 0
    assert np.isfinite(result.rhat[0])


def test_bad_chains_are_named_with_the_reason():
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(4, 200, 3))
    positions[1] = positions[1, :1]
    chains = make_chains(positions, acceptance=[0.8, 0.001, 0.8, 0.8], divergent=[0, 0, 0.5, 0.01])
    reasons = find_bad_chains(chains)
    assert set(reasons) == {1, 2}
    assert "stands still" in reasons[1]
    assert "diverges: 50%" in reasons[2]
    kept = chains.keep([0, 3])
    assert kept.num_chains == 2
    np.testing.assert_array_equal(kept.positions, positions[[0, 3]])
    assert kept.seconds == 1.0


def test_arviz_reads_the_tree():
    chains = make_chains(np.random.default_rng(0).normal(size=(4, 500, 2)))
    tree = to_datatree(chains, ["a", "b"])
    assert tree["posterior"].attrs["param_names"] == ["a", "b"]
    rhat = arviz_stats.rhat(tree)
    np.testing.assert_allclose(rhat["theta"], assess(chains.positions).rhat)
