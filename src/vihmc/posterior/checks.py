"""Validation of data before anything is traced: every error names the argument, the rule and the value."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from vihmc.errors import InputError
from vihmc.types import Inputs, readable


@readable
class Validation(NamedTuple):
    """Data to follow a fit on.

    Attributes:
        inputs: Like the training inputs.
        targets: Like the training targets.
        weights: How often each target was observed, zero for never; once each if not given.
    """

    inputs: Inputs
    targets: ArrayLike
    weights: ArrayLike | None = None


def check_validation(validation: Validation | tuple, *, inputs: Inputs, targets: Array) -> Validation:
    """Return validation data as arrays, after checking that they are shaped like the training data that are given."""
    given = Validation(*validation)  # pyrefly: ignore
    found_inputs = check_inputs_like("validation", given.inputs, inputs)
    found = as_finite("validation", given.targets, targets.dtype)
    check_lengths(found_inputs, found)
    if found.shape[1:] != targets.shape[1:]:
        raise InputError(
            f"`validation` must have targets of shape (n, …) like the training targets, {targets.shape[1:]} "
            f"after the first axis, got {found.shape[1:]}."
        )
    if given.weights is None:
        return Validation(found_inputs, found)
    weights = as_finite("validation", given.weights, found.dtype)
    if weights.shape != found.shape:
        raise InputError(
            f"`validation` must have weights of the shape of its targets, {found.shape}, got {weights.shape}."
        )
    if jnp.min(weights) < 0 or not jnp.any(weights):
        raise InputError(
            f"`validation` must have weights that are not negative, nor all zero, got a smallest of "
            f"{jnp.min(weights):g} and a sum of {jnp.sum(weights):g}."
        )
    return Validation(found_inputs, found, weights)


def check_inputs_like(
    name: str, inputs: Inputs, example: Inputs, follows: Callable[[Inputs], bool] = lambda inputs: False
) -> Inputs:
    """Return `inputs` as finite arrays, after checking that they are shaped like `example` but for their length.

    Arrays of another shape but equal rank are another resolution, if the outputs of the model follow it.
    """
    dtype = jnp.result_type(*jax.tree.leaves(example))
    inputs = jax.tree.map(lambda leaf: as_finite(name, leaf, dtype), inputs)
    shapes, expected = (
        [leaf.shape[1:] for leaf in jax.tree.leaves(tree)] if tree is not None else [] for tree in (inputs, example)
    )
    is_alike = jax.tree.structure(inputs) == jax.tree.structure(example)
    has_ranks = is_alike and [len(shape) for shape in shapes] == [len(shape) for shape in expected]
    if not is_alike or (shapes != expected and not (has_ranks and follows(inputs))):
        raise InputError(
            f"`{name}` must have the shapes (n, …) of the training inputs, {expected} after the first axis, "
            f"got {shapes}."
        )
    return inputs


def as_finite(name: str, value: Any, dtype: Any) -> Array:
    """Return data as an array of finite numbers of `dtype`, or raise an :class:`InputError` that names them."""
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.number) or np.issubdtype(array.dtype, np.complexfloating):
        raise InputError(f"`{name}` must be real numbers, got dtype {array.dtype}.")
    if array.ndim == 0 or array.shape[0] == 0:
        raise InputError(f"`{name}` must have at least one observation on its first axis, got shape {array.shape}.")
    with np.errstate(over="ignore"):
        array = array.astype(dtype)
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        where = tuple(bad[0].tolist())
        raise InputError(f"`{name}` must be finite, got {array[where]} at index {where} ({len(bad)} in all).")
    return jnp.asarray(array, dtype)


def as_positive(name: str, value: Any, meaning: str, dtype: Any) -> Array:
    """Return a positive number, or an array of them, as an array of `dtype`."""
    try:
        array = np.asarray(value, dtype=float).astype(dtype)
    except (TypeError, ValueError):
        raise InputError(f"`{name}` must be a positive number, got {value!r}. It is {meaning}.") from None
    if not np.all(np.isfinite(array) & (array > 0)):
        raise InputError(f"`{name}` must be positive and finite, got {value}. It is {meaning}.")
    return jnp.asarray(array, dtype)


def check_lengths(inputs: Inputs, targets: Array) -> None:
    """Refuse inputs and targets with different numbers of observations."""
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(inputs)}
    if lengths != {targets.shape[0]}:
        raise InputError(
            f"`inputs` and `targets` must have the same number of observations, "
            f"got {sorted(lengths)} and {targets.shape[0]}."
        )
