import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, stats

from linear import linear_apply
from remembering import Remembering
from vihmc import InputError, VIConfig
from vihmc.fit import vi
from vihmc.fit.map import maximum_a_posteriori
from vihmc.fit.optimizers import for_mean
from vihmc.posterior.density import Posterior
from vihmc.posterior.gauss_newton import diagonal_std
from vihmc.posterior.mean_field import MeanField, divergence_to_prior, estimate_elbo, gaussian_kl


def test_gaussian_kl_matches_quadrature(x64):
    of, reference = stats.norm(0.4, 0.7), stats.norm(-0.2, 1.3)
    exact = integrate.quad(lambda t: of.pdf(t) * (of.logpdf(t) - reference.logpdf(t)), -12, 12)[0]
    arguments = {"of_mean": jnp.array([0.4]), "of_std": jnp.array([0.7])}
    arguments |= {"from_mean": jnp.array([-0.2]), "from_std": jnp.array([1.3])}
    np.testing.assert_allclose(gaussian_kl(**arguments), exact, rtol=1e-8)


def test_objectives_put_the_divergence_the_right_way_round(x64):
    q = MeanField(jnp.array([0.5]), jnp.array([0.1]))
    posterior = Posterior.of(
        linear_apply, {"weight": np.zeros((1, 1))}, np.ones((2, 1)), np.ones((2, 1)), prior_std=1.0, noise_std=1.0
    )
    of_q, of_prior = stats.norm(0.5, 0.1), stats.norm(0, 1)
    for objective, first, second in (("elbo", of_q, of_prior), ("published", of_prior, of_q)):
        low, high = first.mean() - 10 * first.std(), first.mean() + 10 * first.std()
        exact = integrate.quad(lambda t: first.pdf(t) * (first.logpdf(t) - second.logpdf(t)), low, high)[0]  # noqa: B023
        found = divergence_to_prior(posterior, q, q.mean, objective=objective)
        np.testing.assert_allclose(found, exact, rtol=1e-7)


def test_fit_finds_the_closed_form_optimum(precision, linear_gaussian):
    config = VIConfig(num_steps=6000, num_samples=20, map_steps=2000)
    result = vi.fit(linear_gaussian.posterior, config, jax.random.key(0))
    exact_std = 1 / np.sqrt(np.diag(linear_gaussian.precision_matrix))
    # The optimum of the bound has the exact mean, and the std of each parameter with the others held fixed.
    np.testing.assert_allclose(result.q.mean, linear_gaussian.mean, atol=0.05 * exact_std.min())
    np.testing.assert_allclose(result.q.std, exact_std, rtol=0.03)
    assert result.converged
    assert not result.collapsed


def test_published_objective_finds_its_own_optimum(x64):
    # One weight, one feature: the optimum of KL(prior‖q) − E_q[log likelihood] solves two scalar equations.
    x, y, noise_std = np.array([[1.0], [2.0]]), np.array([[1.1], [1.9]]), 0.5
    posterior = Posterior.of(linear_apply, {"weight": np.zeros((1, 1))}, x, y, prior_std=1.0, noise_std=noise_std)
    curvature, pull = (x**2).sum() / noise_std**2, (x * y).sum() / noise_std**2

    def loss(variational):
        mean, log_std = variational
        var = np.exp(2 * log_std)
        return log_std + (1 + mean**2) / (2 * var) + 0.5 * curvature * (mean**2 + var) - pull * mean

    exact_mean, exact_log_std = optimize.minimize(loss, [0.5, 0.0], tol=1e-10).x
    config = VIConfig(objective="published", num_steps=6000, num_samples=20)
    q = vi.fit(posterior, config, jax.random.key(1)).q
    np.testing.assert_allclose(q.mean, exact_mean, atol=0.01)
    np.testing.assert_allclose(q.std, np.exp(exact_log_std), rtol=0.02)
    assert q.std[0] > 1.5 / np.sqrt(1 + curvature), "the published objective overestimates the std"


