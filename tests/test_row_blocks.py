"""Sums over very many rows: equal to plain sums, in bounded memory, with little rounding."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vihmc import MLP, Posterior
from vihmc.config.method import VIConfig
from vihmc.fit.result import find_bounds
from vihmc.posterior.density import draw_rows
from vihmc.posterior.mean_field import MeanField, estimate_elbo
from vihmc.posterior.row_blocks import MANY_ROWS, ROWS_AT_ONCE, accumulate, sum_in_blocks

NUM_ROWS = MANY_ROWS + ROWS_AT_ONCE // 3
"""The last block is shorter than the others."""


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def make_posterior(num_rows: int, **settings) -> Posterior:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(num_rows, 3))
    targets = np.sin(inputs[:, :1]) + 0.1 * rng.normal(size=(num_rows, 1))
    network = MLP((3, 16, 1))
    return Posterior.of(network, network.init(jax.random.key(0)), inputs, targets, **settings)


def plain_log_likelihood(posterior: Posterior, theta: jax.Array) -> jax.Array:
    outputs = posterior.model.apply(posterior.layout.unravel(theta), posterior.inputs)
    return posterior.likelihood.log_likelihood(posterior.targets, outputs, posterior.scales(theta).likelihood)


@pytest.mark.parametrize("noise", ["known", "learnt", "per_observation"])
def test_value_and_gradient_equal_those_of_all_rows_at_once(noise):
    given = {"known": 0.1, "learnt": None, "per_observation": np.linspace(0.1, 0.3, NUM_ROWS)[:, None]}
    posterior = make_posterior(NUM_ROWS, noise_std=given[noise], prior_std=1.0)
    theta = posterior.with_initial_scales(0.3 * jax.random.normal(jax.random.key(1), (posterior.num_params,)))
    found = jax.jit(jax.value_and_grad(posterior.log_likelihood))(theta)
    expected = jax.jit(jax.value_and_grad(lambda theta: plain_log_likelihood(posterior, theta)))(theta)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-9)
    np.testing.assert_allclose(posterior.log_likelihood(theta), expected[0], rtol=1e-12)


def test_several_chains_at_once_have_their_own_gradients():
    posterior = make_posterior(NUM_ROWS, noise_std=0.1, prior_std=1.0)
    thetas = 0.3 * jax.random.normal(jax.random.key(1), (3, posterior.num_params))
    together = jax.jit(jax.vmap(jax.grad(posterior.log_density)))(thetas)
    np.testing.assert_allclose(together, [jax.grad(posterior.log_density)(theta) for theta in thetas], rtol=1e-9)


def test_derivatives_by_what_is_no_parameter_vector_are_not_lost():
    posterior = make_posterior(NUM_ROWS, noise_std=0.1, prior_std=1.0)
    theta = 0.3 * jax.random.normal(jax.random.key(1), (posterior.num_params,))

    def given_noise(log_likelihood, noise_std):
        noisy = replace(posterior, likelihood=replace(posterior.likelihood, noise_std=noise_std))
        return log_likelihood(noisy, theta)

    found = jax.grad(lambda noise_std: given_noise(Posterior.log_likelihood, noise_std))(jnp.asarray(0.1))
    expected = jax.grad(lambda noise_std: given_noise(plain_log_likelihood, noise_std))(jnp.asarray(0.1))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_predictions_and_gauss_newton_products_equal_those_of_all_rows_at_once():
    posterior = make_posterior(NUM_ROWS, noise_std=0.1, prior_std=1.0)
    theta, tangent = 0.3 * jax.random.normal(jax.random.key(1), (2, posterior.num_params))

    def run(theta):
        return posterior.model.apply(posterior.layout.unravel(theta), posterior.inputs)

    np.testing.assert_allclose(posterior.predict(theta, posterior.inputs), run(theta), atol=1e-12)
    change = jax.jvp(run, (theta,), (tangent,))[1] / 0.1**2
    expected = jax.vjp(run, theta)[1](change)[0]
    np.testing.assert_allclose(posterior.gauss_newton_product(theta, tangent), expected, rtol=1e-9)


def test_memory_of_a_gradient_does_not_grow_with_the_rows():
    def temporary_bytes(num_rows: int) -> int:
        posterior = make_posterior(num_rows, noise_std=0.1, prior_std=1.0)
        theta = jnp.zeros(posterior.num_params)
        gradient = jax.jit(lambda posterior, theta: jax.grad(posterior.log_density)(theta))
        return gradient.lower(posterior, theta).compile().memory_analysis().temp_size_in_bytes

    few, many = temporary_bytes(10 * ROWS_AT_ONCE), temporary_bytes(40 * ROWS_AT_ONCE)
    assert many <= few + 4096
    # Two hidden arrays of a block and their derivatives, not of all rows.
    assert many < 16 * ROWS_AT_ONCE * 16 * 8


def test_float32_sums_are_compensated():
    num_blocks = 3000
    with jax.enable_x64(False):
        blocks = jnp.full(num_blocks, 0.1, jnp.float32).at[0].set(1e6)

        def term(tree, start, size):
            return tree[start // ROWS_AT_ONCE]

        found = float(sum_in_blocks(term, num_blocks * ROWS_AT_ONCE, blocks))
        plain = float(jax.lax.fori_loop(0, num_blocks, lambda i, total: total + blocks[i], jnp.float32(0)))
    exact = 1e6 + (num_blocks - 1) * float(np.float32(0.1))
    assert abs(found - exact) <= 0.04  # half the distance of float32 numbers near a million
    assert abs(plain - exact) > 10


def test_trees_are_summed_block_by_block():
    sizes = accumulate(lambda start, size: {"rows": jnp.asarray(size)}, NUM_ROWS)
    assert sizes["rows"] == NUM_ROWS


def test_rows_of_a_batch_are_drawn_without_a_permutation_of_all():
    program = str(jax.make_jaxpr(lambda key: draw_rows(key, 1_000_000, 64))(jax.random.key(0)))
    assert "1000000" in program
    assert "sort" not in program
    assert "[1000000]" not in program
    rows = np.asarray(draw_rows(jax.random.key(0), 1_000_000, 4096))
    # The mean of uniform numbers, |z| < 5.
    assert abs(rows.mean() / 1e6 - 0.5) < 5 * (1 / 12 / 4096) ** 0.5
    assert len(np.unique(rows)) > 4050


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_squares_summed_layer_by_layer_equal_those_of_single_gradients(monkeypatch, standardise, is_weighted):
    rng = np.random.default_rng(0)
    inputs, targets = 3 + 2 * rng.normal(size=(30, 3)), 5 * rng.normal(size=(30, 2))
    posterior = Posterior.of(MLP((3, 8, 8, 2)), inputs, targets, noise_std=0.1, prior_std=1.0, standardise=standardise)
    theta = 0.3 * jax.random.normal(jax.random.key(1), (posterior.num_params,))
    weights = jnp.asarray(rng.uniform(size=(30, 2))) if is_weighted else None
    assert not posterior.has_fast_squared_gradients
    expected = posterior.sum_squared_gradients(theta, posterior.inputs, weights=weights)
    monkeypatch.setattr("vihmc.posterior.density._MANY_DERIVATIVES", 0)
    assert posterior.has_fast_squared_gradients
    found = posterior.sum_squared_gradients(theta, posterior.inputs, weights=weights)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_squares_of_very_many_rows_are_summed_block_by_block():
    posterior = make_posterior(NUM_ROWS, noise_std=0.1, prior_std=1.0)
    posterior = replace(
        posterior, inputs=jnp.tile(posterior.inputs, (40, 1)), targets=jnp.tile(posterior.targets, (40, 1))
    )
    assert posterior.has_fast_squared_gradients
    theta = 0.3 * jax.random.normal(jax.random.key(1), (posterior.num_params,))
    found = posterior.sum_squared_gradients(theta, posterior.inputs)
    once = posterior.model.sum_squared_rows(posterior.layout.unravel(theta), posterior.inputs[:NUM_ROWS])
    np.testing.assert_allclose(found, 40 * posterior.layout.ravel(once), rtol=1e-9)


def test_a_model_that_is_no_dense_network_has_no_fast_squares(monkeypatch):
    monkeypatch.setattr("vihmc.posterior.density._MANY_DERIVATIVES", 0)
    data = np.linspace(-1, 1, 6)[:, None], np.linspace(0, 1, 6)[:, None]
    params = {"w": jnp.ones((1, 1))}
    posterior = Posterior.of(lambda p, x: x @ p["w"], params, *data, noise_std=0.1, prior_std=1.0, standardise=True)
    assert not posterior.has_fast_squared_gradients


def test_large_models_have_fewer_samples_of_the_bound(monkeypatch):
    monkeypatch.setattr("vihmc.fit.result._BOUND_OPERATIONS", 0)
    posterior = make_posterior(20, noise_std=0.1, prior_std=1.0)
    q = MeanField(jnp.zeros(posterior.dim), jnp.ones(posterior.dim))
    key = jax.random.key(0)
    found, _ = find_bounds(posterior, q, VIConfig(num_bound_samples=512), key)
    expected = estimate_elbo(posterior, q, jax.random.split(key)[0], 16)
    assert found == expected
