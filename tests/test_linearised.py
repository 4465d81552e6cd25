"""Predictions of a Laplace fit, against the exact posterior of a linear model."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conftest import LinearGaussian
from vihmc.config.method import VIConfig
from vihmc.fit import laplace
from vihmc.fit.linearised import _gram, draw_linearised
from vihmc.models.mlp import MLP
from vihmc.posterior.density import Posterior
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.subspace import TangentSpace
from vihmc.predict import predict_posterior

NUM_DRAWS = 4000


@pytest.mark.parametrize("num_rows", [30, 3], ids=["more rows than parameters", "fewer rows"])
def test_mean_and_std_are_those_of_the_exact_posterior(x64, linear_gaussian, num_rows):
    problem = LinearGaussian(
        linear_gaussian.features[:num_rows], linear_gaussian.targets[:num_rows], prior_std=1.5, noise_std=0.3
    )
    posterior = problem.posterior
    fit = laplace.fit(posterior, VIConfig(map_steps=20, num_bound_samples=2), jax.random.key(0))
    fit = replace(fit, q=MeanField(jnp.asarray(problem.mean), fit.q.std))
    space, draws = draw_linearised(posterior, fit, jax.random.key(1), NUM_DRAWS)
    inputs = jnp.asarray(np.random.default_rng(1).normal(size=(20, 5)))
    found = predict_posterior(posterior, space, draws, inputs)
    variance = np.einsum("ni,ij,nj->n", inputs, problem.covariance, inputs)
    np.testing.assert_allclose(found.mean[:, 0], inputs @ problem.mean, rtol=1e-9)
    # Draws come in pairs: the variance is known from half as many. |z| < 5 at 20 inputs.
    z = (found.epistemic_std[:, 0] ** 2 / variance - 1) / np.sqrt(2 / (NUM_DRAWS / 2))
    assert np.abs(z).max() < 5
    np.testing.assert_allclose(found.total_std[:, 0] ** 2, found.epistemic_std[:, 0] ** 2 + 0.09, rtol=1e-9)
    by_diagonal = np.einsum("ni,i,ni->n", inputs, 1 / np.diag(problem.precision_matrix), inputs)
    z = (by_diagonal / variance - 1) / np.sqrt(2 / (NUM_DRAWS / 2))
    assert np.abs(z).max() > 5  # what was drawn before: the test notices


def test_products_give_the_gram_matrix_of_all_rows(x64, linear_gaussian):
    posterior, features = linear_gaussian.posterior, linear_gaussian.features
    found = _gram(posterior, jnp.zeros(5), jnp.full(5, 1.5))
    np.testing.assert_allclose(found, 1.5**2 * features.T @ features / 0.3**2, rtol=1e-9)


@pytest.mark.slow
def test_a_function_on_a_tangent_space_is_its_first_order_expansion(x64):
    model = MLP((1, 4, 1))
    x = jnp.linspace(-1, 1, 6)[:, None]
    posterior = Posterior.of(model, model.init(jax.random.key(0)), x, x, noise_std=0.1, prior_std=1.0)
    center = jax.random.normal(jax.random.key(1), (posterior.dim,))
    step = jax.random.normal(jax.random.key(2), (posterior.dim,))
    run = TangentSpace.at(center).restrict(posterior.predict)
    jacobian = jax.jacobian(lambda theta: posterior.predict(theta, x))(center)
    np.testing.assert_allclose(run(center + step, x), posterior.predict(center, x) + jacobian @ step, rtol=1e-9)