def test_minibatches_have_the_optimum_of_all_data(x64, linear_gaussian):
    config = VIConfig(num_steps=12000, num_samples=10, batch_size=15, map_steps=2000)
    q = vi.fit(linear_gaussian.posterior, config, jax.random.key(2)).q
    exact_std = 1 / np.sqrt(np.diag(linear_gaussian.precision_matrix))
    np.testing.assert_allclose(q.mean, linear_gaussian.mean, atol=0.5 * exact_std.min())
    np.testing.assert_allclose(q.std, exact_std, rtol=0.1)


def test_map_is_the_posterior_mean_of_a_linear_model(x64, linear_gaussian):
    config = VIConfig(map_steps=5000, learning_rate=0.05)
    theta = maximum_a_posteriori(linear_gaussian.posterior, jnp.zeros(5), config, jax.random.key(0)).theta
    np.testing.assert_allclose(theta, linear_gaussian.mean, atol=1e-6)


def test_elbo_equals_the_log_evidence_when_q_is_the_posterior(x64):
    # With one parameter the mean-field family holds the posterior, and the bound is the evidence.
    x, y = np.array([[1.0], [0.5], [-1.0]]), np.array([[0.8], [0.1], [-1.2]])
    posterior = Posterior.of(linear_apply, {"weight": np.zeros((1, 1))}, x, y, prior_std=1.0, noise_std=0.4)
    var = 1 / ((x**2).sum() / 0.16 + 1)
    q = MeanField(jnp.array([var * (x * y).sum() / 0.16]), jnp.array([var**0.5]))
    evidence = stats.multivariate_normal(np.zeros(3), x @ x.T + 0.16 * np.eye(3)).logpdf(y[:, 0])
    bound = estimate_elbo(posterior, q, jax.random.key(0), num_samples=4000)
    assert abs(bound.value - evidence) < 5 * bound.standard_error


def test_records_do_not_change_the_fit(x64, linear_gaussian):
    fits = [
        vi.fit(linear_gaussian.posterior, VIConfig(num_steps=300, record_every=every), jax.random.key(3))
        for every in (100, 70)
    ]
    np.testing.assert_array_equal(fits[0].q.mean, fits[1].q.mean)
    np.testing.assert_array_equal(fits[0].q.std, fits[1].q.std)
    assert fits[1].history.step.tolist() == [70, 140, 210, 280, 300]


def test_a_fit_resumed_from_a_checkpoint_is_the_same_fit(x64, linear_gaussian):
    config = VIConfig(num_steps=1500, map_steps=300)
    arguments = (linear_gaussian.posterior, config, jax.random.key(3))
    memory = Remembering()
    whole = vi.fit(*arguments, checkpoints=memory)
    assert [name for name, _ in memory.kept[:4]] == ["mode", "mode", "mode", "vi"]
    for state in (memory.kept[1], memory.kept[8]):
        rest = Remembering([state])
        resumed = vi.fit(*arguments, checkpoints=rest)
        assert 0 < len(rest.kept) < len(memory.kept)
        for field in ("mean", "std"):
            np.testing.assert_array_equal(getattr(resumed.q, field), getattr(whole.q, field))
        for one, other in zip(resumed.history, whole.history, strict=True):
            np.testing.assert_array_equal(one, other)
        assert resumed.converged == whole.converged


def test_curvature_is_the_optimum_of_a_linear_model(x64, linear_gaussian):
    std = diagonal_std(linear_gaussian.posterior, jnp.zeros(5))
    np.testing.assert_allclose(std, 1 / np.sqrt(np.diag(linear_gaussian.precision_matrix)), rtol=1e-12)


def test_a_light_divergence_is_a_quieter_likelihood(x64, linear_gaussian):
    # Weighing the divergence by w is the fit to the posterior with noise variance w times as large.
    quiet = dataclasses.replace(linear_gaussian, noise_std=linear_gaussian.noise_std * 0.5)
    config = VIConfig(num_steps=4000, num_samples=20, kl_weight=0.25, initial_std="curvature", map_steps=2000)
    q = vi.fit(linear_gaussian.posterior, config, jax.random.key(0)).q
    np.testing.assert_allclose(q.mean, quiet.mean, atol=0.05)
    np.testing.assert_allclose(q.std, 1 / np.sqrt(np.diag(quiet.precision_matrix)), rtol=0.05)


