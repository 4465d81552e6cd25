"""Noise and prior scales that are learnt: closed forms, evidence, chains and simulation-based calibration."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from linear import linear_apply
from vihmc import InputError, MethodConfig, Posterior, SamplerConfig, SelectionConfig, VIConfig, infer
from vihmc.diagnostics.calibration import draw_from_prior, ranks, simulate, uniformity
from vihmc.diagnostics.convergence import assess
from vihmc.fit import laplace, vi
from vihmc.fit.evidence import _estimated_shares, _exact_shares, hold_out, update_scales
from vihmc.models.deeponet import DeepONet
from vihmc.models.features import Scaling
from vihmc.models.mlp import MLP
from vihmc.models.standardised import Standardised
from vihmc.posterior.likelihoods import Gaussian
from vihmc.posterior.mean_field import MeanField, estimate_elbo
from vihmc.posterior.operator import OperatorPosterior
from vihmc.posterior.priors import Prior
from vihmc.posterior.scales import log_half_cauchy, most_probable_scale
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.posterior.vectorised import restrict_vectorised
from vihmc.predict import predict_posterior
from vihmc.samplers.marginal_last_layer import MarginalLastLayer
from vihmc.samplers.third_stage import sample_subspace


class Linear:
    """A linear model whose noise and prior scale are unknown: integrals over two numbers are all that is left.

    Given the two scales the weights are Gaussian, so the posterior of the scales is known up to a constant on a grid.
    """

    def __init__(self, seed=3, n=25, p=4, noise=0.4):
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(n, p))
        self.y = self.x @ rng.normal(0, 1.3, size=(p, 1)) + noise * rng.normal(size=(n, 1))
        self.posterior = Posterior.of(
            linear_apply, {"weight": np.zeros((p, 1))}, self.x, self.y, prior=Prior(scales="one")
        )
        self.log_noise, self.log_prior = (np.linspace(*ends, 240) for ends in ((-2.5, 1.0), (-2.5, 4.5)))
        grid = np.stack(np.meshgrid(self.log_noise, self.log_prior, indexing="ij"), axis=-1).reshape(-1, 2)
        values, vectors = np.linalg.eigh(self.x @ self.x.T)
        rotated = (vectors.T @ self.y[:, 0]) ** 2
        variances = np.exp(2 * grid[:, :1]) + np.exp(2 * grid[:, 1:]) * np.maximum(values, 0)
        log_evidence = -0.5 * np.sum(rotated / variances + np.log(2 * np.pi * variances), axis=1)
        hyper = stats.halfcauchy(scale=[self.y.std(), 1.0]).logpdf(np.exp(grid)).sum(axis=1) + grid.sum(axis=1)
        density = np.exp(log_evidence + hyper - (log_evidence + hyper).max())
        self.grid, self.weights = grid, density / density.sum()

    def mean_and_var(self, values):
        mean = self.weights @ values
        return mean, self.weights @ (values - mean) ** 2

    def given(self, inputs):
        """Mean and variance of the noise-free prediction given every pair of scales."""
        noise_var, prior_var = np.exp(2 * self.grid).T
        values, vectors = np.linalg.eigh(self.x.T @ self.x)
        along = inputs @ vectors
        shrink = 1 / (values / noise_var[:, None] + 1 / prior_var[:, None])
        mean = (shrink * (vectors.T @ self.x.T @ self.y[:, 0]) / noise_var[:, None]) @ along.T
        return mean, shrink @ (along**2).T

    def predictive(self, inputs):
        """Mean and variance of the noise-free prediction."""
        mean, var = self.given(inputs)
        average = self.weights @ mean
        return average, self.weights @ (var + mean**2) - average**2

    def cdf(self, inputs, values):
        """Distribution function of an observation."""
        mean, var = self.given(inputs)
        std = np.sqrt(var + np.exp(2 * self.grid[:, :1]))
        return self.weights @ stats.norm(mean, std).cdf(values)


@pytest.fixture(scope="module")
def linear():
    with jax.enable_x64(True):
        yield Linear()


def test_half_cauchy_is_that_of_scipy_in_logarithms(x64):
    u, medians = np.array([-2.0, 0.3, 4.0]), np.array([0.5, 1.0, 7.0])
    exact = np.sum(stats.halfcauchy(scale=medians).logpdf(np.exp(u)) + u)
    np.testing.assert_allclose(log_half_cauchy(jnp.asarray(u), jnp.asarray(medians)), exact, rtol=1e-12)


@pytest.mark.parametrize(("squares", "count"), [(3.0, 7.0), (1e-6, 40.0), (500.0, 0.3), (1e4, 1e6)])
def test_the_most_probable_scale_maximises_its_density(x64, squares, count):
    def negative(u):
        return (
            count * u + 0.5 * squares * np.exp(-2 * u) - float(log_half_cauchy(jnp.array([float(u)]), jnp.array([0.7])))
        )

    found = most_probable_scale(jnp.array([squares]), jnp.array([count]), jnp.array([0.7]))
    best = optimize.minimize_scalar(negative, bracket=(-6, 2), tol=1e-10).x
    np.testing.assert_allclose(np.log(found[0]), best, atol=1e-5)


def test_log_density_has_every_term(x64, linear):
    theta = jnp.asarray([0.3, -0.2, 0.5, 0.1, np.log(0.6), np.log(1.7)])
    posterior = linear.posterior
    assert posterior.layout.names[-2:] == ("log noise_std", "log prior_std")
    assert (posterior.num_params, posterior.dim) == (4, 6)
    hyper = stats.halfcauchy(scale=[linear.y.std(), 1.0]).logpdf([0.6, 1.7]).sum() + np.log(0.6 * 1.7)
    prior = stats.norm(0, 1.7).logpdf(theta[:4]).sum()
    likelihood = stats.norm(0, 0.6).logpdf(linear.y[:, 0] - linear.x @ theta[:4]).sum()
    np.testing.assert_allclose(posterior.log_density(theta), hyper + prior + likelihood, rtol=1e-12)
    known = posterior.given_scales(theta)
    np.testing.assert_allclose(known.log_density(theta[:4]), prior + likelihood, rtol=1e-12)


SAMPLERS = {"sampled jointly": {"metric": "adapted"}, "integrated out": {"metric": "fisher"}}


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_chains_have_the_exact_scales_and_predictions(x64, linear, sampler):
    posterior = linear.posterior
    fit = laplace.fit(posterior, VIConfig(map_steps=1000, num_bound_samples=2), jax.random.key(0))
    config = SamplerConfig(num_chains=8, num_warmup=500, num_draws=2000, jitter=1.0, **SAMPLERS[sampler])
    sampled = sample_subspace(posterior, fit.q, whole_space(fit.q.mean), config, jax.random.key(1))
    found = assess(sampled.chains.positions)
    for index, values in ((4, linear.grid[:, 0]), (5, linear.grid[:, 1])):
        exact, _ = linear.mean_and_var(values)
        assert abs(sampled.draws[:, index].mean() - exact) < 5 * found.mcse_mean[index]
    inputs = np.random.default_rng(1).normal(size=(5, 4))
    predicted = predict_posterior(
        posterior, sampled.space, sampled.draws, inputs, quantiles=(0.05, 0.5, 0.95), truth=inputs[:, :1]
    )
    mean, var = linear.predictive(inputs)
    values = sampled.chains.positions[..., :4] @ inputs.T
    outputs = assess(values)
    assert np.max(np.abs(predicted.mean[:, 0] - mean) / outputs.mcse_mean) < 5
    squares = assess((values - mean) ** 2)
    assert np.max(np.abs(values.reshape(-1, 5).var(axis=0) - var) / squares.mcse_mean) < 5
    for level, quantile in zip((0.05, 0.5, 0.95), predicted.total_quantiles[:, :, 0], strict=True):
        # The level that a quantile really has; the error of a level is below that of a share of independent draws.
        error = np.sqrt(level * (1 - level) / outputs.ess_bulk.min())
        assert np.max(np.abs(linear.cdf(inputs, quantile) - level)) < 5 * error
    np.testing.assert_allclose(predicted.pit[:, 0], linear.cdf(inputs, inputs[:, 0]), atol=5 * 0.5 / 30)


@pytest.mark.statistics
@pytest.mark.parametrize("fault", ["noise held", "prior held"])
def test_a_scale_that_is_not_updated_is_noticed(x64, linear, fault):
    posterior = linear.posterior
    fit = laplace.fit(posterior, VIConfig(map_steps=1000, num_bound_samples=2), jax.random.key(0))
    held = 4 if fault == "noise held" else 5
    # Where inference of the noise starts; and a prior that is narrower than the weights.
    start = posterior.with_initial_scales(fit.q.mean[:4]).at[5].set(np.log(0.1))
    space = Subspace.of([index for index in range(6) if index != held], start)
    config = SamplerConfig(num_chains=8, num_warmup=500, num_draws=2000, jitter=1.0)
    sampled = sample_subspace(posterior, fit.q, space, config, jax.random.key(1))
    inputs = np.random.default_rng(1).normal(size=(5, 4))
    values = sampled.chains.positions[..., :4] @ inputs.T
    mean, var = linear.predictive(inputs)
    z_of_mean = (values.mean(axis=(0, 1)) - mean) / assess(values).mcse_mean
    z_of_var = (values.reshape(-1, 5).var(axis=0) - var) / assess((values - mean) ** 2).mcse_mean
    assert max(np.abs(z_of_mean).max(), np.abs(z_of_var).max()) > 5


def test_the_evidence_has_its_maximum_where_the_fit_ends(x64, linear):
    """For a linear model the Gauss–Newton evidence is exact; the fit adds the hyperprior of each scale."""
    fit = laplace.fit(linear.posterior, VIConfig(map_steps=4000, num_bound_samples=2), jax.random.key(0))

    def negative(u):
        cov = np.exp(2 * u[0]) * np.eye(25) + np.exp(2 * u[1]) * linear.x @ linear.x.T
        hyper = stats.halfcauchy(scale=[linear.y.std(), 1.0]).logpdf(np.exp(u)).sum() + u.sum()
        return -stats.multivariate_normal(np.zeros(25), cov).logpdf(linear.y[:, 0]) - hyper

    best = optimize.minimize(negative, np.asarray(fit.q.mean[4:]), method="Nelder-Mead", tol=1e-8).x
    # The fixed point weighs the hyperprior by the effective number of parameters, which differs a little.
    np.testing.assert_allclose(fit.q.mean[4:], best, atol=0.05)


def test_effective_numbers_are_those_of_the_closed_form(x64):
    rows = np.random.default_rng(0).normal(size=(12, 7)) * np.linspace(0.1, 3, 7)
    exact = 1 - np.diag(np.linalg.inv(np.eye(7) + rows.T @ rows))
    for some in (rows, rows[:5]):
        shares, leverages = _exact_shares(some)
        np.testing.assert_allclose(shares, 1 - np.diag(np.linalg.inv(np.eye(7) + some.T @ some)), rtol=1e-10)
        np.testing.assert_allclose(
            leverages, 1 - np.diag(np.linalg.inv(np.eye(len(some)) + some @ some.T)), rtol=1e-9, atol=1e-12
        )
    product = jax.tree_util.Partial(lambda matrix, v: matrix @ v, jnp.asarray(rows.T @ rows))
    shares = np.stack([
        _estimated_shares(product, key, size=7, dtype=np.dtype("float64"), num_probes=8)
        for key in jax.random.split(jax.random.key(0), 200)
    ])  # fmt: skip
    assert np.max(np.abs(shares.mean(axis=0) - exact) / (shares.std(axis=0, ddof=1) / np.sqrt(200) + 1e-12)) < 5


def test_without_the_effective_number_the_noise_of_an_interpolating_network_vanishes(x64):
    rng = np.random.default_rng(0)
    x = np.linspace(-1, 1, 30)[:, None]
    y = np.sin(3 * x) + 0.2 * rng.normal(size=x.shape)
    model = MLP((1, 40, 1))
    posterior = Posterior.of(model, model.init(jax.random.key(0)), x, y)
    start = posterior.layout.ravel(model.init(jax.random.key(1)))
    fit = laplace.fit(posterior, VIConfig(map_steps=3000), jax.random.key(0), initial_mean=start)
    noise = float(np.exp(fit.q.mean[posterior.num_params]))
    assert 0.12 < noise < 0.3


def test_the_noise_of_a_large_model_comes_from_what_the_fit_leaves_out(x64, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 5))
    y = x @ rng.normal(size=(5, 1)) + 0.3 * rng.normal(size=(400, 1))
    posterior = Posterior.of(linear_apply, {"weight": np.zeros((5, 1))}, x, y, prior_std=1.0)
    assert hold_out(posterior).held_out is None
    monkeypatch.setattr("vihmc.posterior.cut._MANY_PARAMS", 4)
    division = hold_out(posterior)
    sizes = division.fitted.num_observations, division.held_out.num_observations
    assert sizes == (380, 20)
    rows = np.concatenate([division.fitted.targets, division.held_out.targets])
    np.testing.assert_array_equal(np.sort(rows, axis=0), np.sort(y, axis=0))
    theta = jnp.concatenate([jnp.zeros(5), jnp.zeros(1)])
    updated = update_scales(division, theta, jax.random.key(0))
    rms = np.sqrt(np.mean(np.asarray(division.held_out.targets) ** 2))
    np.testing.assert_allclose(np.exp(updated[5]), rms, rtol=0.05)


def test_the_bound_of_weights_and_scales_together(x64, linear):
    """Given q, the bound is the expectation of log density minus log q, here by sampling both."""
    q = MeanField(jnp.asarray([1.0, -0.5, 0.2, 0.1, -0.8, 0.4]), jnp.asarray([0.1, 0.2, 0.1, 0.3, 0.15, 0.4]))
    thetas = q.sample(jax.random.key(3), 40_000)
    log_q = stats.norm(q.mean, q.std).logpdf(thetas).sum(axis=1)
    values = np.asarray(jax.vmap(linear.posterior.log_density)(thetas)) - log_q
    bound = estimate_elbo(linear.posterior, q, jax.random.key(4), 20_000)
    error = np.hypot(bound.standard_error, values.std() / np.sqrt(len(values)))
    assert abs(bound.value - values.mean()) < 5 * error


def test_vi_learns_scales_too(x64, linear):
    fit = vi.fit(linear.posterior, VIConfig(num_steps=6000, map_steps=500, num_samples=8), jax.random.key(0))
    mean, var = linear.mean_and_var(linear.grid[:, 0])
    # Mean-field VI has the scale near the posterior's: the weights' own variance is known to it.
    assert abs(float(fit.q.mean[4]) - mean) < np.sqrt(var)
    with pytest.raises(InputError, match=r"`vi.objective` must be 'elbo' where scales are learnt"):
        vi.fit(linear.posterior, VIConfig(objective="published"), jax.random.key(0))


def test_frozen_weights_count_in_their_scale(x64, linear):
    """With all weights frozen the scale of the prior has the closed form of Gaussian values."""
    weights = jnp.asarray([2.0, -1.0, 1.5, 0.5])
    center = jnp.concatenate([weights, jnp.asarray([-1.0, 0.0])])
    space = Subspace.of([4, 5], center)
    density = jax.jit(linear.posterior.restrict(space))
    grid = np.linspace(-3, 4, 60)
    found = np.array([density(jnp.asarray([-1.0, u])) for u in grid])
    exact = stats.norm(0, np.exp(grid)[:, None]).logpdf(np.asarray(weights)).sum(axis=1)
    exact += stats.halfcauchy(scale=1.0).logpdf(np.exp(grid)) + grid
    np.testing.assert_allclose(found - found[0], exact - exact[0], atol=1e-9)


@pytest.mark.statistics
def test_ranks_of_weights_and_scales_are_uniform(x64):
    """Simulation-based calibration: 200 data sets; a p-value below 1e-4 has a false-alarm rate of 1e-4 for each."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(20, 3))
    base = Posterior.of(
        linear_apply, {"weight": np.zeros((3, 1))}, x, x[:, :1],
        prior=Prior(scales="one"), likelihood=Gaussian(medians=1.0),
    )  # fmt: skip
    config = SamplerConfig(num_chains=4, num_warmup=300, num_draws=25, thin=8, jitter=1.0)
    found = []
    for key in jax.random.split(jax.random.key(7), 200):
        key_data, key_fit, key_chains = jax.random.split(key, 3)
        simulated = simulate(base, key_data)
        fit = laplace.fit(simulated.posterior, VIConfig(map_steps=300, num_bound_samples=2), key_fit)
        sampled = sample_subspace(simulated.posterior, fit.q, whole_space(fit.q.mean), config, key_chains)
        found.append(ranks(sampled.draws, simulated.theta))
    found = np.array(found)
    for quantity in range(found.shape[1]):
        assert uniformity(found[:, quantity], 100) > 1e-4


