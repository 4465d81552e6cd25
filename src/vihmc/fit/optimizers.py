r"""Directions of descent for the mean and the spread of q, on flat vectors.

``adam`` scales every parameter by its own recent gradients. ``muon`` (Jordan 2024) takes the momentum of each weight
*matrix* and replaces it by the nearest matrix with orthonormal rows or columns, :math:`U V^\top` of its singular value
decomposition, so that all directions of a layer learn at one pace; vectors and scalars are left to Adam. An array of
more axes is as many matrices, of its last two: the spectral weights of a Fourier layer have one for every wave. Both
optimisers are Optax's.
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array
from optax import contrib

from vihmc.config.method import VIConfig
from vihmc.posterior.layout import ParamLayout


def for_spread(config: VIConfig) -> optax.GradientTransformation:
    """Adam, whatever the mean is led by."""
    return optax.scale_by_adam(b2=config.second_moment_decay)


def for_mean(config: VIConfig, layout: ParamLayout) -> optax.GradientTransformation:
    """Return the configured transformation of the gradient of the mean, to be multiplied by minus the rate."""
    return for_spread(config) if config.optimizer == "adam" else _muon(config, layout.of_parts)


def _matrices(params: Any) -> Any:
    """The two axes of every array that are a matrix; None for vectors and scalars."""

    def last_two(leaf: Array) -> contrib.MuonDimensionNumbers | None:
        return contrib.MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1) if leaf.ndim > 1 else None

    return jax.tree.map(last_two, params)


def _muon(config: VIConfig, layout: ParamLayout) -> optax.GradientTransformation:
    on_tree = contrib.muon(
        learning_rate=-1.0, adam_b2=config.second_moment_decay, muon_weight_dimension_numbers=_matrices
    )

    def split(vector: Any) -> Any:
        return layout.unravel(vector), vector[layout.size :]

    def init(params: Any) -> Any:
        def narrow(leaf: Array) -> Array:
            # Constants that Optax makes are as wide as floats can be, and would make the whole update so.
            return leaf.astype(params.dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        return jax.tree.map(narrow, on_tree.init(split(params)))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        tree = split(updates)
        # The last argument is asked for by a weight decay of zero, and does not matter.
        direction, state = on_tree.update(tree, state, tree)
        weights, scales = cast("tuple[Any, Array]", direction)
        return jnp.concatenate([layout.ravel(weights), scales]).astype(updates.dtype), state

    return optax.GradientTransformation(init, update)
