"""The Fourier neural operator against what it does to single waves, and on grids of several resolutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vihmc
from vihmc import FNO, InputError


def test_a_layer_multiplies_the_amplitudes_of_waves(x64):
    model = FNO(modes=(4,), width=1, num_layers=1)
    points = np.arange(16) / 16
    weight = np.zeros((4, 1, 1), complex)
    weight[2] = 2 * np.exp(0.7j)
    hidden = (3 * np.cos(2 * np.pi * 2 * points) + np.cos(2 * np.pi * 5 * points))[None, :, None]
    found = jax.jit(model._convolve)(jnp.asarray(weight), jnp.asarray(hidden))
    np.testing.assert_allclose(found[0, :, 0], 6 * np.cos(2 * np.pi * 2 * points + 0.7), atol=1e-12)


def test_a_layer_knows_the_direction_of_waves(x64):
    model = FNO(modes=(3, 3), width=1, num_layers=1)
    first, second = np.meshgrid(np.arange(8) / 8, np.arange(10) / 10, indexing="ij")
    weight = np.zeros((6, 3, 1, 1), complex)
    weight[-1, 2] = 1.0  # wave number -1 along the first axis, 2 along the second
    up, down = (np.cos(2 * np.pi * (2 * second + sign * first)) for sign in (1, -1))
    found = jax.jit(model._convolve)(jnp.asarray(weight), jnp.asarray((up + 5 * down)[None, ..., None]))
    np.testing.assert_allclose(found[0, ..., 0], 5 * down, atol=1e-12)


def test_a_finer_grid_has_the_same_field(x64):
    grids = ((6, 8), (12, 16))
    # One layer: waves of the input stay below the modes, so nothing is lost on the coarse grid.
    model = FNO(modes=(2, 2), width=4, num_layers=1, num_outputs=2)
    params = jax.tree.map(
        lambda leaf: leaf.astype(complex if jnp.iscomplexobj(leaf) else float), model.init(jax.random.key(0))
    )
    params["lift"]["weight"] = params["lift"]["weight"].at[1:].set(0)  # coordinates are no waves

    def field(grid):
        axes = np.meshgrid(*(np.arange(length) / length for length in grid), indexing="ij")
        return sum(np.sin(2 * np.pi * axis + number) for number, axis in enumerate(axes))[None, ..., None]

    coarse, fine = (jax.jit(model.apply)(params, jnp.asarray(field(grid))) for grid in grids)
    assert coarse.shape == (1, *grids[0], 2)
    every = tuple(slice(None, None, b // a) for a, b in zip(*grids, strict=True))
    np.testing.assert_allclose(coarse, fine[:, *every], atol=1e-12)


def test_spectral_weights_are_pairs_of_parameters():
    model = FNO(modes=(2, 3), width=4, num_layers=2)
    layout = vihmc.ParamLayout.of(jax.eval_shape(model.init, jax.random.key(0)))
    assert layout.leaf_sizes[layout.leaf_names.index("layers.1.spectral")] == 2 * 4 * 3 * 4 * 4
    assert hash(model) == hash(FNO(modes=(2, 3), width=4, num_layers=2))


def test_padding_leaves_the_shape():
    model = FNO(modes=(2,), width=2, padding=0.25)
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert jax.eval_shape(model.apply, params, jnp.ones((3, 8, 1))).shape == (3, 8, 1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"modes": ()}, "`modes` must be a positive integer for each dimension"),
        ({"modes": (2,), "width": 0}, "`width` must be a positive integer, got 0"),
        ({"modes": (2,), "activation": "gelo"}, "`activation` must be one of .* got 'gelo'"),
        ({"modes": (2,), "padding": -0.5}, "`padding` must be a share"),
        ({"modes": (2,), "padding": (0.0, 0.5)}, "or one for each of 1 dimensions"),
    ],
)
def test_wrong_sizes_are_one_sentence(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        FNO(**settings)


def test_a_grid_must_have_the_modes():
    with pytest.raises(InputError, match=r"each of at least twice the `modes` \(5,\), got a grid \(8,\)"):
        FNO(modes=(5,)).apply({}, jnp.ones((2, 8, 1)))