def test_draws_of_the_prior_have_its_law(x64, linear):
    keys = jax.random.split(jax.random.key(0), 4000)
    thetas = np.asarray(jax.vmap(lambda key: draw_from_prior(linear.posterior, key))(keys))
    for index, scale in ((4, linear.y.std()), (5, 1.0)):
        assert stats.kstest(np.exp(thetas[:, index]), stats.halfcauchy(scale=scale).cdf).pvalue > 1e-5
    assert stats.kstest(thetas[:, 0] / np.exp(thetas[:, 5]), stats.norm.cdf).pvalue > 1e-5


def narrow(units):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 2)), 3 + 2 * rng.normal(size=(20, 2))
    network = MLP((2, 6, 2))
    model = Standardised(network, Scaling.of(x), Scaling.of(y)) if units else network
    return Posterior.of(model, network.init(jax.random.key(0)), x, y)


@pytest.mark.slow
@pytest.mark.parametrize("units", [False, True], ids=["plain", "units"])
def test_vectorised_chains_and_the_marginal_layer_have_the_same_density(x64, units):
    posterior = narrow(units)
    thetas = 0.3 * jax.random.normal(jax.random.key(1), (5, posterior.dim))
    plain = jax.vmap(posterior.log_density)(thetas)
    space = whole_space(thetas[0])
    fast = jax.vmap(restrict_vectorised(posterior, space))(thetas)
    np.testing.assert_allclose(fast, plain, rtol=1e-9)
    marginal = MarginalLastLayer.of(posterior, space)
    below = np.asarray(marginal.below.extract(thetas))
    values = jax.vmap(marginal.log_density())(jnp.asarray(below))
    # Given everything else the output layer is Gaussian: density of all over its conditional is the marginal.
    conditional = [
        log_conditional(posterior, theta, np.setdiff1d(np.arange(posterior.dim), marginal.below.selected))
        for theta in thetas
    ]
    np.testing.assert_allclose(values, np.asarray(plain) - np.array(conditional), rtol=1e-7)


