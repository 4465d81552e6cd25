"""The subspace that the selected parameters span.

A :class:`Subspace` turns any function of all parameters into a function of the selected ones, with the others frozen at
the mean of q. Which are selected is up to :mod:`vihmc.selection.rules`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from vihmc.errors import InputError
from vihmc.models.vectorised import VectorisedDensity
from vihmc.types import Vector, as_pytree_function, readable, register_pytree


@readable
@dataclass(frozen=True, eq=False)
class Subspace:
    """The selected parameters, and values of the frozen parameters. Build it with :meth:`of`.

    Attributes:
        selected: Indices of the selected parameters in the full vector, ascending.
        rank: For every parameter, its place among the selected ones, or -1 if it is frozen.
        center: A full parameter vector; its entries outside `selected` are the values of the frozen parameters. For
            vectorised chains it may be one vector per chain, along the last axis.
    """

    selected: Int[Array, " selected"]
    rank: Int[Array, " params"]
    center: Float[Array, "params *chains"]

    @classmethod
    def of(cls, selected: Any, center: Vector) -> "Subspace":
        """Keep the parameters with the given distinct indices, and hold the others at `center`."""
        indices = np.unique(np.asarray(selected))
        size = center.shape[0]
        if not (indices.size == np.size(selected) > 0 and indices[0] >= 0 and indices[-1] < size):
            raise InputError(f"`selected` must be distinct indices from 0 to {size - 1}, at least one, got {selected}.")
        rank = np.full(size, -1)
        rank[indices] = np.arange(indices.size)
        return cls(jnp.asarray(indices), jnp.asarray(rank), center)

    @property
    def num_selected(self) -> int:
        """Dimension of the subspace."""
        return self.selected.shape[0]

    def differs_per_chain(self, frozen: str) -> bool:
        """Whether each chain has values of its own for the frozen parameters, if any are frozen."""
        return frozen != "mean" and self.num_selected < self.center.shape[0]

    def extract(self, theta: Float[Array, "*batch params"]) -> Float[Array, "*batch selected"]:
        """Take the selected entries of full parameter vectors."""
        return theta[..., self.selected]

    def embed(self, position: Float[Array, "*batch selected"]) -> Float[Array, "*batch params"]:
        """Put selected entries back into full parameter vectors."""
        if self.num_selected == self.center.shape[0]:
            return position
        return scatter(position, self.selected, self.rank, self.center)

    def embed_vectorised(self, positions: Float[Array, "selected chains"]) -> Float[Array, "params chains"]:
        """The same with one vector per chain, along the last axis."""
        if self.num_selected == self.center.shape[0]:
            return positions
        return _scatter_rows(positions, self.selected, self.rank, self.center)

    def held_at(self, center: Float[Array, "params *chains"]) -> "Subspace":
        """The same parameters selected, the others held at other values."""
        return replace(self, center=center)

    def restrict_vectorised(self, function: Partial) -> VectorisedDensity:
        """Turn a vectorised density of full vectors into one of selected vectors."""
        return VectorisedDensity(Partial(_call_embedded_vectorised, self, function))

    def restrict(self, function: Callable[..., Array]) -> Partial:
        """Turn a function whose first argument is a full vector into one of a selected vector."""
        return Partial(_call_embedded, self, as_pytree_function(function))


register_pytree(Subspace, data_fields=["selected", "rank", "center"], meta_fields=[])


class TangentSpace(Subspace):
    """All parameters, where functions of them are linear: on it a function is its first-order expansion at `center`."""

    @classmethod
    def at(cls, center: Vector) -> "TangentSpace":
        """Linearise around `center`."""
        index = jnp.arange(center.shape[0])
        return cls(index, index, center)

    def restrict(self, function: Callable[..., Array]) -> Partial:
        """The first-order expansion of a function of a full vector."""
        return Partial(_call_linearised, self, as_pytree_function(function))


register_pytree(TangentSpace, data_fields=["selected", "rank", "center"], meta_fields=[])


def _call_linearised(space: TangentSpace, function: Partial, position: Array, *args: Any) -> Array:
    step = position - space.center
    value, change = jax.jvp(lambda theta: function(theta, *args), (space.center,), (step,))
    return value + change


@jax.custom_vjp
def scatter(position: Array, selected: Array, rank: Array, center: Array) -> Array:
    """Return `center` with its entries `selected` replaced by `position`; `rank` is the inverse of `selected`."""
    return jnp.where(rank >= 0, _take(position, jnp.maximum(rank, 0)), center)


def _take(values: Array, indices: Array) -> Array:
    # Indices were checked when the subspace was built; checking them again costs as much as the gather itself.
    return values.at[..., indices].get(mode="promise_in_bounds")


def _scatter_forward(position: Array, selected: Array, rank: Array, center: Array) -> tuple[Array, tuple[Array, Array]]:
    return scatter(position, selected, rank, center), (selected, rank)


def _scatter_backward(residual: tuple[Array, Array], cotangent: Array) -> tuple[Array, None, None, Array]:
    # Written by hand because both ways are gathers: the derivative that JAX finds is a scatter, a serial loop on CPU.
    selected, rank = residual
    frozen = jnp.where(rank >= 0, 0, cotangent)
    return _take(cotangent, selected), None, None, frozen.reshape(-1, rank.shape[0]).sum(axis=0)


scatter.defvjp(_scatter_forward, _scatter_backward)


@jax.custom_vjp
def _scatter_rows(positions: Array, selected: Array, rank: Array, center: Array) -> Array:
    # Where each chain has a center of its own JAX also traces, but never runs, the program of a single chain.
    center = center.reshape(center.shape[0], -1)[:, : positions.shape[1]]
    return jnp.where((rank >= 0)[:, None], _take_rows(positions, jnp.maximum(rank, 0)), center)


def _take_rows(values: Array, indices: Array) -> Array:
    return values.at[indices].get(mode="promise_in_bounds")


def _scatter_rows_forward(positions: Array, selected: Array, rank: Array, center: Array) -> tuple[Array, Array]:
    return _scatter_rows(positions, selected, rank, center), selected


def _scatter_rows_backward(selected: Array, cotangent: Array) -> tuple[Array, None, None, None]:
    return _take_rows(cotangent, selected), None, None, None


_scatter_rows.defvjp(_scatter_rows_forward, _scatter_rows_backward)


def _call_embedded_vectorised(subspace: Subspace, function: Partial, positions: Array) -> Array:
    return function(subspace.embed_vectorised(positions))


def _call_embedded(subspace: Subspace, function: Partial, position: Array, *args: Any) -> Array:
    return function(subspace.embed(position), *args)


def whole_space(center: Vector) -> Subspace:
    """The subspace that keeps every parameter: the method then is plain HMC."""
    return Subspace.of(np.arange(center.shape[0]), center)
