"""The subspace that the kept parameters span.

A :class:`Subspace` turns any function of all parameters into a function of the kept ones, with the others frozen at
the mean of q. Which are kept is up to :mod:`vihmc.selection.rules`.
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
from vihmc.models.vectorised import LanesDensity
from vihmc.tracing import as_pytree_function
from vihmc.types import Vector


@dataclass(frozen=True, eq=False)
class Subspace:
    """The kept parameters, and the values of the frozen ones. Build it with :meth:`of`.

    Attributes:
        kept: Indices of the kept parameters in the full vector, ascending.
        rank: For every parameter, its place among the kept ones, or -1 if it is frozen.
        center: A full parameter vector; its entries outside `kept` are what the frozen ones are held at. In lanes it
            may be one vector per lane, along the last axis.
    """

    kept: Int[Array, " kept"]
    rank: Int[Array, " params"]
    center: Float[Array, "params *lanes"]

    @classmethod
    def of(cls, kept: Any, center: Vector) -> "Subspace":
        """Keep the parameters with the given distinct indices, and hold the others at `center`."""
        indices = np.unique(np.asarray(kept))
        size = center.shape[0]
        if not (indices.size == np.size(kept) > 0 and indices[0] >= 0 and indices[-1] < size):
            raise InputError(f"`kept` must be distinct indices from 0 to {size - 1}, at least one, got {kept}.")
        rank = np.full(size, -1)
        rank[indices] = np.arange(indices.size)
        return cls(jnp.asarray(indices), jnp.asarray(rank), center)

    @property
    def num_kept(self) -> int:
        """Dimension of the subspace."""
        return self.kept.shape[0]

    def extract(self, theta: Float[Array, "*batch params"]) -> Float[Array, "*batch kept"]:
        """Take the kept entries of full parameter vectors."""
        return theta[..., self.kept]

    def embed(self, position: Float[Array, "*batch kept"]) -> Float[Array, "*batch params"]:
        """Put kept entries back into full parameter vectors."""
        if self.num_kept == self.center.shape[0]:
            return position
        return scatter(position, self.kept, self.rank, self.center)

    def embed_in_lanes(self, positions: Float[Array, "kept lanes"]) -> Float[Array, "params lanes"]:
        """The same with one vector per lane, along the last axis."""
        if self.num_kept == self.center.shape[0]:
            return positions
        return _scatter_rows(positions, self.kept, self.rank, self.center)

    def held_at(self, center: Float[Array, "params *lanes"]) -> "Subspace":
        """The same parameters kept, the others held at other values."""
        return replace(self, center=center)

    def restrict_in_lanes(self, function: Partial) -> LanesDensity:
        """Turn a density in lanes of full vectors into one of kept vectors."""
        return LanesDensity(Partial(_call_embedded_in_lanes, self, function))

    def restrict(self, function: Callable[..., Array]) -> Partial:
        """Turn a function whose first argument is a full vector into one of a kept vector."""
        return Partial(_call_embedded, self, as_pytree_function(function))


jax.tree_util.register_dataclass(Subspace, data_fields=["kept", "rank", "center"], meta_fields=[])


@jax.custom_vjp
def scatter(position: Array, kept: Array, rank: Array, center: Array) -> Array:
    """Return `center` with its entries `kept` replaced by `position`; `rank` is the inverse of `kept`."""
    return jnp.where(rank >= 0, _take(position, jnp.maximum(rank, 0)), center)


def _take(values: Array, indices: Array) -> Array:
    # Indices were checked when the subspace was built; checking them again costs as much as the gather itself.
    return values.at[..., indices].get(mode="promise_in_bounds")


def _scatter_forward(position: Array, kept: Array, rank: Array, center: Array) -> tuple[Array, tuple[Array, Array]]:
    return scatter(position, kept, rank, center), (kept, rank)


def _scatter_backward(residual: tuple[Array, Array], cotangent: Array) -> tuple[Array, None, None, Array]:
    # Written by hand because both ways are gathers: the derivative that JAX finds is a scatter, a serial loop on CPU.
    kept, rank = residual
    frozen = jnp.where(rank >= 0, 0, cotangent)
    return _take(cotangent, kept), None, None, frozen.reshape(-1, rank.shape[0]).sum(axis=0)


scatter.defvjp(_scatter_forward, _scatter_backward)


@jax.custom_vjp
def _scatter_rows(positions: Array, kept: Array, rank: Array, center: Array) -> Array:
    # Where each chain has a center of its own JAX also traces, but never runs, the program of a single lane.
    center = center.reshape(center.shape[0], -1)[:, : positions.shape[1]]
    return jnp.where((rank >= 0)[:, None], _take_rows(positions, jnp.maximum(rank, 0)), center)


def _take_rows(values: Array, indices: Array) -> Array:
    return values.at[indices].get(mode="promise_in_bounds")


def _scatter_rows_forward(positions: Array, kept: Array, rank: Array, center: Array) -> tuple[Array, Array]:
    return _scatter_rows(positions, kept, rank, center), kept


def _scatter_rows_backward(kept: Array, cotangent: Array) -> tuple[Array, None, None, None]:
    return _take_rows(cotangent, kept), None, None, None


_scatter_rows.defvjp(_scatter_rows_forward, _scatter_rows_backward)


def _call_embedded_in_lanes(subspace: Subspace, function: Partial, positions: Array) -> Array:
    return function(subspace.embed_in_lanes(positions))


def _call_embedded(subspace: Subspace, function: Partial, position: Array, *args: Any) -> Array:
    return function(subspace.embed(position), *args)


def whole_space(center: Vector) -> Subspace:
    """The subspace that keeps every parameter: the method then is plain HMC."""
    return Subspace.of(np.arange(center.shape[0]), center)
