"""Likelihoods one by one: against SciPy, by their own samples, and by derivatives."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from vihmc import InputError, MethodConfig, Posterior, SamplerConfig, SelectionConfig, VIConfig, infer
from vihmc.models.mlp import MLP
from vihmc.posterior.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    GaussianWithScale,
    Likelihood,
    Poisson,
    StudentT,
)
from vihmc.predict import Mixture, predict

F = np.array([[0.3], [-1.2], [2.0]])
Y = np.array([[0.1], [-1.0], [4.0]])
WITH_SCALE = np.concatenate([F, np.array([[0.2], [-0.5], [0.1]])], axis=1)
U = np.log([0.7])
T_SCALES = np.log([0.7, 3.0])


def bound(likelihood, targets=Y, outputs=F):
    return likelihood.bind(jnp.asarray(targets), jax.ShapeDtypeStruct(outputs.shape, jnp.float64))


CASES = {
    "gaussian": (Gaussian(), Y, F, U, stats.norm(F, 0.7)),
    "gaussian, known": (Gaussian(0.4), Y, F, np.zeros(0), stats.norm(F, 0.4)),
    "gaussian with scale": (GaussianWithScale(), Y, WITH_SCALE, np.zeros(0), stats.norm(F, np.exp(WITH_SCALE[:, 1:]))),
    "student t": (StudentT(), Y, F, T_SCALES, stats.t(5.0, F, 0.7)),
    "student t, known": (StudentT(0.4, 4.0), Y, F, np.zeros(0), stats.t(4.0, F, 0.4)),
    "bernoulli": (Bernoulli(), np.array([[1.0], [0.0], [1.0]]), F, np.zeros(0), stats.bernoulli(1 / (1 + np.exp(-F)))),
    "poisson": (Poisson(), np.array([[1.0], [0.0], [9.0]]), F, np.zeros(0), stats.poisson(np.exp(F))),
}


@pytest.fixture(params=CASES, name="case")
def one_case(request, x64):
    likelihood, targets, outputs, log_scales, law = CASES[request.param]
    arrays = map(jnp.asarray, (targets, outputs, log_scales))
    return bound(likelihood, targets, outputs), *arrays, law


def test_log_probability_mean_and_variance_are_those_of_scipy(case):
    likelihood, targets, outputs, log_scales, law = case
    log_prob = getattr(law, "logpdf", None) if not likelihood.is_discrete else law.logpmf
    np.testing.assert_allclose(likelihood.log_prob(targets, outputs, log_scales), log_prob(targets), rtol=1e-9)
    np.testing.assert_allclose(likelihood.mean(outputs, log_scales), law.mean() * np.ones_like(F), rtol=1e-9)
    np.testing.assert_allclose(likelihood.variance(outputs, log_scales), law.var() * np.ones_like(F), rtol=1e-9)
    total = likelihood.log_likelihood(targets, outputs, log_scales)
    np.testing.assert_allclose(total, log_prob(targets).sum(), rtol=1e-9)
    if not likelihood.is_discrete:
        np.testing.assert_allclose(likelihood.cdf(targets, outputs, log_scales), law.cdf(targets), rtol=1e-6)


def test_precision_is_the_variance_of_the_score(case):
    """Fisher information by its definition, from 40,000 samples (|z| < 5 for each output)."""
    likelihood, _, outputs, log_scales, _ = case
    keys = jax.random.split(jax.random.key(0), 40_000)
    samples = jax.vmap(lambda key: likelihood.sample(key, outputs, log_scales))(keys)
    slope = jax.grad(lambda outputs, targets: likelihood.log_likelihood(targets, outputs, log_scales))
    squares = np.asarray(jax.vmap(lambda y: slope(outputs, y))(samples)) ** 2
    error = squares.std(axis=0) / np.sqrt(len(squares))
    assert np.max(np.abs(squares.mean(axis=0) - likelihood.precision(outputs, log_scales)) / error) < 5
    tangent = jnp.ones_like(outputs)
    product = likelihood.precision_product(outputs, log_scales, tangent)
    np.testing.assert_allclose(product, likelihood.precision(outputs, log_scales), rtol=1e-12)


def test_samples_have_the_law(case):
    likelihood, _, outputs, log_scales, law = case
    keys = jax.random.split(jax.random.key(1), 20_000)
    samples = np.asarray(jax.vmap(lambda key: likelihood.sample(key, outputs, log_scales))(keys))
    error = law.std() / np.sqrt(len(samples))
    assert np.max(np.abs(samples.mean(axis=0) - law.mean()) / error) < 5


def test_known_scales_give_the_same_probabilities(case):
    likelihood, targets, outputs, log_scales, _ = case
    known = likelihood.given(log_scales)
    assert known.num_scales == 0
    nothing = jnp.zeros(0)
    np.testing.assert_allclose(
        known.log_prob(targets, outputs, nothing), likelihood.log_prob(targets, outputs, log_scales), rtol=1e-12
    )


def test_categorical_probabilities_and_fisher_information(x64):
    outputs, labels = jnp.asarray([[0.1, 1.0, -2.0], [2.0, 0.3, 0.0]]), jnp.asarray([1.0, 2.0])
    likelihood = bound(Categorical(), labels, outputs)
    nothing = jnp.zeros(0)
    probabilities = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(likelihood.mean(outputs, nothing), probabilities, rtol=1e-12)
    np.testing.assert_allclose(
        likelihood.log_prob(labels, outputs, nothing), np.log(probabilities[[0, 1], [1, 2]]), rtol=1e-12
    )
    hessian = -jax.hessian(lambda f: likelihood.log_likelihood(labels[:1], f[None], nothing))(outputs[0])
    tangent = jnp.asarray([[0.3, -1.0, 2.0], [1.0, 0.0, 0.0]])
    product = likelihood.precision_product(outputs, nothing, tangent)
    np.testing.assert_allclose(product[0], hessian @ tangent[0], rtol=1e-9)
    np.testing.assert_allclose(likelihood.precision(outputs, nothing)[0], np.diag(hessian), rtol=1e-9)
    with pytest.raises(InputError, match="must be 'mean' for classes"):
        likelihood.perturb(jax.random.key(0), labels, outputs, nothing)


def test_one_noise_per_output_and_per_observation(x64):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.normal(size=(40, 2)) * [1, 10]
    model = MLP((3, 2))
    params = model.init(jax.random.key(0))
    learnt = Posterior.of(model, params, x, y, prior_std=1.0)
    assert learnt.layout.scale_names == ("noise_std[0]", "noise_std[1]")
    np.testing.assert_allclose(learnt.likelihood.medians, y.std(axis=0), rtol=1e-12)
    shared = Posterior.of(model, params, x, y, prior_std=1.0, likelihood=Gaussian(per_output=False))
    assert shared.layout.scale_names == ("noise_std",)
    stds = rng.uniform(0.5, 2, size=y.shape)
    each = Posterior.of(model, params, x, y, prior_std=1.0, noise_std=stds)
    theta = each.layout.ravel(params)
    residual = y - np.asarray(model.apply(params, jnp.asarray(x)))
    np.testing.assert_allclose(each.log_likelihood(theta), stats.norm(0, stds).logpdf(residual).sum(), rtol=1e-9)
    batch = jnp.asarray([3, 11, 0])
    of_batch = 40 / 3 * stats.norm(0, stds[batch]).logpdf(residual[batch]).sum()
    np.testing.assert_allclose(each.log_likelihood(theta, batch), of_batch, rtol=1e-9)
    np.testing.assert_allclose(each.likelihood.at_new_inputs().noise_std, np.sqrt(np.mean(stds**2, axis=0)), rtol=1e-9)
    # The Gauss–Newton product has the precision of each observation.
    jacobian = jax.jacobian(lambda theta: each.predict(theta, each.inputs).ravel())(theta)
    matrix = jacobian.T @ (jacobian / stds.ravel()[:, None] ** 2)
    tangent = jnp.cos(jnp.arange(theta.size, dtype=float))
    np.testing.assert_allclose(each.gauss_newton_product(theta, tangent), matrix @ tangent, rtol=1e-9)


def test_quantiles_of_a_mixture_of_heavy_tails(x64):
    likelihood = bound(StudentT(0.5, 1.5))  # has no variance
    values, levels = jnp.asarray([[[-3.0]], [[1.0]], [[1.5]]]), np.array([0.001, 0.2, 0.5, 0.99])
    found = Mixture(likelihood, values, jnp.zeros((3, 0))).quantiles(levels)[:, 0, 0]
    law = stats.t(1.5, np.array([-3.0, 1.0, 1.5])[:, None], 0.5)
    np.testing.assert_allclose(law.cdf(found).mean(axis=0), levels, atol=1e-6)


def test_counts_are_predicted_and_scored(x64):
    draws = jnp.log(jnp.asarray([[2.0], [4.0]]))
    counts = np.array([[0.0], [3.0], [20.0]])
    found = predict(
        lambda theta, x: jnp.broadcast_to(theta, x.shape), draws, np.ones((3, 1)), likelihood=Poisson(), truth=counts
    )
    exact = np.log((stats.poisson(2).pmf(counts) + stats.poisson(4).pmf(counts)) / 2)
    np.testing.assert_allclose(found.log_density, exact, rtol=1e-9)
    np.testing.assert_allclose(found.mean, 3.0)
    np.testing.assert_allclose(found.total_std**2, 2.0 + 3.0)  # variance of the rates (two draws), and mean rate
    assert np.all(found.total_quantiles == np.round(found.total_quantiles))


@pytest.mark.parametrize(
    ("likelihood", "targets", "outputs", "sentence"),
    [
        (Poisson(), [[1.0], [-2.0]], (2, 1), r"`targets` must be counts, 0, 1, 2, …, got -2 at index \(1, 0\)"),
        (Poisson(), [[1.0], [0.5]], (2, 1), "must be counts"),
        (Bernoulli(), [[1.0], [2.0]], (2, 1), r"class numbers from 0 to 1, got 2 at index \(1, 0\)"),
        (Categorical(), [0.0, 3.0], (2, 3), r"class numbers from 0 to 2, got 3 at index \(1,\)"),
        (Categorical(), [[0.0], [1.0]], (2, 3), "one class number for each row"),
        (GaussianWithScale(), [[0.0], [1.0]], (2, 1), r"a mean and a log std for every target, shape \(2, 2\)"),
        (StudentT(degrees=-1), [[0.0], [1.0]], (2, 1), "`degrees` must be positive"),
        (StudentT(), [[1.0], [1.0]], (2, 1), "`targets` must vary for a noise std to be learnt"),
        (Gaussian(0.0), [[1.0], [1.0]], (2, 1), "`noise_std` must be positive"),
    ],
)
def test_wrong_targets_are_one_sentence(x64, likelihood, targets, outputs, sentence):
    with pytest.raises(InputError, match=sentence):
        likelihood.bind(jnp.asarray(targets), jax.ShapeDtypeStruct(outputs, jnp.float64))


@dataclass(frozen=True, eq=False)
class Laplacian(Likelihood):
    """A likelihood of one's own, as docs/guides/noise.md has it."""

    scale: float = 1.0

    def log_prob(self, targets, outputs, log_scales):
        return -jnp.abs(targets - outputs) / self.scale - jnp.log(2 * self.scale)

    def precision(self, outputs, log_scales):
        return jnp.full_like(outputs, 1 / self.scale**2)

    def variance(self, outputs, log_scales):
        return jnp.full_like(outputs, 2 * self.scale**2)

    def sample(self, rng_key, outputs, log_scales):
        return outputs + self.scale * jax.random.laplace(rng_key, outputs.shape, outputs.dtype)

    def cdf(self, values, outputs, log_scales):
        return jax.scipy.stats.laplace.cdf(values, outputs, self.scale)


