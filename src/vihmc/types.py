"""Names for the kinds of value that pass between the stages.

A *parameter vector* is every weight and bias of a model in one flat array, in
the order that :class:`vihmc.posterior.layout.ParamLayout` defines. All stages work on
parameter vectors; only the model itself sees the tree.
"""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float

Params = Any
"""A pytree of arrays: the parameters as the model wants them."""

Inputs = Any
"""An array, or a pytree of arrays, whose leading axis counts the observations."""

Apply = Callable[[Params, Inputs], Array]
"""A model: ``apply(params, inputs)`` returns one prediction per observation."""

Vector = Float[Array, " params"]
"""Parameters in one flat array."""

LogDensity = Callable[[Array], Array]
"""An unnormalised log density of one position vector."""

PredictFn = Callable[[Array, Inputs], Array]
"""``predict_fn(position, inputs)``: the model on one position vector."""

Key = jax.Array
"""A JAX random key, new style (``jax.random.key``)."""
