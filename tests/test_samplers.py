import contextlib
import logging
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc.integrators import IntegratorState, velocity_verlet
from blackjax.mcmc.metrics import default_metric
from jax.tree_util import Partial

from vihmc import InputError, SamplerConfig, Subspace
from vihmc.diagnostics.convergence import assess
from vihmc.paper.sine import build
from vihmc.posterior.likelihoods import Gaussian
from vihmc.posterior.mean_field import MeanField, prior_of
from vihmc.posterior.priors import Prior
from vihmc.posterior.subspace import whole_space
from vihmc.runs.config import load_preset
from vihmc.samplers import draw_starts, run_chains, sample
from vihmc.samplers.chains import init_chains
from vihmc.samplers.drift import is_drifting
from vihmc.samplers.hmc import hmc
from vihmc.samplers.integrators import integrator_for
from vihmc.samplers.kernel import Tuning
from vihmc.samplers.metrics import Mass
from vihmc.samplers.nuts import nuts
from vihmc.samplers.sample import build_kernel
from vihmc.samplers.trajectory import LengthRule, jittered, num_steps_for, slowest_direction_std, trajectory_time
from vihmc.samplers.warmup import warm_up, windows


@contextlib.contextmanager
def capture_compilations():
    """Collect the names of the programs that are compiled."""
    names = []
    handler = logging.Handler()
    handler.emit = lambda record: names.extend(
        name for name in ("_run_chunk",) if f"Compiling jit({name})" in record.getMessage()
    )
    logger = logging.getLogger("jax._src.interpreters.pxla")
    logger.addHandler(handler)
    yield names
    logger.removeHandler(handler)


def z_scores(draws, exact_mean, exact_covariance):
    """Deviations of the first and second moments from the exact ones, in units of their MCSE."""
    centred = draws - exact_mean
    products = centred[..., :, None] * centred[..., None, :]
    first = draws.mean(axis=(0, 1)) - exact_mean
    second = products.mean(axis=(0, 1)) - exact_covariance
    z_first = first / assess(draws).mcse_mean
    z_second = second.ravel() / assess(products).mcse_mean
    return np.concatenate([z_first, z_second])


def sample_linear(linear_gaussian, center_shift=0.0, seed=0, selected=(0, 2, 3, 4), chunk_size=50, **settings):
    posterior = linear_gaussian.posterior
    center = jnp.asarray(linear_gaussian.mean + center_shift)
    subspace = Subspace.of(list(selected), center)
    std = 1 / np.sqrt(np.diag(linear_gaussian.precision_matrix))
    config = SamplerConfig(**{"num_chains": 8, "num_draws": 1500, "num_warmup": 500} | settings)
    q = MeanField(center, jnp.asarray(std))
    starts = draw_starts(jax.random.key(99), "q", num_chains=8, q=q, prior=prior_of(posterior, like=q))
    result = sample(
        posterior.restrict(subspace, num_shards=config.num_shards),
        subspace.extract(starts),
        config,
        jax.random.key(seed),
        initial_var=subspace.extract(jnp.asarray(std) ** 2),
        chunk_size=chunk_size,
    )
    return result, linear_gaussian.conditional(list(selected), np.asarray(center))


