r"""Many chains through one narrow network: the chains along the last axis, one in every lane of the processor.

A 20 × 10 matrix times a 10 × 10 one is too small a product for any library, and a batch of 64 of them is 64 calls. With
the chains last, every multiplication of

.. math:: \text{out}_{njc} = \sum_i \text{hidden}_{nic}\, \text{weight}_{ijc}

runs on as many chains at once as the processor has lanes, and the whole sum is one loop. Two to four times as fast for
layers of ten neurons, even at twenty, slower from forty on: see :func:`is_narrow`.

A density *in lanes* takes positions (dim, chains) and gives one number per chain. :class:`LanesDensity` makes of it an
ordinary density, a function of one position, that goes back to lanes when chains are mapped over it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.tree_util import Partial
from jaxtyping import Array, Float

MIN_CHAINS = 32
"""With fewer the loops are not vectorised, and several times slower: 16 chains take longer than 32."""
MAX_WIDTH = 16
MAX_OBSERVATIONS = 128
"""Sums over neurons and observations are written out term by term, and the program has to stay of decent length."""


def is_narrow(widths: tuple[int, ...], *, num_observations: int) -> bool:
    """Whether lanes are the faster way for layers of these widths."""
    return max(widths) <= MAX_WIDTH and num_observations <= MAX_OBSERVATIONS


@jax.custom_vjp
def multiply(
    hidden: Float[Array, "n inputs lanes_or_1"], weight: Float[Array, "inputs outputs lanes"]
) -> Float[Array, "n outputs lanes"]:
    """Matrix product in every lane."""
    return sum_of_products(hidden[:, :, None], weight[None], axis=1)


def _multiply_forward(hidden: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return multiply(hidden, weight), (hidden, weight)


def _multiply_backward(residual: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    hidden, weight = residual
    to_hidden = sum_of_products(cotangent[:, None], weight[None], axis=2)
    if hidden.shape[-1] == 1:
        to_hidden = to_hidden.sum(axis=-1, keepdims=True)
    return to_hidden, sum_of_products(hidden[:, :, None], cotangent[:, None], axis=0)


multiply.defvjp(_multiply_forward, _multiply_backward)


def sum_of_products(first: Array, second: Array, *, axis: int) -> Array:
    """Sum of `first` times `second` over an axis of known, small length, term by term: one loop over what is left."""
    length = max(first.shape[axis], second.shape[axis])
    take = partial(jax.lax.index_in_dim, axis=axis, keepdims=False)
    terms = (take(first, index) * take(second, index) for index in range(length))
    total = next(terms)
    for term in terms:
        total = total + term
    return total


@dataclass(frozen=True, eq=False)
class LanesDensity:
    """A density that is computed in lanes, and is an ordinary density of one position all the same.

    Attributes:
        in_lanes: Log densities (chains) of positions (dim, chains).
    """

    in_lanes: Partial

    def __call__(self, position: Float[Array, " dim"]) -> Float[Array, ""]:
        """Log density of one position; mapped over chains, it is computed in lanes."""
        leaves, structure = jax.tree.flatten(self.in_lanes)
        return _value(structure, leaves, position)

    def gradients(self, positions: Float[Array, "dim lanes"]) -> Float[Array, "dim lanes"]:
        """Gradients of all chains."""
        return _values_and_gradients(self.in_lanes, positions)[1]


jax.tree_util.register_dataclass(LanesDensity, data_fields=["in_lanes"], meta_fields=[])


# Here and below, leaves instead of the tree itself: JAX fills trees with marks of its own that not every class takes.
@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _value(structure: Any, leaves: list[Array], position: Array) -> Array:
    return _value_and_gradient(structure, leaves, position)[0]


def _value_and_gradient(structure: Any, leaves: list[Array], position: Array) -> tuple[Array, Array]:
    return call_with_all_chains(_in_one_lane, _in_all_lanes, structure.unflatten(leaves), position)


def _value_backward(structure: Any, gradient: Array, cotangent: Array) -> tuple[None, Array]:
    # How the density changes with the data is nobody's question.
    return None, cotangent * gradient


_value.defvjp(_value_and_gradient, _value_backward)


def _in_one_lane(in_lanes: Partial, position: Array) -> tuple[Array, Array]:
    values, gradients = _values_and_gradients(in_lanes, position[:, None])
    return values[0], gradients[:, 0]


def _in_all_lanes(in_lanes: Partial, positions: Array) -> tuple[Array, Array]:
    # The barriers keep the turning of the arrays out of the loops around it, which would read with a stride.
    values, gradients = _values_and_gradients(in_lanes, jax.lax.optimization_barrier(positions.T))
    return values, jax.lax.optimization_barrier(gradients).T


def _values_and_gradients(in_lanes: Partial, positions: Array) -> tuple[Array, Array]:
    values, pull = jax.vjp(in_lanes, positions)
    (gradients,) = pull(jnp.ones_like(values))
    return values, gradients


def call_with_all_chains(of_one: Callable, of_all: Callable, common: Any, *arguments: Array) -> Any:
    """Call `of_one`; or `of_all`, once, where chains are mapped over.

    Args:
        of_one: For the arguments of one chain.
        of_all: For those of all chains, which are along the first axis of every argument and result.
        common: A pytree that all chains share.
        arguments: What differs between chains.
    """
    leaves, structure = jax.tree.flatten(common)
    return _mappable(of_one, of_all, structure)(leaves, *arguments)


@lru_cache
def _mappable(of_one: Callable, of_all: Callable, structure: Any) -> Callable:
    function = custom_vmap(lambda leaves, *arguments: of_one(structure.unflatten(leaves), *arguments))

    @function.def_vmap
    def _(axis_size: int, in_batched: Any, leaves: list[Array], *arguments: Array) -> tuple[Any, Any]:
        common_batched, *each_batched = in_batched
        if any(common_batched):
            raise NotImplementedError("What is computed in lanes can be mapped over chains alone, got mapped data.")
        stacked = (
            argument if batched else jnp.broadcast_to(argument, (axis_size, *argument.shape))
            for argument, batched in zip(arguments, each_batched, strict=True)
        )
        results = of_all(structure.unflatten(leaves), *stacked)
        return results, jax.tree.map(lambda _: True, results)

    return function
