"""What every kernel has to get right, and what its integrator has to be.

Every kernel runs on a Gaussian with a condition number of 1e4, on a banana and on a mild funnel, each of
ten dimensions; means, second moments and products have to agree with the exact ones within five Monte Carlo standard
errors. A right program breaks that with a probability of 6e-7 per number, 1e-4 for the about 180 numbers here, if seeds
were drawn anew; they are fixed. Controls at the end are wrong on purpose and have to fail the same test.

The targets are one function of a few numbers, so that each kernel compiles once for all of them.
"""

from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats
from blackjax.mcmc.integrators import IntegratorState
from blackjax.mcmc.metrics import default_metric
from jax.tree_util import Partial

from vihmc import SamplerConfig
from vihmc.posterior.shards import ShardedDensity
from vihmc.samplers import run_chains, sample
from vihmc.samplers.chains import init_chains
from vihmc.samplers.hmc import hmc
from vihmc.samplers.integrators import integrator_for

Z_LIMIT = 5.0
KERNELS = get_args(SamplerConfig.model_fields["kernel"].annotation)

DIMENSION = 10
NUM_CHAINS = 32
_rng = np.random.default_rng(3)
ROTATION = np.linalg.qr(_rng.normal(size=(DIMENSION, DIMENSION)))[0]
GAUSSIAN_STD = np.logspace(-2, 0, DIMENSION)
BANANA_BEND, BANANA_STD = 0.5, 0.5


class Numbers(NamedTuple):
    kind: np.ndarray
    whitening: np.ndarray
    funnel_std: np.ndarray
    jacobian: np.ndarray


def gaussian(numbers, x):
    return -0.5 * jnp.sum((numbers.whitening @ x) ** 2)


def banana(numbers, x):
    return -0.5 * (x[0] ** 2 + ((x[1] - BANANA_BEND * x[0] ** 2) / BANANA_STD) ** 2 + jnp.sum(x[2:] ** 2))


def funnel(numbers, x):
    log_var, rest = x[0], x[1:]
    return -0.5 * ((log_var / numbers.funnel_std) ** 2 + jnp.sum(rest**2) * jnp.exp(-log_var) + rest.size * log_var)


def log_scales(numbers, x):
    """Scales of the density s² exp(-s), by their logarithms, whose density has one more factor s: the Jacobian."""
    return jnp.sum((2 + numbers.jacobian) * x - jnp.exp(x))


TARGETS = (gaussian, banana, funnel)
ALL_TARGETS = (*TARGETS, log_scales)


def _log_density(numbers, x):
    return jax.lax.switch(numbers.kind, ALL_TARGETS, numbers, x)


def log_density(target, *, funnel_std=1.0, jacobian=1.0):
    kind = np.asarray(ALL_TARGETS.index(target))
    numbers = Numbers(kind, (ROTATION / GAUSSIAN_STD).T, np.asarray(funnel_std), np.asarray(jacobian))
    return Partial(_log_density, jax.tree.map(jnp.asarray, numbers))


def mean_field_var(target):
    """Variances of the best independent Gaussian, which is what a run has before its first draw."""
    if target is gaussian:
        return 1 / ((ROTATION / GAUSSIAN_STD) ** 2).sum(axis=1)
    return np.where(np.arange(DIMENSION) == 1, BANANA_STD**2, 1.0) if target is banana else np.ones(DIMENSION)


def quantities(target, x):
    """Quantities whose expectations are known, and these."""
    if target is gaussian:
        x = x @ ROTATION / GAUSSIAN_STD
        mean, var = np.zeros(DIMENSION), np.ones(DIMENSION)
    elif target is banana:
        mean, var = np.zeros(DIMENSION), np.ones(DIMENSION)
        mean[1], var[1] = BANANA_BEND, 2 * BANANA_BEND**2 + BANANA_STD**2
    else:
        # Given the first coordinate the others are normal; as they are, they have tails without a fourth moment.
        x = np.concatenate([x[..., :1], x[..., 1:] * np.exp(-x[..., :1] / 2)], axis=-1)
        mean, var = np.zeros(DIMENSION), np.ones(DIMENSION)
    centred = x - mean
    products = centred[..., :-1] * centred[..., 1:]
    values = [x, centred**2, products, x[..., :1] ** 2 * x[..., 1:2]]
    skew = 3 * BANANA_BEND if target is banana else 0.0
    return np.concatenate(values, axis=-1), np.concatenate([mean, var, np.zeros(DIMENSION - 1), [skew]])


def z_scores(values, exact):
    """Deviations from the exact expectations, in units of their MCSE."""
    return np.abs(values.mean(axis=(0, 1)) - exact) / array_stats.mcse(values, method="mean", chain_axis=0, draw_axis=1)


def draw(target, *, funnel_std=1.0, jacobian=1.0, **settings):
    common = {"num_chains": NUM_CHAINS, "num_draws": 400, "num_warmup": 400, "target_acceptance": 0.95}
    config = SamplerConfig(**common | settings)
    var = jnp.asarray(mean_field_var(target))
    starts = jnp.sqrt(var) * jax.random.normal(jax.random.key(99), (NUM_CHAINS, DIMENSION))
    density = log_density(target, funnel_std=funnel_std, jacobian=jacobian)
    return sample(density, starts, config, jax.random.key(0), initial_var=var)


def lowest_bfmi(chains):
    return np.min((np.diff(chains.energy, axis=1) ** 2).mean(axis=1) / chains.energy.var(axis=1))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
