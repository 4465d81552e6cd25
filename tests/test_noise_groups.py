"""A learnt noise for each group of outputs or locations, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from vihmc.config.method import SamplerConfig
from vihmc.diagnostics.convergence import assess
from vihmc.errors import InputError
from vihmc.fit.evidence import Division, update_scales, with_spread_of_scales
from vihmc.models.deeponet import DeepONet
from vihmc.posterior.density import Posterior
from vihmc.posterior.likelihoods import Gaussian, StudentT
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.operator import OperatorPosterior, PairBatch
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.predict import predict_posterior
from vihmc.samplers.third_stage import sample_subspace

GROUPS = np.array([0, 1, 1, 0, 2, 2, 2])
MODEL = DeepONet.of_size(num_sensors=3, num_coordinates=2, branch_hidden=(5,), trunk_hidden=(4,), latent_size=3)


def build(groups=GROUPS, **changes):
    rng = np.random.default_rng(0)
    functions, locations = rng.normal(size=(6, 3)), rng.normal(size=(7, 2))
    fields = rng.normal(size=(6, 7)) * np.array([1, 2, 4])[GROUPS]
    settings = {"likelihood": Gaussian(noise_groups=groups), "dtype": "float64"} | changes
    return OperatorPosterior.on_pairs(MODEL, functions, locations, fields, **settings)


@pytest.fixture
def operator(x64):
    posterior = build()
    return posterior, 0.3 * jax.random.normal(jax.random.key(0), (posterior.dim,))


def noise_of(posterior, theta):
    return np.exp(np.asarray(theta[posterior.num_params :][:3]))[GROUPS]


def naive(posterior, theta, weights=None):
    predicted = posterior.model.apply_pairs(posterior.layout.unravel(theta), posterior.inputs, posterior.locations)
    std = jnp.exp(theta[posterior.num_params :][:3])[GROUPS]
    terms = jax.scipy.stats.norm.logpdf(posterior.targets, predicted, std)
    return posterior.log_prior(theta) + jnp.sum(terms if weights is None else weights * terms)


@pytest.mark.parametrize(
    ("which", "has_weights"), [("everything", False), ("branch", False), ("bias", False), ("trunk", True)]
)
def test_value_and_force_are_those_of_a_noise_per_group(x64, which, has_weights):
    weights = np.random.default_rng(1).integers(0, 3, (6, 7)) if has_weights else None
    posterior = build(weights=weights)
    theta = 0.3 * jax.random.normal(jax.random.key(0), (posterior.dim,))
    names = np.array(posterior.layout.names[: posterior.num_params])
    chosen = np.flatnonzero([which == "everything" or name.startswith(which) for name in names])
    space = Subspace.of(np.concatenate([chosen, np.arange(posterior.num_params, posterior.dim)]), theta)
    position = space.extract(theta) + 0.1
    exact, gradient = jax.jit(jax.value_and_grad(lambda p: naive(posterior, space.embed(p), weights)))(position)
    densities = [posterior.restrict(space)]
    if which == "everything":
        densities += [posterior.log_density, posterior.restrict(space, num_shards=2)]
    for density in densities:
        value, force = jax.jit(jax.value_and_grad(density))(position)
        np.testing.assert_allclose(value, exact, rtol=1e-11)
        np.testing.assert_allclose(force, gradient, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
def test_batches_of_locations_are_unbiased(operator):
    posterior, theta = operator
    everything = jnp.arange(6)
    found = [posterior.log_likelihood(theta, PairBatch(everything, jnp.array([place]))) for place in range(7)]
    np.testing.assert_allclose(np.mean(found), posterior.log_likelihood(theta), rtol=1e-10)


@pytest.mark.slow
def test_the_gauss_newton_product_weighs_locations(operator):
    posterior, theta = operator
    weights, known = theta[: posterior.num_params], posterior.given_scales(theta)
    jacobian = np.asarray(jax.jacobian(lambda t: known.predict(t, known.inputs))(weights)).reshape(42, -1)
    precision = np.broadcast_to(noise_of(posterior, theta) ** -2, (6, 7)).ravel()
    exact = jacobian.T @ (precision[:, None] * jacobian)
    vector = np.random.default_rng(0).normal(size=weights.size)
    np.testing.assert_allclose(known.gauss_newton_product(weights, jnp.asarray(vector)), exact @ vector, rtol=1e-8)
    stds = with_spread_of_scales(posterior, theta)
    np.testing.assert_allclose(stds[posterior.num_params :][:3], (2 * 6 * np.array([2, 2, 3])) ** -0.5)


def test_predictions_have_the_noise_of_each_location(operator):
    posterior, theta = operator
    draws, space = np.asarray(theta)[None], whole_space(theta)
    truth = np.zeros((6, 7))
    for memory_mb in (256.0, 1e-4):  # all locations at once, and some at a time
        found = predict_posterior(posterior, space, draws, posterior.inputs, truth=truth, memory_mb=memory_mb)
        noise = np.broadcast_to(noise_of(posterior, theta), (6, 7))
        np.testing.assert_allclose(found.total_std, noise, rtol=1e-9)
        np.testing.assert_allclose(found.log_density, stats.norm(found.mean, noise).logpdf(0), rtol=1e-9)
        np.testing.assert_allclose(found.total_quantiles[2] - found.mean, 1.959964 * noise, rtol=1e-5)
        np.testing.assert_allclose(found.widths[2], 2 * 1.959964 * noise, rtol=1e-5)
        exact = noise * 2 * stats.norm.pdf(found.mean / noise)
        exact += found.mean * (2 * stats.norm.cdf(found.mean / noise) - 1) - noise / np.sqrt(np.pi)
        np.testing.assert_allclose(found.crps, exact, atol=0.1 * noise.max())
    nearby = posterior.locations[jnp.array([5, 0])] + 1e-3
    found = predict_posterior(posterior, space, draws, posterior.inputs, locations=nearby)
    np.testing.assert_allclose(found.total_std[0], noise_of(posterior, theta)[[5, 0]], rtol=1e-9)


def test_the_fit_finds_the_scales_that_maximise_the_exact_evidence(x64):
    """A linear model with seven outputs of three noises: the evidence is a Gaussian density of the targets."""
    rng = np.random.default_rng(3)
    x, weight = rng.normal(size=(9, 2)), rng.normal(size=(2, 7))
    y = x @ weight + rng.normal(size=(9, 7)) * np.array([0.1, 0.5, 2.0])[GROUPS]
    posterior = Posterior.of(
        lambda params, inputs: inputs @ params["weight"],
        {"weight": np.zeros((2, 7))},
        x,
        y,
        likelihood=Gaussian(noise_groups=GROUPS),
    )
    medians = np.append(np.asarray(posterior.likelihood.medians), 1.0)

    def negative_evidence(logs):
        scale, total = np.exp(logs), 0.0
        for output, group in enumerate(GROUPS):
            covariance = scale[3] ** 2 * x @ x.T + scale[group] ** 2 * np.eye(9)
            total += stats.multivariate_normal(np.zeros(9), covariance).logpdf(y[:, output])
        centred = logs - np.log(medians)
        return -(total + np.sum(centred - np.log1p(np.exp(2 * centred))))

    best = optimize.minimize(negative_evidence, np.zeros(4), method="BFGS", options={"gtol": 1e-7}).x
    theta = posterior.with_initial_scales(jnp.zeros(14))
    for _ in range(60):
        scale = np.exp(np.asarray(theta[14:]))
        mode = np.stack([
            np.linalg.solve(x.T @ x / scale[group] ** 2 + np.eye(2) / scale[3] ** 2, x.T @ y[:, i] / scale[group] ** 2)
            for i, group in enumerate(GROUPS)
        ], axis=1)  # fmt: skip
        theta = update_scales(
            Division(posterior, None), theta.at[:14].set(posterior.layout.ravel({"weight": mode})), jax.random.key(0)
        )
    np.testing.assert_allclose(theta[14:], best, atol=1e-4)


@pytest.mark.statistics
def test_chains_find_the_exact_posterior_of_the_noises_of_a_linear_operator(x64):
    """Only the bias and the three noises are sampled: their posterior is a sum over two grids. |z| < 5 each."""
    posterior = build(prior_std=1.0)
    count = posterior.num_params
    theta = posterior.with_initial_scales(0.3 * jax.random.normal(jax.random.key(0), (count,)))
    bias = posterior.layout.names.index("bias")
    space = Subspace.of(np.array([bias, count, count + 1, count + 2]), theta)
    q = MeanField(theta, jnp.full(theta.shape, 0.2))
    config = SamplerConfig(num_chains=8, num_warmup=300, num_draws=1000)
    sampled = sample_subspace(posterior, q, space, config, jax.random.key(1))

    c, u = np.linspace(-3, 3, 401), np.linspace(-3, 4, 701)
    centred = np.asarray(posterior.targets - posterior.predict(theta.at[bias].set(0.0), posterior.inputs))
    log_density, inner = stats.norm.logpdf(c), []
    for group, median in enumerate(np.asarray(posterior.likelihood.medians)):
        values = centred[:, group == GROUPS].ravel()
        squares = np.sum((values[None] - c[:, None]) ** 2, axis=1)
        logs = (
            -values.size * u - 0.5 * squares[:, None] * np.exp(-2 * u) - np.logaddexp(0, 2 * (u - np.log(median))) + u
        )
        inner.append(np.exp(logs - logs.max()))
        log_density = log_density + np.log(inner[-1].sum(axis=1)) + logs.max()
    of_bias = np.exp(log_density - log_density.max())
    of_bias /= of_bias.sum()
    exact = [(of_bias @ c, of_bias @ c**2)]
    for density in inner:
        given = density / density.sum(axis=1, keepdims=True)
        exact.append((of_bias @ given @ u, of_bias @ given @ u**2))
    draws = np.asarray(sampled.selected_positions)
    for index, moments in enumerate(exact):
        for power, value in enumerate(moments, start=1):
            terms = draws[..., index : index + 1] ** power
            found = assess(terms)
            error = terms.std() / np.sqrt(float(found.ess_bulk[0]))
            assert abs(terms.mean() - value) < 5 * error, (index, power, terms.mean(), value, error)


@pytest.mark.parametrize(
    ("likelihood", "sentence"),
    [
        (Gaussian(noise_groups=[0, 1]), r"`noise_groups` must be a whole number for each output, shape \(7,\)"),
        (Gaussian(noise_groups=[0, 1, 1, 0, 3, 3, 3]), "numbered 0, 1, 2, … without gaps, got none for group 2"),
        (Gaussian(0.1, noise_groups=GROUPS), "`noise_groups` must be left out where `noise_std` is given"),
        (StudentT(), "`likelihood` must be Gaussian for an operator, got StudentT"),
        (
            Gaussian(np.ones((6, 7))),
            r"or one per location, shape \(7,\), got \(6, 7\)",
        ),
    ],
)
def test_groups_that_cannot_be_used_are_one_sentence(x64, likelihood, sentence):
    with pytest.raises(InputError, match=sentence):
        build(likelihood=likelihood)
