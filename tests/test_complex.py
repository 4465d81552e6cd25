"""Complex parameters are pairs of real ones: in the layout, the prior, the scores, the draws and their names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from vihmc import InputError, MethodConfig, Posterior, Prior, SamplerConfig, SelectionConfig, VIConfig, infer
from vihmc.fit.optimizers import for_mean
from vihmc.posterior.layout import ParamLayout, Parts

TREE = {"b": jnp.arange(2.0), "w": jnp.array([[1 + 2j, 3 - 4j, 0.5j]])}


def complex_linear(params, inputs):
    """Real part of a complex product: linear in real and imaginary parts."""
    return jnp.real(jax.lax.complex(inputs[:, :2], inputs[:, 2:]) @ params["w"])[:, None]


def as_real(inputs):
    """The features of the real and of the imaginary parts."""
    return np.concatenate([inputs[:, :2], -inputs[:, 2:]], axis=1)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(25, 4))
    return inputs, as_real(inputs) @ rng.normal(size=(4, 1)) + 0.2 * rng.normal(size=(25, 1))


def complex_posterior(data, **settings):
    return Posterior.of(complex_linear, {"w": jnp.zeros(2, jnp.complex64)}, *data, **settings)


def test_a_layout_has_real_parts_then_imaginary_parts(precision):
    layout = ParamLayout.of(TREE)
    vector = layout.ravel(TREE)
    np.testing.assert_array_equal(vector, [0, 1, 1, 3, 0, 2, -4, 0.5])
    assert layout.leaf_sizes == (2, 6)
    assert layout.names[2] == "w[0,0].real"
    assert layout.names[-1] == "w[0,2].imag"
    rebuilt = layout.unravel(vector)
    assert jnp.iscomplexobj(rebuilt["w"])
    jax.tree.map(np.testing.assert_array_equal, rebuilt, TREE)
    chains = layout.unravel(jnp.stack([vector, 2 * vector], axis=1))
    np.testing.assert_array_equal(chains["w"][..., 1], 2 * TREE["w"])
    np.testing.assert_array_equal(layout.spread({"b": 1.0, "w": 2.0}), [1, 1, 2, 2, 2, 2, 2, 2])


def test_a_complex_array_does_not_fit_a_real_leaf():
    layout = ParamLayout.of({"b": jnp.zeros(2)})
    assert layout.of_parts is layout
    with pytest.raises(InputError, match="`params` must have the leaves"):
        layout.ravel({"b": jnp.zeros(2, jnp.complex64)})


def test_optimisers_see_the_parts():
    layout = ParamLayout.of(TREE)
    parts = layout.of_parts.unravel(layout.ravel(TREE))
    assert isinstance(parts["w"], Parts)
    np.testing.assert_array_equal(parts["w"].imag, TREE["w"].imag)
    optimizer = for_mean(VIConfig(optimizer="muon"), layout)
    vector = layout.ravel(TREE)
    direction, _ = optimizer.update(vector, optimizer.init(vector))
    assert direction.shape == vector.shape
    assert not jnp.iscomplexobj(direction)
    # Each part is a matrix of one row, whose nearest matrix with orthonormal rows has the length one.
    assert 0.5 < float(jnp.linalg.norm(direction[2:5])) < 2


def test_the_density_is_that_of_the_real_features(x64, data):
    posterior = complex_posterior(data, prior=Prior(std=0.7, mean={"w": jnp.array([1j, 2.0])}), noise_std=0.2)
    theta = np.array([0.3, -0.5, 0.2, 0.9])
    prior = stats.norm([0, 2, 1, 0], 0.7).logpdf(theta).sum()
    exact = prior + stats.norm(0, 0.2).logpdf(data[1][:, 0] - as_real(data[0]) @ theta).sum()
    np.testing.assert_allclose(posterior.log_density(jnp.asarray(theta)), exact, rtol=1e-12)
    features = as_real(data[0])
    squares = posterior.sum_squared_gradients(jnp.asarray(theta), posterior.inputs)
    np.testing.assert_allclose(squares, (features**2).sum(0), rtol=1e-10)
    product = posterior.gauss_newton_product(jnp.asarray(theta), jnp.arange(4.0))
    np.testing.assert_allclose(product, features.T @ features @ np.arange(4.0) / 0.04, rtol=1e-10)


@pytest.mark.slow
def test_draws_have_the_moments_of_the_closed_form(data):
    posterior = complex_posterior(data, prior_std=1.0, noise_std=0.2)
    config = MethodConfig(
        first_stage="laplace",
        vi=VIConfig(map_steps=1000),
        selection=SelectionConfig(count=4),
        hmc=SamplerConfig(num_chains=4, num_warmup=200, num_draws=500, jitter=0.5),
    )
    result = infer(posterior, config)
    features = as_real(data[0])
    covariance = np.linalg.inv(features.T @ features / 0.04 + np.eye(4))
    mean = covariance @ features.T @ data[1][:, 0] / 0.04
    draws = result.sampled.draws
    z = (draws.mean(0) - mean) / np.sqrt(np.diag(covariance) / 500)  # 2000 draws, an ESS of 500 at least
    assert np.abs(z).max() < 5
    np.testing.assert_allclose(draws.std(0), np.sqrt(np.diag(covariance)), rtol=0.2)
    assert posterior.layout.names == ("w[0].real", "w[1].real", "w[0].imag", "w[1].imag")
