import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vihmc.config.method import SamplerConfig
from vihmc.diagnostics.convergence import (
    assess,
    describe_transitions,
    effective_draws,
    find_energies,
    to_datatree,
)
from vihmc.samplers import sample
from vihmc.samplers.bad_chains import find_bad_chains
from vihmc.samplers.chains import Chains
from vihmc.samplers.kernel import Tuning


def make_chains(positions, acceptance=0.8, divergent=0.0):
    shape = positions.shape[:2]
    acceptance = np.broadcast_to(np.reshape(acceptance, (-1, 1)), shape)
    is_divergent = np.arange(shape[1]) < np.reshape(divergent, (-1, 1)) * shape[1]
    zeros, log_density = np.zeros(shape), -0.5 * np.sum(positions**2, axis=-1)
    return Chains(
        positions, log_density, acceptance, np.broadcast_to(is_divergent, shape), zeros, zeros.astype(int), 1.0
    )


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
    np.testing.assert_allclose(result.mcse_relative, result.mcse_mean / values.std())
    alone = effective_draws(values[..., None])
    assert abs(alone.mean() * len(alone) / exact - 1) < 0.2
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


def test_the_slowest_and_the_typical_quantity_are_among_those_that_change():
    values = np.stack([autoregressive(rho) for rho in (0.1, 0.9, 0.5)] + [np.ones((4, 4000))], axis=-1)
    result = assess(values)
    assert (result.worst, result.typical) == (1, 2)
    assert result.varies.tolist() == [True, True, True, False]


def run(logdensity_fn, dim, **settings):
    config = SamplerConfig(num_chains=8, num_warmup=300, metric="identity", max_integration_steps=31, **settings)
    starts = jax.random.normal(jax.random.key(0), (8, dim))
    chains, tuning = sample(logdensity_fn, starts, config, jax.random.key(1), initial_var=jnp.ones(dim))
    return chains, describe_transitions(chains, tuning, config)


def gaussian(x):
    return -0.5 * jnp.sum(x**2)


def cauchy(x):
    return -0.5 * (x.size + 1) * jnp.log1p(jnp.sum(x**2))


def energy_ratio(chains):
    marginal, changes = find_energies(chains)
    return np.mean(changes**2) / np.mean(marginal**2)


@pytest.mark.parametrize(
    "settings", [{"kernel": "nuts"}, {"target_acceptance": 0.6}, {"target_acceptance": 0.9}, {"thin": 3}]
)
def test_ebfmi_of_a_gaussian_is_one_whatever_was_rejected_or_thinned(settings, x64):
    chains, transitions = run(gaussian, 10, **settings)
    ebfmi = transitions.ebfmi
    # The variances of 8000 draws of the energies, which are nearly independent, are known to some 2 %.
    assert abs(ebfmi.mean() - 1) < 0.05
    if "thin" not in settings:
        assert abs(energy_ratio(chains) - 1) < 0.2


@pytest.mark.parametrize("kernel", ["hmc", "nuts"])
def test_ebfmi_of_heavy_tails_is_small(kernel, x64):
    chains, transitions = run(cauchy, 10, kernel=kernel)
    assert np.all(transitions.ebfmi < 0.3)
    assert energy_ratio(chains) < 0.3


def test_trajectories_as_long_as_allowed_are_counted():
    chains = make_chains(np.random.default_rng(0).normal(size=(2, 100, 3)), divergent=[0.1, 0])

    def share(num_gradients, num_steps=1, **settings):
        counted = Chains(**vars(chains) | {"num_gradients": np.broadcast_to(num_gradients, (2, 100))})
        tuning = Tuning(jnp.asarray(0.1), jnp.ones(3), jnp.asarray(num_steps))
        return describe_transitions(counted, tuning, SamplerConfig(**settings)).longest_share.tolist()

    half = np.where(np.arange(100) < 50, 1023, 511)
    assert share(half, kernel="nuts") == [0.5, 0.5]
    # No tree fits between 1023 and 2047 steps.
    assert share(half, kernel="nuts", max_integration_steps=1500) == [0.5, 0.5]
    assert share(10 * half, kernel="nuts", thin=10) == [0.5, 0.5]
    assert share(1023, 1023) == [1, 1]
    assert share(1022, 1022) == [0, 0]
    # A jitter of one half goes from half of 682 steps to 1023.
    assert share(700, 682, jitter=0.5) == [1, 1]
    assert share(2000, 2000, num_integration_steps=2000) == [0, 0]
    transitions = describe_transitions(chains, Tuning(jnp.asarray(0.1), jnp.ones(3), jnp.asarray(1)), SamplerConfig())
    np.testing.assert_allclose(transitions.divergent_share, [0.1, 0])
    np.testing.assert_allclose(transitions.acceptance, 0.8)