def log_conditional(posterior, theta, indices):
    """Log density of a Gaussian block given the rest, from derivatives."""
    block = Subspace.of(indices, theta)
    density = posterior.restrict(block)
    position = block.extract(theta)
    precision = -np.asarray(jax.jacrev(jax.grad(density))(position))
    mean = position + np.linalg.solve(precision, np.asarray(jax.grad(density)(position)))
    return stats.multivariate_normal(mean, np.linalg.inv(precision)).logpdf(position)


@pytest.mark.slow
def test_an_operator_with_learnt_scales_has_the_density_of_its_predictions(x64):
    model = DeepONet.of_size(num_sensors=3, num_coordinates=2, branch_hidden=(5,), trunk_hidden=(4,), latent_size=3)
    rng = np.random.default_rng(0)
    functions, locations = rng.normal(size=(6, 3)), rng.normal(size=(7, 2))
    fields = rng.normal(size=(6, 7))
    posterior = OperatorPosterior.on_pairs(model, functions, locations, fields, dtype="float64")
    theta = 0.3 * jax.random.normal(jax.random.key(0), (posterior.dim,))
    known = posterior.given_scales(theta)
    noise = float(np.exp(theta[posterior.num_params]))
    residual = fields - np.asarray(posterior.predict(theta, posterior.inputs))
    expected = stats.norm(0, noise).logpdf(residual).sum()
    np.testing.assert_allclose(posterior.log_likelihood(theta), expected, rtol=1e-9)
    np.testing.assert_allclose(known.log_likelihood(theta[: posterior.num_params]), expected, rtol=1e-9)
    selected = np.sort(np.concatenate([
        rng.choice(posterior.num_params, 11, replace=False), np.arange(posterior.num_params, posterior.dim)
    ]))  # fmt: skip
    space = Subspace.of(selected, theta)
    position = space.extract(theta) + 0.1
    fast, slow = posterior.restrict(space), space.restrict(posterior.log_density)
    np.testing.assert_allclose(fast(position), slow(position), rtol=1e-9)
    np.testing.assert_allclose(jax.grad(fast)(position), jax.grad(slow)(position), rtol=1e-6)


