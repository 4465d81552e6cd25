"""Names for the kinds of value that pass between the stages.

A *parameter vector* is every weight and bias of a model in one flat array, in
the order that :class:`vihmc.posterior.layout.ParamLayout` defines. All stages work on
parameter vectors; only the model itself sees the tree.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import Partial, all_leaves
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


def as_pytree_function(function: Callable) -> Callable:
    """Make a callable that ``jit`` can take as an argument.

    A closure bakes the arrays it holds into the compiled program as constants: ten million targets would be copied into
    it, and a new data set would compile it again. A :class:`jax.tree_util.Partial` is a pytree whose arrays are
    arguments, and one compiled program serves every data set of one shape.

    A callable that is a pytree already stays as it is, and a bound method of a
    pytree (``posterior.log_density``) becomes the plain function applied to
    that pytree. Any other function is wrapped, and what it closes over stays
    constant.
    """
    if not all_leaves([function]):
        return function
    if inspect.ismethod(function) and not all_leaves([function.__self__]):
        return Partial(function.__func__, function.__self__)
    return Partial(function)
