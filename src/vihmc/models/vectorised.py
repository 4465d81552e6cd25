r"""Many chains through one narrow network, vectorised on a CPU: the chains along the last axis of every array.

A 20 × 10 matrix times a 10 × 10 one is too small a product for any library, and a batch of 64 of them is 64 calls. With
the chains last, every multiplication of

.. math:: \text{out}_{njc} = \sum_i \text{hidden}_{nic}\, \text{weight}_{ijc}

runs on as many chains at once as a vector register holds, and the whole sum is one loop. Two to four times as fast for
layers of ten neurons, even at twenty, slower from forty on: see :func:`is_narrow`.

A vectorised density takes positions (dim, chains) and gives one number per chain. :class:`VectorisedDensity` makes it
an ordinary density, a function of one position, that is vectorised again when chains are mapped over it.
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

from vihmc.types import register_pytree

MIN_CHAINS = 32
"""With fewer the loops are not vectorised, and several times slower: 16 chains take longer than 32."""
MAX_WIDTH = 16
MAX_OBSERVATIONS = 128
"""Sums over neurons and observations are written out term by term, and the program has to stay of decent length."""


def is_narrow(widths: tuple[int, ...], *, num_observations: int) -> bool:
    """Whether vectorised chains are faster than batches of matrix products, for layers of these widths."""
    return max(widths) <= MAX_WIDTH and num_observations <= MAX_OBSERVATIONS


@jax.custom_vjp
def multiply(
    hidden: Float[Array, "n inputs chains_or_1"], weight: Float[Array, "inputs outputs chains"]
) -> Float[Array, "n outputs chains"]:
    """Matrix product of every chain."""
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
class VectorisedDensity:
    """A density that is vectorised over chains, and an ordinary density of one position.

    Attributes:
        of_chains: Log densities (chains) of positions (dim, chains).
    """

    of_chains: Partial

    def __call__(self, position: Float[Array, " dim"]) -> Float[Array, ""]:
        """Log density of one position; mapped over chains, it is vectorised."""
        leaves, structure = jax.tree.flatten(self.of_chains)
        return _value(structure, leaves, position)

    def gradients(self, positions: Float[Array, "dim chains"]) -> Float[Array, "dim chains"]:
        """Gradients of all chains."""
        return _values_and_gradients(self.of_chains, positions)[1]


register_pytree(VectorisedDensity, data_fields=["of_chains"], meta_fields=[])


# Here and below, leaves instead of the tree itself: JAX fills trees with marks of its own that not every class takes.
@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _value(structure: Any, leaves: list[Array], position: Array) -> Array:
    return _value_and_gradient(structure, leaves, position)[0]


def _value_and_gradient(structure: Any, leaves: list[Array], position: Array) -> tuple[Array, Array]:
    return call_with_all_chains(_of_one, _of_all, structure.unflatten(leaves), position)


def _value_backward(structure: Any, gradient: Array, cotangent: Array) -> tuple[None, Array]:
    # How the density changes with the data is nobody's question.
    return None, cotangent * gradient


_value.defvjp(_value_and_gradient, _value_backward)


def _of_one(of_chains: Partial, position: Array) -> tuple[Array, Array]:
    values, gradients = _values_and_gradients(of_chains, position[:, None])
    return values[0], gradients[:, 0]


def _of_all(of_chains: Partial, positions: Array) -> tuple[Array, Array]:
    # The barriers keep the turning of the arrays out of the loops around it, which would read with a stride.
    values, gradients = _values_and_gradients(of_chains, jax.lax.optimization_barrier(positions.T))
    return values, jax.lax.optimization_barrier(gradients).T


def _values_and_gradients(of_chains: Partial, positions: Array) -> tuple[Array, Array]:
    values, pull = jax.vjp(of_chains, positions)
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
            raise NotImplementedError("A vectorised density can be mapped over chains alone, got mapped data.")
        stacked = (
            argument if batched else jnp.broadcast_to(argument, (axis_size, *argument.shape))
            for argument, batched in zip(arguments, each_batched, strict=True)
        )
        results = of_all(structure.unflatten(leaves), *stacked)
        return results, jax.tree.map(lambda _: True, results)

    return function
