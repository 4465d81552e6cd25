r"""Sums over very many rows, and their gradients, in bounded memory.

.. math:: L(\theta) = \sum_b L_b(\theta), \qquad \nabla L(\theta) = \sum_b \nabla L_b(\theta)

A block of rows goes through the model, forth and back, before the next one does: the hidden layers of a million rows
are never held, and no block is run twice. Where a gradient is wanted, it is accumulated with the value in one pass,
so the derivative of the sum is the gradient times a number.

Blocks are added in the widest float there is. Where that is float32, sums are compensated (Neumaier 1974): the rounding
of a sum over blocks does not grow with their number.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from vihmc.types import Inputs

ROWS_AT_ONCE = 4096
"""Rows of a block: enough for matrix products to be fast, few enough for their results to stay in the cache."""
MANY_ROWS = 32_768
"""More rows than these are taken in blocks."""

Term = Callable[[Any, Any, Any], Array]
"""``term(tree, start, size)``: the sum over rows number `start` to `start + size - 1`, where `size` is no tracer."""


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def sum_in_blocks(term: Term, num_rows: int, tree: Any) -> Array:
    """Sum a term over all rows, block by block; reverse-mode derivatives by anything in `tree` take one pass."""
    return accumulate(lambda start, size: term(tree, start, size), num_rows)


def _forward(term: Term, num_rows: int, marked: Any) -> tuple[Array, Any]:
    leaves, structure = jax.tree.flatten(marked)
    varied = [leaf.value for leaf in leaves if leaf.perturbed]

    def of_block(varied: list[Array], start: Any, size: int) -> Array:
        values = iter(varied)
        tree = jax.tree.unflatten(structure, [next(values) if leaf.perturbed else leaf.value for leaf in leaves])
        return term(tree, start, size)

    value, found = accumulate(lambda start, size: jax.value_and_grad(of_block)(varied, start, size), num_rows)
    gradients = iter([gradient.astype(leaf.dtype) for gradient, leaf in zip(found, varied, strict=True)])
    return value, jax.tree.unflatten(structure, [next(gradients) if leaf.perturbed else None for leaf in leaves])


def _backward(term: Term, num_rows: int, gradients: Any, cotangent: Array) -> tuple[Any]:
    return (jax.tree.map(lambda gradient: cotangent.astype(gradient.dtype) * gradient, gradients),)


sum_in_blocks.defvjp(_forward, _backward, symbolic_zeros=True)


def map_in_blocks(function: Callable[[Inputs], Array], rows: Inputs) -> Array:
    """Call a function of rows, which must not influence each other, on one block of them after the other."""
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    num_blocks = num_rows // ROWS_AT_ONCE

    def of_block(index: Array) -> Array:
        return function(take_rows(rows, index * ROWS_AT_ONCE, ROWS_AT_ONCE))

    values = jax.lax.map(of_block, jnp.arange(num_blocks))
    values = values.reshape(-1, *values.shape[2:])
    start = num_blocks * ROWS_AT_ONCE
    if start == num_rows:
        return values
    return jnp.concatenate([values, function(take_rows(rows, start, num_rows - start))])


def take_rows(tree: Any, start: Any, size: int) -> Any:
    """Successive rows of every array."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), tree)


def accumulate(function: Callable[[Any, int], Any], num_rows: int) -> Any:
    """Sum the trees of arrays that ``function(start, size)`` returns of all blocks."""
    num_blocks, left = divmod(num_rows, ROWS_AT_ONCE)
    wide = jnp.result_type(float)
    is_compensated = wide == jnp.float32
    shapes = jax.eval_shape(lambda: function(0, ROWS_AT_ONCE if num_blocks else left))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, wide), shapes)

    def add(carry: tuple[Any, Any], start: Any, size: int) -> tuple[Any, Any]:
        total, lost = carry
        part = jax.tree.map(lambda leaf: leaf.astype(wide), function(start, size))
        new = jax.tree.map(jnp.add, total, part)
        if is_compensated:
            lost = jax.tree.map(_add_lost, lost, total, part, new)
        return new, lost

    def step(carry: tuple[Any, Any], index: Array) -> tuple[tuple[Any, Any], None]:
        return add(carry, index * ROWS_AT_ONCE, ROWS_AT_ONCE), None

    carry, _ = jax.lax.scan(step, (zero, zero if is_compensated else ()), jnp.arange(num_blocks))
    total, lost = add(carry, num_blocks * ROWS_AT_ONCE, left) if left else carry
    return jax.tree.map(jnp.add, total, lost) if is_compensated else total


def _add_lost(lost: Array, total: Array, part: Array, new: Array) -> Array:
    """What the last addition has rounded away, added to what was lost before."""
    larger, smaller = (jnp.where(jnp.abs(total) >= jnp.abs(part), *pair) for pair in ((total, part), (part, total)))
    return lost + ((larger - new) + smaller)
