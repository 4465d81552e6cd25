"""The order of the scalars of a parameter tree in one flat vector, and their names.

The method keeps and freezes *single* scalars, so every stage works on a flat
vector; the layout is the only thing that knows where each scalar lives in the
tree. It is hashable, hence a static argument of compiled functions.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from vihmc.errors import InputError
from vihmc.types import Params, Vector, readable


@readable
@dataclass(frozen=True)
class ParamLayout:
    """Where each scalar of a parameter tree sits in the flat vector.

    Attributes:
        treedef: Structure of the tree.
        leaf_names: Path of each leaf, such as ``layers.0.weight``.
        shapes: Shape of each leaf.
        scale_names: Learnt scales, whose logarithms come after the model's parameters.
    """

    treedef: Any
    leaf_names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    scale_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, params: Params) -> "ParamLayout":
        """Read the layout off an example tree of parameters."""
        leaves, treedef = jax.tree_util.tree_flatten_with_path(params)
        if not leaves:
            raise InputError("`params` must hold at least one array, got an empty tree.")
        names = tuple(jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves)
        for name, (_, leaf) in zip(names, leaves, strict=True):
            dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
            if not jnp.issubdtype(dtype, jnp.floating):
                what = dtype if jnp.issubdtype(dtype, jnp.number) else f"a {type(leaf).__name__}"
                raise InputError(f"`params` must hold floating-point arrays, got {what} at '{name}'.")
        return cls(treedef, names, tuple(tuple(jnp.shape(leaf)) for _, leaf in leaves))

    @cached_property
    def leaf_sizes(self) -> tuple[int, ...]:
        """Number of scalars of each leaf."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Start of each leaf in the vector, and its end as the last entry."""
        return tuple(np.cumsum((0, *self.leaf_sizes)).tolist())

    @property
    def size(self) -> int:
        """Number of scalars of the model."""
        return self.offsets[-1]

    @property
    def dim(self) -> int:
        """Length of the vector: parameters of the model and learnt scales."""
        return self.size + len(self.scale_names)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name of every scalar, such as ``layers.0.weight[0,3]``, and of the logarithms of the scales."""
        weights = (
            leaf + ("[" + ",".join(map(str, index)) + "]" if shape else "")
            for leaf, shape in zip(self.leaf_names, self.shapes, strict=True)
            for index in np.ndindex(*shape)
        )
        return (*weights, *(f"log {name}" for name in self.scale_names))

    def ravel(self, params: Params) -> Vector:
        """Flatten a tree of this layout into a vector of the model's parameters."""
        leaves, treedef = jax.tree.flatten(params)
        shapes = tuple(tuple(jnp.shape(leaf)) for leaf in leaves)
        if treedef != self.treedef or shapes != self.shapes:
            raise InputError(
                f"`params` must have the leaves {dict(zip(self.leaf_names, self.shapes, strict=True))}, "
                f"got a tree {treedef} with shapes {shapes}."
            )
        return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])

    def unravel(self, vector: Array) -> Params:
        """Rebuild the model's tree from a vector; axes after its first stay behind those of every leaf."""
        behind = vector.shape[1:]
        pieces = [
            vector[start : start + size].reshape(*shape, *behind)
            for start, size, shape in zip(self.offsets, self.leaf_sizes, self.shapes, strict=False)
        ]
        return jax.tree.unflatten(self.treedef, pieces)

    def spread(self, per_leaf: Params) -> Vector:
        """Repeat one number per leaf for every scalar of that leaf."""
        values, treedef = jax.tree.flatten(per_leaf)
        if treedef != self.treedef or any(jnp.ndim(value) for value in values):
            raise InputError(
                f"One number for each of the leaves {', '.join(self.leaf_names)} is needed, got {per_leaf}."
            )
        sizes = self.leaf_sizes
        return jnp.concatenate([jnp.full(n, v) for n, v in zip(sizes, values, strict=True)])
