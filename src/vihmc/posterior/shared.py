"""Inputs that all observations share, such as the grid of a field: they have no axis of observations.

A tree of inputs is split into rows, which minibatches, chunks and new inputs are made of, and what is shared. Each part
has None where the other has an array.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vihmc.posterior.checks import as_finite
from vihmc.types import Inputs


class Shared:
    """An array that every observation sees as it is: ``{"field": fields, "grid": Shared(grid)}``."""

    def __init__(self, value: Any) -> None:
        """Hold an array."""
        self.value = value


class SplitInputs(NamedTuple):
    """Inputs with an axis of observations, and those without; the latter None if there are none."""

    rows: Inputs
    shared: Inputs


def split_inputs(name: str, inputs: Inputs, dtype: Any) -> SplitInputs:
    """Separate what is shared, as a finite array."""
    is_shared = [isinstance(leaf, Shared) for leaf in jax.tree.leaves(inputs)]
    if not any(is_shared):
        return SplitInputs(inputs, None)
    rows = jax.tree.map(lambda leaf: None if isinstance(leaf, Shared) else leaf, inputs)
    shared = jax.tree.map(lambda leaf: as_finite(name, leaf.value, dtype) if isinstance(leaf, Shared) else None, inputs)
    return SplitInputs(rows, shared)


def join_inputs(rows: Inputs, shared: Inputs) -> Inputs:
    """Undo :func:`split_inputs`."""
    if shared is None:
        return rows
    return jax.tree.map(
        lambda row, other: other if row is None else row, rows, shared, is_leaf=lambda leaf: leaf is None
    )


def is_same(one: Inputs, other: Inputs) -> bool:
    """Whether shared inputs are the same."""
    leaves = [jax.tree.leaves(tree) for tree in (one, other)]
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        jnp.shape(a) == jnp.shape(b) and np.array_equal(a, b) for a, b in zip(*leaves, strict=True)
    )
