import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from vihmc.posterior.likelihoods import Gaussian
from vihmc.predict import crps_of_samples, evaluate, predict


def test_predictive_of_a_linear_model_is_closed_form(precision, linear_gaussian):
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal(linear_gaussian.mean, linear_gaussian.covariance, size=20_000)
    inputs = linear_gaussian.features[:6] * 1.5
    result = predict(
        linear_gaussian.posterior.predict,
        jnp.asarray(draws),
        inputs,
        likelihood=Gaussian(0.3),
        quantiles=(0.05, 0.5, 0.95),
    )
    mean = inputs @ linear_gaussian.mean
    var = np.einsum("ni,ij,nj->n", inputs, linear_gaussian.covariance, inputs)
    count = len(draws)
    assert np.max(np.abs(result.mean[:, 0] - mean) / np.sqrt(var / count)) < 5
    assert np.max(np.abs(result.epistemic_std[:, 0] ** 2 / var - 1) / np.sqrt(2 / count)) < 5
    np.testing.assert_allclose(result.total_std**2, result.epistemic_std**2 + 0.09, rtol=1e-5)
    for i, level in enumerate((0.05, 0.5, 0.95)):
        for std, quantiles in (
            (np.sqrt(var), result.epistemic_quantiles),
            (np.sqrt(var + 0.09), result.total_quantiles),
        ):
            exact = stats.norm(mean, std).ppf(level)
            error = std * np.sqrt(level * (1 - level) / count) / stats.norm.pdf(stats.norm.ppf(level))
            assert np.max(np.abs(quantiles[i, :, 0] - exact) / error) < 5


@pytest.mark.parametrize("noise_std", [1e-3, 0.5, 20.0])
def test_total_quantiles_are_those_of_the_mixture(x64, noise_std):
    # Draws in two clumps, so that the mixture is far from a Gaussian.
    draws = np.concatenate([np.linspace(-4, -3, 7), np.linspace(2, 3, 4)])[:, None]
    levels = (0.01, 0.3, 0.63, 0.7, 0.99)
    identity = lambda theta, x: theta[None, :] * x
    result = predict(identity, jnp.asarray(draws), np.ones((1, 1)), likelihood=Gaussian(noise_std), quantiles=levels)
    for level, found in zip(levels, result.total_quantiles[:, 0, 0], strict=True):
        cdf = lambda y: stats.norm(draws[:, 0], noise_std).cdf(y).mean() - level  # noqa: B023
        exact = optimize.brentq(cdf, -200, 200, xtol=1e-12)
        # The tolerance of the search is on the level.
        assert abs(cdf(found)) < 1e-7
        if level < 0.64 or level > 0.62 + noise_std:
            assert abs(found - exact) < 0.01 * max(noise_std, 0.01) + 1e-3


def test_chunks_never_change_predictions(x64, linear_gaussian):
    draws = jax.random.normal(jax.random.key(0), (37, 5))
    arguments = (linear_gaussian.posterior.predict, draws, linear_gaussian.features)
    truth = linear_gaussian.targets
    whole = predict(*arguments, likelihood=Gaussian(0.3), truth=truth)
    parts = predict(*arguments, likelihood=Gaussian(0.3), truth=truth, memory_mb=7 * 37 * 8 / 1e6)
    # The search for total quantiles stops when its slowest point has converged, so chunks may stop at different steps.
    for name, values in whole.arrays().items():
        np.testing.assert_allclose(values, parts.arrays()[name], rtol=1e-5)
    values = evaluate(*arguments, memory_mb=7 * 37 * 8 / 1e6)
    np.testing.assert_allclose(values, np.einsum("dp,np->dn", draws, linear_gaussian.features)[..., None], rtol=1e-12)
    assert evaluate(arguments[0], draws[:36].reshape(4, 9, 5), arguments[2]).shape == (4, 9, 30, 1)


def test_noise_can_differ_between_outputs(x64):
    both = lambda theta, x: jnp.stack([theta[0] * x, theta[0] * x], axis=1)
    draws = jax.random.normal(jax.random.key(1), (500, 1))
    result = predict(both, draws, jnp.ones(2), likelihood=Gaussian(jnp.array([0.1, 3.0])))
    np.testing.assert_allclose(result.total_std[0] ** 2 - result.epistemic_std[0] ** 2, [0.01, 9.0])
    assert np.ptp(result.total_quantiles[:, 0, 1]) > 2 * np.ptp(result.total_quantiles[:, 0, 0])


def test_crps_of_samples_is_that_of_all_pairs(x64):
    samples = np.random.default_rng(0).normal(size=(9, 2))
    truth = np.array([0.3, -2.0])
    spread = np.abs(samples[:, None] - samples[None]).sum(axis=(0, 1)) / (9 * 8)
    exact = np.abs(samples - truth).mean(axis=0) - 0.5 * spread
    np.testing.assert_allclose(crps_of_samples(samples, truth), exact, rtol=1e-12)


def test_scores_are_those_of_an_observation_with_its_noise(x64):
    # All draws are equal, so the predictive distribution is one Gaussian; a score without the noise would be |y|.
    draws, truth = jnp.zeros((400, 1)), np.linspace(-3, 3, 50)[:, None]
    result = predict(lambda theta, x: theta * x, draws, np.ones((50, 1)), likelihood=Gaussian(1.5), truth=truth)
    law = stats.norm(0, 1.5)
    z = truth / 1.5
    crps = 1.5 * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    np.testing.assert_allclose(result.log_density, law.logpdf(truth), rtol=1e-10)
    np.testing.assert_allclose(result.pit, law.cdf(truth), rtol=1e-10)
    np.testing.assert_allclose(result.widths[:, :, 0], np.tile(2 * law.ppf([[0.75], [0.9], [0.975]]), 50), rtol=1e-6)
    # 2,000 samples: the error of a score is at most 1.5 / sqrt(2000) (|z| < 5 for each of 50).
    assert np.max(np.abs(result.crps - crps)) < 5 * 1.5 / np.sqrt(2000)


def test_a_noise_of_higher_precision_than_the_outputs(x64):
    """As an operator has it: networks in float32, the noise in float64."""
    draws = jnp.linspace(-1, 1, 20, dtype=jnp.float32)[:, None]
    identity = lambda theta, x: theta * x
    inputs = jnp.ones((3, 1), jnp.float32)
    found = predict(identity, draws, inputs, likelihood=Gaussian(jnp.asarray(0.5)), truth=np.zeros((3, 1)))
    assert found.total_quantiles.dtype == found.log_density.dtype == np.float32
    np.testing.assert_allclose(found.total_quantiles[1], 0, atol=1e-5)
