import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vihmc.errors import InputError
from vihmc.models.deeponet import DeepONet
from vihmc.models.features import PeriodicFeatures
from vihmc.models.mlp import MLP
from vihmc.posterior.layout import ParamLayout


def num_params(model):
    return ParamLayout.of(jax.eval_shape(model.init, jax.random.key(0))).size


def test_parameter_counts_are_those_of_the_paper():
    burgers = DeepONet.of_size(
        num_sensors=101,
        num_coordinates=2,
        branch_hidden=[100] * 8,
        trunk_hidden=[100] * 8,
        latent_size=100,
        trunk_features=PeriodicFeatures(column=1),
    )
    cone = DeepONet.of_size(
        num_sensors=11,
        num_coordinates=2,
        branch_hidden=[44] * 5,
        trunk_hidden=[44] * 4,
        latent_size=20,
    )
    assert num_params(burgers) == 172_401
    assert num_params(cone) == 16_321


def test_periodic_features_are_those_of_the_paper(x64):
    t, x = np.array([0.0, 0.3, 1.0]), np.array([0.1, 0.25, 1.1])
    features = PeriodicFeatures(column=1)(jnp.stack([t, x], axis=1))
    k = 2 * np.pi * x
    expected = np.stack([t, np.sin(k), np.sin(2 * k), np.cos(k), np.cos(2 * k)], axis=1)
    np.testing.assert_allclose(features, expected, atol=1e-14)
    np.testing.assert_allclose(features[0, 1:], features[2, 1:], atol=1e-14)


@pytest.mark.parametrize("output_bias", [True, False])
def test_pairs_are_all_the_aligned_records(x64, output_bias):
    # Two coordinates: one stays, one becomes two sines and two cosines.
    model = DeepONet(MLP((3, 4, 5), "gelu"), MLP((5, 7, 5)), output_bias, None, PeriodicFeatures(column=0))
    params = model.init(jax.random.key(0))
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)
    functions, locations = jax.random.normal(jax.random.key(1), (4, 3)), jax.random.normal(jax.random.key(2), (6, 2))
    pairs = model.apply_pairs(params, functions, locations)
    records = model.apply(params, (jnp.repeat(functions, 6, axis=0), jnp.tile(locations, (4, 1))))
    assert pairs.shape == (4, 6)
    np.testing.assert_allclose(pairs.ravel(), records, rtol=1e-12)


@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_structured_squares_are_the_brute_force_ones(x64, activation):
    model = DeepONet(MLP((3, 6, 5, 4), activation), MLP((5, 6, 4), activation), True, None, PeriodicFeatures(column=1))
    params = jax.tree.map(lambda leaf: leaf + 0.05, model.init(jax.random.key(3)))
    functions, locations = jax.random.normal(jax.random.key(1), (7, 3)), jax.random.normal(jax.random.key(2), (9, 2))
    jacobian = jax.jacrev(model.apply_pairs)(params, functions, locations)
    exact = jax.tree.map(lambda leaf: jnp.sum(leaf**2, axis=(0, 1)), jacobian)
    jax.tree.map(
        lambda found, wanted: np.testing.assert_allclose(found, wanted, rtol=1e-9),
        model.sum_squared_gradients(params, functions, locations),
        exact,
    )


def test_wrong_shapes_are_named():
    with pytest.raises(InputError, match="same number of outputs, got 4 and 5"):
        DeepONet(MLP((3, 4)), MLP((3, 5)))
    with pytest.raises(InputError, match="`column` must be below the number of coordinates, 2, got 2"):
        PeriodicFeatures(column=2)(jnp.zeros((3, 2)))
    with pytest.raises(InputError, match="`num_waves` must be at least 1, got 0"):
        PeriodicFeatures(column=0, num_waves=0)


@pytest.mark.parametrize("has_weights", [False, True])
def test_one_program_has_one_eigendecomposition(has_weights):
    """Two may run at once and wait for the same threads for ever: with 100 latent outputs on two cores they did."""
    model = DeepONet(branch=MLP((3, 4, 5)), trunk=MLP((2, 4, 5)))
    functions, locations = jnp.ones((6, 3)), jnp.ones((7, 2))
    weights = jnp.ones((6, 7)) if has_weights else None
    sums = jax.jit(lambda params: model.sum_squared_gradients(params, functions, locations, weights))
    compiled = sums.lower(model.init(jax.random.key(0))).compile().as_text()
    assert compiled.count('custom_call_target="lapack_') == 1