@pytest.mark.parametrize("kernel", KERNELS)
def test_draws_have_the_exact_moments(x64, kernel, target):
    result = draw(target, kernel=kernel)
    z = z_scores(*quantities(target, result.chains.positions))
    assert np.max(z) < Z_LIMIT
    assert result.chains.is_divergent.mean() < 0.01
    assert np.all((result.chains.acceptance_rate >= 0) & (result.chains.acceptance_rate <= 1 + 1e-9))
    assert np.all(np.isfinite(result.chains.energy))


@pytest.mark.parametrize("settings", [{"metric": "q"}, {"metric": "identity", "jitter": 1.0}], ids=str)
def test_other_metrics_and_lengths_have_the_exact_moments(x64, settings):
    result = draw(gaussian, kernel="hmc", **settings)
    assert np.max(z_scores(*quantities(gaussian, result.chains.positions))) < Z_LIMIT
    assert not result.chains.is_divergent.any()


@pytest.mark.parametrize("kernel", ["hmc", "nuts"])
def test_a_funnel_that_is_too_narrow_is_noticed(x64, kernel):
    # Neal's own: the scale of nine coordinates varies by factors of a hundred, and no step size suits all of it.
    settings = {"target_acceptance": 0.8, "num_warmup": 200, "num_draws": 200}
    chains = draw(funnel, funnel_std=3.0, kernel=kernel, **settings).chains
    assert chains.is_divergent.any()
    assert lowest_bfmi(chains) < 0.3


# Integrators


def shard_of_banana(position, index, num_shards):
    # Each shard has a force of its own; together they are the banana.
    wave = jnp.sin(position[0] * (1.0 + index)) - jnp.sin(position[0] * (1.0 + (index + 1) % num_shards))
    return banana(None, position) / num_shards + wave


def euclidean(name, inverse_mass_matrix, num_steps):
    """A map from position and momentum to the end of a trajectory."""
    metric = default_metric(inverse_mass_matrix)
    whole = Partial(banana, None)
    density = ShardedDensity(Partial(shard_of_banana), 3) if name == "split" else whole

    def trajectory(position, momentum):
        state = IntegratorState(position, momentum, *jax.value_and_grad(whole)(position))
        state = integrator_for(density)(density, metric.kinetic_energy, num_steps)(state, 0.2)
        return state.position, state.momentum

    return trajectory


def start(dimension):
    return jnp.linspace(-1.0, 1.5, dimension), jnp.cos(jnp.arange(dimension, dtype=float))


@pytest.mark.parametrize("name", ["leapfrog", "split"])
def test_trajectories_are_reversible_and_preserve_volume(x64, name):
    position, momentum = start(4)
    trajectory = jax.jit(euclidean(name, jnp.linspace(0.5, 4.0, 4), 5))
    there = trajectory(position, momentum)
    back = trajectory(there[0], -there[1])
    assert np.max(np.abs(there[0] - position)) > 0.5
    np.testing.assert_allclose(back[0], position, atol=1e-9)
    np.testing.assert_allclose(-back[1], momentum, atol=1e-9)
    blocks = jax.jacfwd(trajectory, argnums=(0, 1))(position, momentum)
    determinant = np.linalg.det(np.block([[np.asarray(block) for block in row] for row in blocks]))
    assert abs(determinant - 1) < 1e-8


# Controls


def drop_repeated(draws):
    moved = [chain[1:][np.any(np.diff(chain, axis=0) != 0, axis=1)] for chain in draws]
    shortest = min(map(len, moved))
    assert shortest < 0.9 * draws.shape[1]
    return np.stack([chain[:shortest] for chain in moved])


def test_dropping_rejected_draws_fails(x64):
    settings = {"kernel": "hmc", "step_size": 0.7, "num_integration_steps": 2}
    draws = draw(banana, num_draws=1500, **settings).chains.positions
    assert np.max(z_scores(*quantities(banana, draws))) < Z_LIMIT
    assert np.max(z_scores(*quantities(banana, drop_repeated(draws)))) > Z_LIMIT


def kick_wrongly(logdensity_fn, kinetic_energy_fn, num_steps):
    """Velocity Verlet whose first half-kick has the wrong sign; with both wrong it is reversible, and still exact."""
    force, velocity = jax.grad(logdensity_fn), jax.grad(kinetic_energy_fn)

    def trajectory(state, step_size):
        momentum = state.momentum - 0.5 * step_size * force(state.position)
        position = state.position + step_size * velocity(momentum)
        momentum = momentum + 0.5 * step_size * force(position)
        return state._replace(position=position, momentum=momentum, logdensity=logdensity_fn(position))

    return trajectory


def test_a_kick_of_the_wrong_sign_fails(x64, monkeypatch):
    right, kernel = draw(gaussian, kernel="hmc"), hmc()
    monkeypatch.setattr("vihmc.samplers.hmc.integrator_for", lambda _: kick_wrongly)
    jax.clear_caches()
    state = init_chains(log_density(gaussian), kernel, jnp.asarray(right.chains.positions[:, -1]))
    wrong = run_chains(log_density(gaussian), kernel, state, right.tuning, jax.random.key(1), num_draws=400)
    jax.clear_caches()
    assert wrong.acceptance_rate.mean() > 0.05
    assert np.max(z_scores(*quantities(gaussian, wrong.positions))) > Z_LIMIT


@pytest.mark.parametrize("jacobian", [1.0, 0.0], ids=["with Jacobian", "without"])
def test_a_forgotten_jacobian_fails(x64, jacobian):
    scales = np.exp(draw(log_scales, kernel="hmc", jacobian=jacobian).chains.positions)
    z = z_scores(scales, np.full(DIMENSION, 3.0))
    assert (np.max(z) > Z_LIMIT) == (jacobian == 0)