@pytest.mark.parametrize(
    ("precision", "settings"),
    [
        ("float32", {"kernel": "hmc", "metric": "adapted"}),
        ("float32", {"kernel": "nuts", "metric": "adapted"}),
        ("float64", {"kernel": "hmc", "metric": "adapted"}),
        ("float64", {"kernel": "hmc", "metric": "q"}),
        ("float64", {"kernel": "hmc", "metric": "identity"}),
        ("float64", {"kernel": "nuts", "metric": "adapted"}),
        ("float64", {"kernel": "nuts", "metric": "q", "step_size": 0.3}),
        ("float64", {"kernel": "hmc", "num_integration_steps": 7, "thin": 2}),
        ("float64", {"kernel": "hmc", "num_shards": 6, "chains_at_once": "one"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
    indirect=["precision"],
)
def test_draws_have_the_moments_of_the_conditional_posterior(precision, linear_gaussian, settings):
    # Frozen away from the mean, so that the conditional mean differs from the marginal one.
    result, (mean, covariance) = sample_linear(linear_gaussian, center_shift=0.05, **settings)
    z = z_scores(result.chains.positions.astype(float), mean, covariance)
    assert np.max(np.abs(z)) < 5
    assert not result.chains.is_divergent.any()


@pytest.mark.parametrize("fault", ["prior forgotten", "noise variance read as std"])
def test_the_moment_test_catches_faults(x64, linear_gaussian, fault):
    faulty = linear_gaussian.posterior
    if fault == "prior forgotten":
        object.__setattr__(faulty, "prior", Prior(std=1e6).on(faulty.layout, jnp.result_type(float)))
        linear_gaussian.prior_std = 0.2
    else:
        object.__setattr__(faulty, "likelihood", Gaussian(faulty.likelihood.noise_std**2))
    subspace = Subspace.of(np.arange(5), jnp.asarray(linear_gaussian.mean))
    config = SamplerConfig(metric="identity", num_draws=1500, num_warmup=500)
    starts = jnp.tile(subspace.center, (8, 1)) + 0.01 * jax.random.normal(jax.random.key(0), (8, 5))
    var = jnp.asarray(np.diag(linear_gaussian.covariance))
    chains = sample(faulty.log_density, starts, config, jax.random.key(1), initial_var=var).chains
    z = z_scores(chains.positions, linear_gaussian.mean, linear_gaussian.covariance)
    assert np.max(np.abs(z)) > 5


def integrate(integrator, linear_gaussian, position, momentum, step_size, num_steps):
    posterior = linear_gaussian.posterior
    density = posterior.restrict(whole_space(position), num_shards=5 if integrator == "split" else None)
    metric = default_metric(jnp.ones(5))
    value, gradient = jax.value_and_grad(posterior.log_density)(position)
    state = IntegratorState(position, momentum, value, gradient)
    energy = -value + metric.kinetic_energy(momentum)
    state = integrator_for(density)(density, metric.kinetic_energy, num_steps)(state, step_size)
    return state, float(-state.logdensity + metric.kinetic_energy(state.momentum) - energy)


def test_our_leapfrog_is_that_of_blackjax(x64, linear_gaussian):
    position, momentum = jnp.asarray(linear_gaussian.mean) + 0.1, jnp.linspace(-1, 1, 5)
    ours, _ = integrate("leapfrog", linear_gaussian, position, momentum, 0.01, 20)
    log_density = linear_gaussian.posterior.log_density
    step = velocity_verlet(log_density, default_metric(jnp.ones(5)).kinetic_energy)
    theirs = IntegratorState(position, momentum, *jax.value_and_grad(log_density)(position))
    for _ in range(20):
        theirs = step(theirs, 0.01)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("integrator", ["leapfrog", "split"])
def test_energy_error_falls_as_the_square_of_the_step(x64, linear_gaussian, integrator):
    position, momentum = jnp.asarray(linear_gaussian.mean) + 0.1, jnp.linspace(-1, 1, 5)
    errors = [integrate(integrator, linear_gaussian, position, momentum, 0.01 / 2**k, 17 * 2**k)[1] for k in range(4)]
    ratios = np.array(errors[:-1]) / np.array(errors[1:])
    np.testing.assert_allclose(ratios[1:], 4, rtol=0.05)


@pytest.mark.parametrize("kernel", ["hmc", "nuts"])
def test_chunks_never_change_the_draws(x64, linear_gaussian, kernel):
    runs = [
        sample_linear(linear_gaussian, kernel=kernel, num_draws=60, num_warmup=120, chunk_size=size)[0]
        for size in (50, 7)
    ]
    np.testing.assert_array_equal(runs[0].chains.positions, runs[1].chains.positions)
    np.testing.assert_array_equal(runs[0].chains.energy, runs[1].chains.energy)
    assert runs[0].tuning.step_size == runs[1].tuning.step_size


def test_thinning_keeps_every_nth_draw(x64, linear_gaussian):
    every = sample_linear(linear_gaussian, num_draws=30, num_warmup=100)[0].chains
    third = sample_linear(linear_gaussian, num_draws=10, num_warmup=100, thin=3)[0].chains
    np.testing.assert_array_equal(third.positions, every.positions[:, 2::3])
    np.testing.assert_array_equal(third.num_gradients, every.num_gradients.reshape(8, 10, 3).sum(axis=2))
    np.testing.assert_allclose(third.acceptance_rate, every.acceptance_rate.reshape(8, 10, 3).mean(axis=2))


def test_rejected_draws_repeat_the_last_one(x64, linear_gaussian):
    settings = {"kernel": "hmc", "metric": "identity", "step_size": 0.045, "num_draws": 300, "num_warmup": 50}
    chains = sample_linear(linear_gaussian, num_integration_steps=2, **settings)[0].chains
    moved = np.any(np.diff(chains.positions, axis=1) != 0, axis=-1)
    acceptance = chains.acceptance_rate[:, 1:]
    assert 0.05 < acceptance.mean() < 0.9
    # Acceptance events are Bernoulli with the recorded probabilities.
    z = (moved.sum() - acceptance.sum()) / np.sqrt((acceptance * (1 - acceptance)).sum())
    assert abs(z) < 5


@pytest.mark.parametrize("target", [0.65, 0.9])
@pytest.mark.parametrize("kernel", ["hmc", "nuts"])
def test_dual_averaging_reaches_its_target(x64, target, kernel):
    # In 100 dimensions of different scales and with one leapfrog step, acceptance falls steadily with the step size;
    # in a few it has cliffs, and a number of steps that depends on the step size makes it jump.
    length = {"num_integration_steps": 1} if kernel == "hmc" else {}
    config = SamplerConfig(kernel=kernel, metric="identity", target_acceptance=target, num_draws=300, **length)
    scales = jnp.linspace(0.5, 1.5, 100)
    starts = scales * jax.random.normal(jax.random.key(1), (8, 100))
    chains = sample(_scaled_normal(scales), starts, config, jax.random.key(2), initial_var=scales**2).chains
    assert abs(chains.acceptance_rate.mean() - target) < 0.04


def test_an_adapted_metric_is_the_variance_of_the_draws(x64, linear_gaussian):
    result, (_, covariance) = sample_linear(linear_gaussian, metric="adapted", num_warmup=2000)
    np.testing.assert_allclose(result.tuning.inverse_mass_matrix, np.diag(covariance), rtol=0.15)


@pytest.mark.parametrize("length", [0, 5, 19, 20, 100, 150, 1000, 4000])
def test_warmup_windows_cover_the_warmup(length):
    parts = windows(length)
    assert sum(part.length for part in parts) == length
    assert all(part.length > 0 for part in parts)
    assert [part.may_end for part in parts] == [False] * (len(parts) - 1) + [True] * bool(parts)
    if length >= 100:
        assert not parts[0].learns
        assert not parts[-1].learns
        assert any(part.learns for part in parts)


@pytest.mark.parametrize(("length", "most"), [(100, 100), (100, 120), (100, 130), (200, 800), (200, 5000)])
def test_further_windows_double_up_to_the_most_steps(length, most):
    parts = windows(length, most)
    assert parts[: len(windows(length))] == windows(length)
    total, last = sum(part.length for part in parts), windows(length)[-1].length
    assert most - last <= total <= most
    further = [part.length for part in parts[len(windows(length)) :] if part.learns]
    assert all(after == 2 * before for before, after in pairwise(further[:-1]))
    assert parts[-1].may_end


def test_a_drift_is_found_and_seldom_where_there_is_none():
    rng = np.random.default_rng(0)
    still = rng.normal(size=(500, 60, 4, 2))
    alarms = np.mean([is_drifting(traces) for traces in still])
    # Two quantities, three chains' worth of freedom: 12 % by t alone. Its standard error is 1.5 %.
    assert alarms < 0.15
    ramp = still + np.linspace(0, 4, 60)[:, None, None]
    assert np.mean([is_drifting(traces) for traces in ramp]) > 0.99
    assert not is_drifting(ramp[0][:, :1])
    assert not is_drifting(ramp[0][:4])


@pytest.mark.parametrize(("far", "is_longer"), [(0.0, False), (8.0, True)])
def test_a_warm_up_goes_on_while_chains_drift(x64, far, is_longer):
    # Ten steps of 0.02 go 0.2 std: from far away the chains need some hundred trajectories.
    config = SamplerConfig(
        metric="identity", step_size=0.02, num_integration_steps=10, num_chains=4, num_warmup=100, max_warmup=3000
    )
    target = _scaled_normal(np.ones(3))
    starts = far + jax.random.normal(jax.random.key(1), (4, 3))
    kernel = build_kernel(config, starts)
    run = partial(warm_up, target, kernel, init_chains(target, kernel, starts), jax.random.key(2))
    warmed = run(config, initial_var=np.ones(3))
    assert (warmed.num_steps > 100) == is_longer
    assert np.abs(np.mean(warmed.state.position)) < 2.5
    short = run(config.model_copy(update={"max_warmup": None}), initial_var=np.ones(3))
    assert short.num_steps == 100


def test_trajectory_rules():
    paper = SamplerConfig(kernel="hmc", posterior_var=0.0679**2, step_size=1e-5)
    time = trajectory_time(paper, slowest_std=1.0)
    assert num_steps_for(LengthRule.of(paper), 1e-5, time) == 724
    quarter = SamplerConfig(kernel="hmc", max_integration_steps=40)
    time = trajectory_time(quarter, slowest_std=2.0)
    assert num_steps_for(LengthRule.of(quarter), 0.1, time) == 31  # π·2/(2·0.1) = 31.4
    assert num_steps_for(LengthRule.of(quarter), 0.01, time) == 40
    assert num_steps_for(LengthRule.of(quarter), 100.0, time) == 1


def test_a_jittered_number_of_steps_is_uniform():
    keys = jax.random.split(jax.random.key(0), 20_000)
    draw = lambda num_steps, jitter: np.asarray(
        jax.vmap(lambda key: jittered(jnp.asarray(num_steps), jnp.asarray(jitter), key))(keys)
    )
    assert np.all(draw(7, 0.0) == 7)
    assert np.all(draw(1, 0.3) >= 1)
    counts = np.bincount(draw(10, 1.0), minlength=21)
    assert counts[0] == 0
    assert np.max(np.abs(counts[1:] - 1000)) < 5 * np.sqrt(1000)
    assert set(draw(10, 0.5)) == set(range(6, 16))


def test_all_chains_take_the_same_jittered_number_of_steps(x64):
    config = SamplerConfig(jitter=1.0, num_draws=60, num_warmup=100, max_integration_steps=20, metric="identity")
    starts = jax.random.normal(jax.random.key(1), (8, 2))
    scales = jnp.asarray([0.01, 1.0])
    result = sample(_scaled_normal(scales), starts, config, jax.random.key(0), initial_var=scales**2)
    lengths = result.chains.num_gradients
    assert np.all(lengths == lengths[0])
    assert result.tuning.num_integration_steps == 10
    assert len(set(lengths[0])) > 10
    assert lengths.min() >= 1
    assert lengths.max() <= 20


def test_slowest_direction_sees_correlations():
    rng = np.random.default_rng(0)
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
    draws = rng.multivariate_normal([3, 4], covariance, size=(500, 8))
    slowest = slowest_direction_std(draws, Mass(np.array([1.0, 1.0])))
    assert abs(slowest - np.sqrt(1.9)) < 0.15
    assert abs(slowest_direction_std(draws, Mass(np.array([4.0, 4.0]))) - slowest / 2) < 1e-9
    draws[:, 0] *= 1e-3  # one chain stands still: the others still tell
    assert slowest_direction_std(draws, Mass(np.array([1.0, 1.0]))) > 0.8 * slowest


def test_slowest_direction_does_not_grow_with_the_dimension():
    draws = np.random.default_rng(0).normal(size=(600, 8, 300))
    assert abs(slowest_direction_std(draws, Mass(np.ones(300))) - 1) < 0.05


def test_starts():
    q = MeanField(jnp.array([1.0, -1.0]), jnp.array([0.1, 0.2]))
    draw = lambda start: np.asarray(
        draw_starts(
            jax.random.key(0),
            start,
            num_chains=2000,
            q=q,
            prior=MeanField(jnp.zeros(q.mean.shape), jnp.full(q.mean.shape, 3.0)),
        )
    )
    np.testing.assert_array_equal(draw("q_mean"), np.tile([1.0, -1.0], (2000, 1)))
    np.testing.assert_allclose(draw("q").mean(axis=0), [1, -1], atol=0.03)
    np.testing.assert_allclose(draw("q").std(axis=0), [0.1, 0.2], rtol=0.08)
    np.testing.assert_allclose(draw("prior").std(axis=0), [3, 3], rtol=0.08)


def test_divergences_are_counted():
    # A density with a cliff: the energy is infinite beyond one.
    logdensity = lambda x: jnp.where(jnp.all(jnp.abs(x) < 1), 0.0, -jnp.inf)
    kernel = hmc()
    tuning = Tuning(jnp.asarray(1.0), jnp.ones(2), jnp.asarray(5))
    state = init_chains(logdensity, kernel, jnp.zeros((3, 2)))
    chains = run_chains(logdensity, kernel, state, tuning, jax.random.key(0), num_draws=50)
    assert chains.is_divergent.any()
    assert np.all(np.abs(chains.positions) < 1)


def test_nuts_stops_at_the_configured_number_of_steps(x64):
    problem = build(_sine("sine_small"))
    logdensity = problem.posterior.log_density
    for limit, gradients in ((7, 7), (10, 7)):
        kernel = nuts(limit)
        tuning = Tuning(jnp.asarray(1e-7), jnp.ones(6), jnp.asarray(1))
        state = init_chains(logdensity, kernel, jnp.zeros((1, 6)))
        chains = run_chains(logdensity, kernel, state, tuning, jax.random.key(0), num_draws=3)
        assert chains.num_gradients.max() == gradients


@pytest.mark.parametrize("settings", [{}, {"jitter": 1.0, "metric": "q"}], ids=str)
def test_warming_up_and_drawing_compile_once(linear_gaussian, settings):
    posterior = linear_gaussian.posterior
    traces = []

    def log_density(theta):
        traces.append(1)
        return posterior.log_density(theta)

    def run(num_draws):
        config = SamplerConfig(num_draws=num_draws, num_warmup=333, **settings)
        return sample(log_density, jnp.zeros((8, 5)), config, jax.random.key(0), initial_var=jnp.ones(5), chunk_size=10)

    with jax.log_compiles(), capture_compilations() as programs:
        run(20)
    assert programs.count("_run_chunk") == 1
    compiled = len(traces)
    run(75)
    assert len(traces) == compiled


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_warmup": 10}, "`num_warmup` must be at least 100 to find the step size or the metric, got 10"),
        ({"num_warmup": 0, "step_size": 0.1}, "`num_warmup` must be at least 100 .* got 0"),
        ({"step_size": -1}, "`step_size` must be greater than 0, got -1"),
        ({"kernel": "gibbs"}, "`kernel` must be 'hmc' or 'nuts', got 'gibbs'"),
        (
            {"kernel": "nuts", "num_shards": 2},
            "`num_shards` goes with kernel 'hmc', got num_shards 2 and k",
        ),
        ({"metric": "curvature", "num_shards": 2}, "`num_shards` must be left out with metric 'curvature', got 2"),
        ({"jitter": 1.5}, "`jitter` must be less than or equal to 1, got 1.5"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        SamplerConfig(**settings)


def _scaled_normal(scales):
    return Partial(lambda scales, x: -0.5 * jnp.sum((x / scales) ** 2), scales)


def _sine(name):
    from vihmc.paper.settings import SineConfig

    return SineConfig(**load_preset(name)["problem"])


def test_a_trajectory_asks_for_one_energy(x64):
    # The density has an expensive value and a cheap gradient; of a draw of 20 steps it should see one value.
    calls = {"value": 0, "force": 0}

    def count(name):
        jax.debug.callback(lambda: calls.__setitem__(name, calls[name] + 1))

    @jax.custom_vjp
    def density(x):
        count("value")
        return -0.5 * jnp.sum(x**2)

    def backward(x, cotangent):
        count("force")
        return (-cotangent * x,)

    density.defvjp(lambda x: (-0.5 * jnp.sum(x**2), x), backward)
    state = init_chains(density, hmc(), jnp.ones((1, 3)))
    jax.effects_barrier()
    calls.update(value=0, force=0)
    tuning = Tuning(jnp.asarray(0.1), jnp.ones(3), jnp.asarray(20))
    run_chains(density, hmc(), state, tuning, jax.random.key(0), num_draws=4)
    jax.effects_barrier()
    assert calls == {"value": 4, "force": 80}


def test_chains_one_after_the_other_are_the_chains_at_once(x64, linear_gaussian):
    together, apart = (
        sample_linear(
            linear_gaussian,
            num_draws=5,
            num_warmup=0,
            step_size=0.1,
            metric="q",
            max_integration_steps=9,
            chains_at_once=how,
        )[0].chains
        for how in ("all", "one")
    )
    np.testing.assert_allclose(apart.positions, together.positions, rtol=1e-6)