def test_muon_takes_orthogonal_steps_and_arrives(x64):
    # A linear map of three inputs to two outputs: the mode is ridge regression.
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.normal(size=(40, 2))
    posterior = Posterior.of(linear_apply, {"weight": np.zeros((3, 2))}, x, y, prior_std=1.0, noise_std=0.5)
    config = VIConfig(optimizer="muon", learning_rate=0.02, map_steps=4000)
    direction, _ = for_mean(config, posterior.layout).update(
        jnp.arange(1.0, 7.0), for_mean(config, posterior.layout).init(jnp.zeros(6))
    )
    values = np.linalg.svd(np.asarray(direction).reshape(3, 2), compute_uv=False)
    assert 0.5 < values.min() <= values.max() < 1.5
    theta = maximum_a_posteriori(posterior, jnp.ones(6), config, jax.random.key(0)).theta
    ridge = np.linalg.solve(x.T @ x + 0.25 * np.eye(3), x.T @ y)
    np.testing.assert_allclose(theta.reshape(3, 2), ridge, atol=1e-3)


def test_a_fit_worse_than_the_prior_says_so(x64):
    # A starting std far above the prior's and no time to learn: q = prior has the higher bound.
    x, y = np.ones((3, 1)), np.zeros((3, 1))
    posterior = Posterior.of(linear_apply, {"weight": np.zeros((1, 1))}, x, y, prior_std=0.1, noise_std=1.0)
    result = vi.fit(posterior, VIConfig(num_steps=5, map_steps=0, initial_std=5.0), jax.random.key(0))
    assert result.collapsed
    assert "worse than q = prior" in result.message


def test_history_has_both_errors_and_progress_is_reported(x64, linear_gaussian):
    heard = []
    validation = (linear_gaussian.features[:4], linear_gaussian.targets[:4])
    result = vi.fit(
        linear_gaussian.posterior,
        VIConfig(num_steps=250, map_steps=150),
        jax.random.key(0),
        validation=validation,
        on_record=lambda done, info: heard.append(done),
    )
    assert heard == [100, 150, 250, 350, 400]
    expected = np.mean((validation[0] @ np.asarray(result.q.mean)[:, None] - validation[1]) ** 2)
    np.testing.assert_allclose(result.history.validation_mse[-1], expected)


def test_a_batch_larger_than_the_data_is_refused(linear_gaussian):
    with pytest.raises(InputError, match=r"`vi\.batch_size` must be at most the number of observations, 30, got 31"):
        vi.fit(linear_gaussian.posterior, VIConfig(batch_size=31), jax.random.key(0))


def test_a_loss_that_is_not_finite_is_refused(linear_gaussian):
    with pytest.raises(InputError, match=r"`vi\.learning_rate` must keep the loss finite"):
        vi.fit(linear_gaussian.posterior, VIConfig(learning_rate=1e30, map_steps=0), jax.random.key(0))


@pytest.mark.parametrize(
    ("inputs", "targets", "sentence"),
    [
        (np.zeros((2, 4)), np.zeros((2, 1)), "`validation` must have the shapes"),
        (np.zeros((2, 5)), np.zeros((2, 2)), r"`validation` must have targets of shape .* got \(2,\)"),
        (np.zeros((2, 5)), np.zeros((3, 1)), "same number of observations"),
        (np.zeros((2, 5)), np.full((2, 1), np.nan), "`validation` must be finite"),
    ],
)
def test_validation_data_must_be_like_the_training_data(linear_gaussian, inputs, targets, sentence):
    with pytest.raises(InputError, match=sentence):
        vi.fit(linear_gaussian.posterior, VIConfig(map_steps=0), jax.random.key(0), validation=(inputs, targets))


def test_a_fit_that_has_not_arrived_does_not_say_it_has(x64, linear_gaussian):
    slow = VIConfig(num_steps=9000, map_steps=0, learning_rate=1e-4, initial_mean_std=1.0)
    result = vi.fit(linear_gaussian.posterior, slow, jax.random.key(0))
    assert result.converged is False
    assert "not converged" in result.message
    short = vi.fit(linear_gaussian.posterior, VIConfig(num_steps=500), jax.random.key(0))
    assert short.converged is None
    assert "too few to judge convergence" in short.message
