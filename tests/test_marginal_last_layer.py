"""The output layer integrated out, and vectorised densities: both must be the posterior, exactly."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vihmc.config.method import SamplerConfig
from vihmc.errors import InputError
from vihmc.models.features import Scaling
from vihmc.models.mlp import MLP
from vihmc.models.model import as_model
from vihmc.models.standardised import Standardised
from vihmc.models.vectorised import MAX_OBSERVATIONS, MAX_WIDTH, MIN_CHAINS, VectorisedDensity, is_narrow
from vihmc.posterior.density import Posterior
from vihmc.posterior.gauss_newton import whiten
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.posterior.vectorised import restrict_vectorised
from vihmc.samplers.integrators import integrator_for, leapfrog, leapfrog_vectorised, split
from vihmc.samplers.marginal_last_layer import MarginalLastLayer
from vihmc.samplers.target import Target, find_marginal
from vihmc.samplers.third_stage import sample_subspace


def make_posterior(*, widths=(2, 4, 3, 2), output_bias=True, prior_std=0.7, noise_std=(0.3, 0.5), n=7):
    model = MLP(widths, output_bias=output_bias)
    inputs = np.linspace(-1, 1, n * widths[0]).reshape(n, widths[0])
    targets = np.stack([np.sin(3 * inputs[:, 0]), np.cos(2 * inputs[:, -1])], axis=1)[:, : widths[-1]]
    return Posterior.of(
        model.apply,
        jax.eval_shape(model.init, jax.random.key(0)),
        inputs,
        targets,
        prior_std=prior_std,
        noise_std=np.asarray(noise_std[: widths[-1]]),
    )


def make_standardised(*, n=7):
    """A network between inputs around a thousand and targets in units of their own."""
    plain = make_posterior(n=n)
    inputs, targets = 1e3 + 40 * plain.inputs, plain.targets * np.array([20.0, 0.3]) + np.array([300.0, -2.0])
    model = Standardised(MLP((2, 4, 3, 2)), *(Scaling.of(np.asarray(values)) for values in (inputs, targets)))
    return Posterior.of(
        model.apply,
        jax.eval_shape(model.init, jax.random.key(0)),
        inputs,
        targets,
        prior_std=0.7,
        noise_std=np.array([6.0, 0.15]),
    )


@pytest.fixture(scope="module", autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def posterior():
    return make_posterior()


@pytest.fixture(scope="module")
def thetas(posterior):
    return jax.random.normal(jax.random.key(1), (5, posterior.num_params))


def some_selected(posterior, *, dropped=(1, 6, -1, -3)):
    return Subspace.of(
        np.delete(np.arange(posterior.num_params), dropped),
        0.5 * jax.random.normal(jax.random.key(2), (posterior.num_params,)),
    )


def exact_log_density(posterior, marginal, theta):
    """The Gaussian integral over the last layer, by a dense covariance, and the prior of everything else."""
    integrated = np.flatnonzero(np.asarray(marginal.is_integrated))
    zeroed = theta.at[integrated].set(0.0)
    design = jax.jacobian(
        lambda layer: posterior.predict(theta.at[integrated].set(layer), posterior.inputs).reshape(-1)
    )(jnp.zeros(integrated.size))
    residual = (posterior.targets - posterior.predict(zeroed, posterior.inputs)).reshape(-1)
    prior_var = jnp.broadcast_to(posterior.prior_std, theta.shape) ** 2
    noise_var = jnp.broadcast_to(posterior.likelihood.noise_std, posterior.targets.shape).reshape(-1) ** 2
    covariance = (design * prior_var[integrated]) @ design.T + jnp.diag(noise_var)
    others = np.setdiff1d(np.arange(theta.size), integrated)
    log_prior = -0.5 * jnp.sum(theta[others] ** 2 / prior_var[others] + jnp.log(2 * jnp.pi * prior_var[others]))
    log_evidence = -0.5 * (
        residual @ jnp.linalg.solve(covariance, residual) + jnp.linalg.slogdet(2 * jnp.pi * covariance)[1]
    )
    return log_prior + log_evidence


@pytest.mark.parametrize("make", [make_posterior, make_standardised])
def test_vectorised_chains_give_the_density_and_its_gradient(make, thetas):
    posterior = make()
    for subspace in (whole_space(thetas[0]), some_selected(posterior)):
        positions = subspace.extract(thetas)
        vectorised, plain = restrict_vectorised(posterior, subspace), subspace.restrict(posterior.log_density)
        assert isinstance(vectorised, VectorisedDensity)
        expected = jax.jit(jax.vmap(jax.value_and_grad(plain)))(positions)
        for found in (
            jax.jit(jax.vmap(jax.value_and_grad(vectorised)))(positions),
            [jnp.stack(parts) for parts in zip(*map(jax.jit(jax.value_and_grad(vectorised)), positions), strict=True)],
            jax.jit(lambda x: (vectorised.of_chains(x), vectorised.gradients(x).T))(positions.T),  # noqa: B023,
        ):
            np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
            np.testing.assert_allclose(found[1], expected[1], rtol=1e-9, atol=1e-9)


def test_vectorised_trajectories_are_leapfrog_ones(posterior, thetas):
    from blackjax.mcmc.integrators import IntegratorState

    density = restrict_vectorised(posterior, whole_space(thetas[0]))
    inverse_mass = jnp.linspace(0.5, 2, posterior.num_params)
    momenta = jax.random.normal(jax.random.key(3), thetas.shape)

    @jax.jit
    def ends(positions, momenta):
        def one(name, position, momentum):
            value, gradient = jax.value_and_grad(density)(position)
            start = IntegratorState(position, momentum, value, gradient)
            return INTEGRATORS[name](density, lambda p: 0.5 * jnp.sum(inverse_mass * p**2), 7)(start, 1e-3)

        mapped = [jax.vmap(lambda *pair, name=name: one(name, *pair))(positions, momenta) for name in INTEGRATORS]
        return [*mapped, one("vectorised", positions[0], momenta[0])]

    plain, vectorised, single = ends(thetas, momenta)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10), plain, vectorised)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0], b, rtol=1e-8, atol=1e-10), plain, single)


INTEGRATORS = {"leapfrog": leapfrog, "vectorised": leapfrog_vectorised}


def test_vectorised_trajectories_are_reversible_and_preserve_volume():
    """The derivative of the map by finite differences, because the density brings its own and JAX asks no further."""
    from blackjax.mcmc.integrators import IntegratorState

    posterior = make_posterior(widths=(1, 2, 1), noise_std=(0.3,), prior_std=1.0)
    theta = jax.random.normal(jax.random.key(10), (posterior.num_params,))
    marginal = MarginalLastLayer.of(posterior, whole_space(theta))
    inverse_mass = jnp.linspace(0.5, 2, marginal.below.num_selected)
    density, size = marginal.log_density(), marginal.below.num_selected

    @jax.jit
    @jax.vmap
    def trajectory(state):
        position, momentum = state[:size], state[size:]
        value, gradient = jax.value_and_grad(density)(position)
        start = IntegratorState(position, momentum, value, gradient)
        end = leapfrog_vectorised(density, lambda p: 0.5 * jnp.sum(inverse_mass * p**2), 6)(start, 0.15)
        return jnp.concatenate([end.position, end.momentum])

    turned = jnp.concatenate([jnp.ones(size), -jnp.ones(size)])
    start = jnp.concatenate([marginal.below.extract(theta), jax.random.normal(jax.random.key(11), (size,))])
    step = 1e-5
    ends = trajectory(
        jnp.concatenate([start[None], start + step * jnp.eye(2 * size), start - step * jnp.eye(2 * size)])
    )
    assert np.max(np.abs(ends[0] - start)) > 0.5
    back = turned * trajectory(jnp.tile(turned * ends[0], (len(ends), 1)))[0]
    np.testing.assert_allclose(back, start, atol=1e-9)
    jacobian = (ends[1 : 1 + 2 * size] - ends[1 + 2 * size :]) / (2 * step)
    assert abs(np.linalg.det(jacobian) - 1) < 1e-6


def test_chains_one_after_the_other_are_not_vectorised(posterior):
    q = MeanField(jnp.zeros(posterior.num_params), jnp.ones(posterior.num_params))
    keys = {"key_start": jax.random.key(0), "key_metric": jax.random.key(1)}

    def density(**settings):
        return Target.of(
            posterior, q, whole_space(q.mean), SamplerConfig(last_layer="sample", **settings), **keys
        ).log_density

    assert isinstance(density(num_chains=MIN_CHAINS), VectorisedDensity)
    assert not isinstance(density(num_chains=MIN_CHAINS - 1), VectorisedDensity)
    assert not isinstance(density(num_chains=MIN_CHAINS, chains_at_once="one"), VectorisedDensity)


def test_the_integrator_suits_the_density(posterior, thetas):
    density = restrict_vectorised(posterior, whole_space(thetas[0]))
    assert integrator_for(density) is leapfrog_vectorised
    assert integrator_for(posterior.log_density) is leapfrog
    assert integrator_for(posterior.restrict(whole_space(thetas[0]), num_shards=7)) is split


def test_wide_networks_and_long_data_are_not_vectorised():
    assert is_narrow((1, MAX_WIDTH, 1), num_observations=MAX_OBSERVATIONS)
    assert not is_narrow((1, MAX_WIDTH + 1, 1), num_observations=3)
    assert not is_narrow((1, 2, 1), num_observations=MAX_OBSERVATIONS + 1)
    wide = make_posterior(widths=(2, MAX_WIDTH + 1, 1))
    center = jnp.zeros(wide.num_params)
    assert restrict_vectorised(wide, whole_space(center)) is None
    assert MarginalLastLayer.of(wide, whole_space(center)) is None


@pytest.mark.parametrize(
    "make",
    [make_posterior, partial(make_posterior, output_bias=False), make_standardised],
    ids=["", "no bias", "units"],
)
def test_the_integral_is_the_exact_one(make):
    posterior = make()
    thetas = jax.random.normal(jax.random.key(1), (3, posterior.num_params))
    for subspace in (whole_space(thetas[0]), some_selected(posterior)):
        marginal = MarginalLastLayer.of(posterior, subspace)
        density = marginal.log_density()
        positions = marginal.below.extract(thetas)
        exact = jax.jit(jax.value_and_grad(lambda theta: exact_log_density(posterior, marginal, theta)))  # noqa: B023
        values, gradients = jax.jit(jax.vmap(jax.value_and_grad(density)))(positions)
        for position, value, gradient in zip(positions, values, gradients, strict=True):
            expected, expected_gradient = exact(marginal.below.embed(position))
            np.testing.assert_allclose(value, expected, rtol=1e-10)
            np.testing.assert_allclose(gradient, marginal.below.extract(expected_gradient), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("make", [make_posterior, make_standardised])
@pytest.mark.slow
def test_the_last_layer_is_drawn_from_its_gaussian(make, thetas):
    """One position, many draws: mean and covariance against the exact ones, |z| < 5 each (false alarm 1e-5 in all)."""
    posterior = make()
    marginal = MarginalLastLayer.of(posterior, some_selected(posterior))
    position = marginal.below.extract(thetas[0])
    num_draws = 4_000
    draws = marginal.complete(np.broadcast_to(np.asarray(position), (2, num_draws, position.size)), jax.random.key(4))
    integrated = np.flatnonzero(np.asarray(marginal.is_integrated))
    is_integrated = np.isin(np.asarray(marginal.selected.selected), integrated)
    np.testing.assert_array_equal(draws[0, 7, ~is_integrated], position)
    theta = marginal.below.embed(position)
    hessian = -jax.hessian(lambda layer: posterior.log_density(theta.at[integrated].set(layer)))(jnp.zeros(6))
    slope = jax.grad(lambda layer: posterior.log_density(theta.at[integrated].set(layer)))(jnp.zeros(6))
    covariance = np.linalg.inv(hessian)
    layer = draws[..., is_integrated].reshape(2 * num_draws, -1)
    std = np.sqrt(np.diag(covariance))
    z_mean = (layer.mean(axis=0) - covariance @ slope) / std * np.sqrt(len(layer))
    assert np.abs(z_mean).max() < 5
    spread = np.sqrt((covariance**2 + np.outer(std**2, std**2)) / len(layer))
    assert np.abs((np.cov(layer.T) - covariance) / spread).max() < 5
    # Chains and draws have keys of their own, and more draws leave the first ones as they are.
    assert not np.array_equal(draws[0, 0], draws[1, 0])
    fewer = marginal.complete(np.broadcast_to(np.asarray(position), (1, 10, position.size)), jax.random.key(4))
    np.testing.assert_allclose(fewer[0], draws[0, :10], rtol=1e-9, atol=1e-12)


def test_float32_is_good_to_a_few_thousandths_of_a_nat():
    """Noise a twentieth of the targets, as in `sine_large`. Without refinement the error is a hundred times larger."""
    with jax.enable_x64(False):
        posterior = make_posterior(widths=(1, 10, 10, 1), noise_std=(0.05,), prior_std=1.0, n=20)
        thetas = jax.random.normal(jax.random.key(5), (8, posterior.num_params))
        marginal = MarginalLastLayer.of(posterior, whole_space(thetas[0]))
        values = np.asarray(jax.jit(jax.vmap(marginal.log_density()))(marginal.below.extract(thetas)))
    assert values.dtype == np.float32
    posterior = make_posterior(widths=(1, 10, 10, 1), noise_std=(0.05,), prior_std=1.0, n=20)
    exact = jax.jit(jax.vmap(MarginalLastLayer.of(posterior, whole_space(jnp.asarray(thetas[0], float))).log_density()))
    expected = exact(marginal.below.extract(jnp.asarray(thetas, float)))
    np.testing.assert_allclose(values, expected, rtol=3e-6, atol=4e-3)


@pytest.mark.slow
def test_chains_without_the_last_layer_have_the_posterior_of_chains_with_it():
    """A hard comparison needs long chains; moments of predictions agree within 5 Monte Carlo errors, 8 z-values."""
    from vihmc.diagnostics.convergence import assess
    from vihmc.predict import evaluate

    posterior = make_posterior(widths=(1, 3, 1), noise_std=(0.3,), prior_std=1.0)
    mean = 0.1 * jax.random.normal(jax.random.key(6), (posterior.num_params,))
    q = MeanField(mean, 0.3 * jnp.ones_like(mean))
    subspace = whole_space(mean)
    moments = {}
    for last_layer in ("marginalise", "sample"):
        config = SamplerConfig(
            last_layer=last_layer,
            num_chains=32,
            num_warmup=200,
            num_draws=600,
            metric="identity",
            jitter=1,
            max_integration_steps=30,
        )
        sampled = sample_subspace(posterior, q, subspace, config, jax.random.key(7))
        assert sampled.chains.positions.shape == (32, 600, posterior.num_params)
        values = evaluate(subspace.restrict(posterior.predict), sampled.chains.positions, posterior.inputs[::2])[..., 0]
        values = np.concatenate([values, values**2], axis=-1)
        moments[last_layer] = values.mean(axis=(0, 1)), assess(values).mcse_mean
    (first, first_error), (second, second_error) = moments.values()
    assert np.abs((first - second) / np.hypot(first_error, second_error)).max() < 5


def test_a_layer_that_cannot_be_integrated_is_refused_only_when_asked_for(posterior):
    center = jnp.zeros(posterior.num_params)
    below_only, everything = Subspace.of(np.arange(3), center), whole_space(center)

    def find(subspace, **settings):
        return find_marginal(posterior, subspace, SamplerConfig(**settings), differs_per_chain=False)

    assert find(below_only) is None
    with pytest.raises(InputError, match=r"`last_layer` must be 'auto' or 'sample'.*got 'marginalise'"):
        find(below_only, last_layer="marginalise")
    assert find(everything, last_layer="sample") is None
    assert find(everything, num_chains=MIN_CHAINS) is not None
    assert find(everything, num_chains=MIN_CHAINS - 1) is None
    assert find(everything, num_chains=MIN_CHAINS, chains_at_once="one") is None


def test_a_model_in_a_lambda_has_the_same_density(posterior, thetas):
    wrapped = replace(posterior, model=as_model(lambda params, inputs: posterior.model.apply(params, inputs)))
    assert restrict_vectorised(wrapped, whole_space(thetas[0])) is None
    fast = jax.jit(jax.vmap(restrict_vectorised(posterior, whole_space(thetas[0]))))(thetas)
    slow = jax.jit(jax.vmap(wrapped.restrict(whole_space(thetas[0]))))(thetas)
    np.testing.assert_allclose(fast, slow, rtol=1e-9)


def test_the_curvature_metric_goes_with_a_marginal_layer(posterior):
    """The map is linear and its density that of the positions, whatever the directions are worth."""
    center = 0.3 * jax.random.normal(jax.random.key(8), (posterior.num_params,))
    marginal = MarginalLastLayer.of(posterior, whole_space(center))
    whitening = whiten(posterior, marginal.below, MeanField(center, jnp.ones_like(center)), jax.random.key(9), rank=3)
    position = marginal.below.extract(center) + 0.1
    value = jax.jit(whitening.log_density(marginal.log_density()))(whitening.to_coordinates(position))
    np.testing.assert_allclose(value, jax.jit(marginal.log_density())(position), rtol=1e-6)