SHORT = MethodConfig(
    first_stage="laplace",
    vi=VIConfig(map_steps=300, num_bound_samples=2),
    selection=SelectionConfig(threshold=1.0),
    hmc=SamplerConfig(num_chains=4, num_warmup=100, num_draws=50, max_integration_steps=31),
)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
TARGETS = {
    "student_t": (StudentT(), X[:, :1] + RNG.standard_t(3, size=(40, 1)), 1),
    "gaussian_with_scale": (GaussianWithScale(), X[:, :1] * RNG.normal(size=(40, 1)), 2),
    "bernoulli": (Bernoulli(), (X[:, :1] > 0).astype(float), 1),
    "categorical": (Categorical(), np.digitize(X[:, 0], [-0.5, 0.5]).astype(float), 3),
    "poisson": (Poisson(), RNG.poisson(np.exp(X[:, :1])).astype(float), 1),
    "of one's own": (Laplacian(0.5), X[:, :1] + RNG.laplace(0, 0.5, size=(40, 1)), 1),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "categorical" else pytest.mark.slow) for name in TARGETS],
)
def test_every_likelihood_goes_through_the_pipeline(x64, name):
    likelihood, targets, num_outputs = TARGETS[name]
    model = MLP((2, 4, num_outputs))
    params = model.init(jax.random.key(0))
    posterior = Posterior.of(model, params, X, targets, likelihood=likelihood)
    result = infer(posterior, SHORT, initial_params=params, validation=(X, targets))
    predicted = result.predict(X, truth=targets)
    assert predicted.mean.shape == ((40, 3) if name == "categorical" else (40, 1))
    assert np.all(np.isfinite(predicted.log_density))
    assert np.all(predicted.total_std >= predicted.epistemic_std)
    # Better than knowing nothing but the targets' own distribution.
    if likelihood.is_discrete:
        frequencies = np.unique(targets, return_counts=True)[1] / 40
        assert predicted.log_density.mean() > np.sum(frequencies * np.log(frequencies))