def test_a_pretrained_network_is_where_the_prior_is(x64):
    model = MLP((1, 3, 1))
    params = model.init(jax.random.key(0))
    x = np.linspace(-1, 1, 12)[:, None]
    posterior = Posterior.of(model, params, x, x, prior=Prior(std=0.1, mean=params), noise_std=0.1)
    weights = posterior.layout.ravel(params)
    exact = stats.norm(0, 0.1).logpdf(np.full(weights.size, 0.05)).sum()
    np.testing.assert_allclose(posterior.log_prior(weights + 0.05), exact, rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"targets": np.ones((9, 1))}, "`targets` must vary for a noise std to be learnt, got 1 everywhere"),
        ({"inputs": np.ones((1, 1)), "targets": np.ones((1, 1))}, "at least 2 observations to learn a noise std"),
        ({"noise_std": 1.0, "likelihood": Gaussian()}, "`noise_std` must be left out where `likelihood` is given"),
        ({"prior_std": 1.0, "prior": Prior()}, "`prior_std` must be left out where `prior` is given"),
        ({"prior": Prior(scales="each")}, "`scales` must be 'per_array' or 'one', got 'each'"),
    ],
)
def test_a_scale_that_cannot_be_learnt_is_one_sentence(change, sentence):
    x = np.linspace(-1, 1, 9)[:, None]
    arguments = {"inputs": x, "targets": x**2} | change
    with pytest.raises(InputError, match=sentence):
        Posterior.of(
            linear_apply, {"weight": np.zeros((1, 1))}, arguments.pop("inputs"), arguments.pop("targets"), **arguments
        )


def test_the_pipeline_learns_scales_and_always_samples_them(x64, linear):
    config = MethodConfig(
        first_stage="laplace",
        vi=VIConfig(map_steps=500, num_bound_samples=2),
        selection=SelectionConfig(count=2),
        hmc=SamplerConfig(num_chains=4, num_warmup=200, num_draws=100),
    )
    result = infer(linear.posterior, config)
    assert result.subspace.selected.tolist()[-2:] == [4, 5]
    assert len(result.selected.indices) == 2
    predicted = result.predict(linear.x, truth=linear.y)
    assert np.isfinite(predicted.log_density).all()
    assert 0 <= result.frozen_share(linear.x) < 1
    assert 0 < result.captured_at(linear.x).mean <= 1
    twice = replace(linear.posterior)
    assert twice.num_scales == 2
