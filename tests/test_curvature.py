"""Whitened coordinates: against matrices written out, and against the exact posterior of a linear model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from test_samplers import z_scores
from test_weighted import Case
from vihmc.config.method import SamplerConfig
from vihmc.posterior.gauss_newton import leading_eigenpairs, scaled_product, whiten
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.subspace import Subspace
from vihmc.samplers.third_stage import sample_subspace


def test_leading_eigenpairs_are_those_of_the_matrix(x64):
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.normal(size=(60, 60)))
    exact = 1e4 * 0.7 ** np.arange(60)
    matrix = jnp.asarray(basis * exact @ basis.T)
    values, vectors = leading_eigenpairs(
        Partial(jnp.matmul, matrix), jax.random.key(0), size=60, rank=8, dtype=np.dtype("float64")
    )
    np.testing.assert_allclose(values, exact[:8], rtol=1e-6)
    np.testing.assert_allclose(np.abs(np.sum(vectors * basis[:, :8], axis=0)), 1, rtol=1e-5)


def test_products_are_those_of_the_jacobian_with_its_weights(x64):
    case = Case()
    selected, scale = jnp.arange(0, case.theta.size, 3), 0.7
    jacobian = jax.jacobian(lambda theta: case.pairs.predict(theta, case.pairs.inputs).ravel())(case.theta)[:, selected]
    matrix = scale**2 * jacobian.T @ (case.weights.ravel()[:, None] * jacobian) / 0.3**2
    vector = jnp.cos(jnp.arange(selected.size, dtype=float))
    product = scaled_product(case.pairs, selected, case.theta, jnp.full(selected.size, scale), vector)
    np.testing.assert_allclose(product, matrix @ vector, rtol=1e-9)


def test_a_gaussian_posterior_is_standard_normal_in_its_coordinates(x64, linear_gaussian):
    posterior, mean = linear_gaussian.posterior, jnp.asarray(linear_gaussian.mean)
    subspace = Subspace.of([0, 2, 3], mean)
    whitening = whiten(posterior, subspace, MeanField(mean, jnp.ones_like(mean)), jax.random.key(0), rank=3)
    position = subspace.extract(mean) + jnp.asarray([0.1, -0.2, 0.3])
    coordinates = whitening.to_coordinates(position)
    np.testing.assert_allclose(whitening.to_position(coordinates), position, rtol=1e-5)
    density = whitening.log_density(posterior.restrict(subspace))
    np.testing.assert_allclose(jax.jacrev(jax.grad(density))(coordinates), -np.eye(3), atol=1e-4)
    few = whiten(posterior, subspace, MeanField(mean, jnp.ones_like(mean)), jax.random.key(0), rank=1)
    exact = np.linalg.eigvalsh(linear_gaussian.precision_matrix[np.ix_([0, 2, 3], [0, 2, 3])]) * 1.5**2
    left = np.linalg.eigvalsh(-jax.jacrev(jax.grad(few.log_density(posterior.restrict(subspace))))(coordinates))
    np.testing.assert_allclose(np.sort(left), np.sort([1, *exact[:2]]), rtol=1e-3)


@pytest.mark.parametrize("rank", [1, 4])
def test_draws_have_the_moments_of_the_conditional_posterior(x64, linear_gaussian, monkeypatch, rank):
    monkeypatch.setattr("vihmc.samplers.target._CURVATURE_RANK", rank)
    mean = jnp.asarray(linear_gaussian.mean) + 0.05
    q = MeanField(mean, jnp.asarray(1 / np.sqrt(np.diag(linear_gaussian.precision_matrix))))
    selected = [0, 2, 3, 4]
    config = SamplerConfig(num_chains=8, num_draws=1500, num_warmup=300, metric="curvature")
    sampled = sample_subspace(linear_gaussian.posterior, q, Subspace.of(selected, mean), config, jax.random.key(0))
    z = z_scores(sampled.chains.positions, *linear_gaussian.conditional(selected, np.asarray(mean)))
    assert np.max(np.abs(z)) < 5
