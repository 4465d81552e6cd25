"""The promises of docs/evidence/contract.md, on models whose posterior is known in closed form.

|z| < 5 is asked of every number: for a right program one is beyond that with probability 6e-7. The files of the suite
that compare with z-scores make fewer than 3,000 such comparisons, so the suite fails by chance in fewer than 2 of 1,000
sets of seeds; seeds are fixed, so it either fails always or never.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conftest import Z_LIMIT
from vihmc import infer
from vihmc.config.method import MethodConfig, SamplerConfig, SelectionConfig, VIConfig
from vihmc.diagnostics.calibration import coverage, ranks, simulate, uniformity
from vihmc.diagnostics.convergence import assess
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.subspace import Subspace
from vihmc.samplers.third_stage import sample_subspace

KEPT = np.array([0, 1, 3])


def method(**hmc):
    return MethodConfig(
        vi=VIConfig(map_steps=1500, num_steps=3000),
        selection=SelectionConfig(count=3),
        hmc=SamplerConfig(**{"num_chains": 16, "num_warmup": 300, "num_draws": 500} | hmc),
    )


def test_the_pipeline_draws_from_the_conditional_posterior(x64, linear_gaussian):
    found = infer(linear_gaussian.posterior, method())
    kept, center = np.asarray(found.subspace.selected), np.asarray(found.subspace.center)
    mean, covariance = linear_gaussian.conditional(kept, center)
    positions = found.sampled.chains.positions
    errors = assess(positions).mcse_mean
    assert np.max(np.abs(positions.mean(axis=(0, 1)) - mean) / errors) < Z_LIMIT
    squares = (positions - mean) ** 2
    errors = assess(squares).mcse_mean
    assert np.max(np.abs(squares.mean(axis=(0, 1)) - np.diag(covariance)) / errors) < Z_LIMIT


def test_rejections_count(x64, linear_gaussian):
    """At a step so large that half of the proposals are rejected, a draw that is rejected counts again."""
    q = MeanField(jnp.asarray(linear_gaussian.mean), jnp.asarray(np.diag(linear_gaussian.precision_matrix) ** -0.5))
    settings = SamplerConfig(
        num_chains=16,
        num_warmup=100,
        num_draws=4000,
        metric="q",
        step_size=1.3,
        num_integration_steps=1,
    )
    sampled = sample_subspace(linear_gaussian.posterior, q, Subspace.of(KEPT, q.mean), settings, jax.random.key(0))
    assert 0.2 < sampled.chains.acceptance_rate.mean() < 0.8
    mean, covariance = linear_gaussian.conditional(KEPT, linear_gaussian.mean)
    squares = (sampled.chains.positions - mean) ** 2
    z = (squares.mean(axis=(0, 1)) - np.diag(covariance)) / assess(squares).mcse_mean
    assert np.max(np.abs(z)) < Z_LIMIT


def test_ranks_of_exact_draws_are_uniform_and_of_others_not():
    rng = np.random.default_rng(0)
    truth, draws = rng.normal(size=2000), rng.normal(size=(99, 2000))
    assert uniformity(ranks(draws, truth), 99) > 1e-4
    for wrong in (0.8 * draws, 1.25 * draws, draws + 0.2):
        assert uniformity(ranks(wrong, truth), 99) < 1e-6
    found = coverage(draws, truth)
    for level, share in found.items():
        # A band of 99 draws is narrower than it says by about a hundredth.
        assert abs(share - level) < Z_LIMIT * np.sqrt(level * (1 - level) / 2000) + 0.015


def test_simulated_data_have_the_noise_of_the_posterior(x64, linear_gaussian):
    posterior = linear_gaussian.posterior
    theta, simulated = simulate(posterior, jax.random.key(0))
    residual = np.asarray(simulated.targets - posterior.predict(theta, posterior.inputs)) / 0.3
    assert abs(residual.std() - 1) < Z_LIMIT / np.sqrt(2 * residual.size)
    many = np.stack([simulate(posterior, key).theta for key in jax.random.split(jax.random.key(1), 400)])
    assert np.all(np.abs(many.std(axis=0) / 1.5 - 1) < Z_LIMIT / np.sqrt(2 * 400))


@pytest.mark.parametrize("precision", ["float32", "float64"], indirect=True)
def test_the_same_seed_gives_the_same_bits(precision, linear_gaussian):
    first, again = (infer(linear_gaussian.posterior, method(num_draws=50)) for _ in range(2))
    np.testing.assert_array_equal(first.sampled.draws, again.sampled.draws)
    np.testing.assert_array_equal(first.fit.q.std, again.fit.q.std)
    assert first.sampled.draws.dtype == np.dtype(precision)


def test_the_frozen_share_is_what_the_scores_say(x64, linear_gaussian):
    found = infer(linear_gaussian.posterior, method(num_draws=20))
    elsewhere = np.random.default_rng(1).normal(size=(9, 5)) * [1, 1, 10, 1, 1]
    for inputs in (linear_gaussian.features, elsewhere):
        scores = np.asarray(found.fit.q.std) ** 2 * np.mean(inputs**2, axis=0)
        frozen = np.setdiff1d(np.arange(5), np.asarray(found.subspace.selected))
        assert found.frozen_share(inputs) == pytest.approx(scores[frozen].sum() / scores.sum(), rel=1e-9)
