r"""Derivatives of a model's outputs: sums of their squares, and single rows, in bounded memory.

.. math:: \sum_j w_j J_{ji}^2 = E\Big[\big(\textstyle\sum_j \epsilon_j \sqrt{w_j} J_{ji}\big)^2\Big]

The left side is the diagonal of the Gauss–Newton matrix, computed gradient by gradient in chunks; the right side, with
independent random signs, is an unbiased estimate at one backward pass per probe.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from vihmc.types import Inputs, Key, PredictFn, Vector, as_pytree_function

MANY_OUTPUTS = 100_000
"""Above so many outputs, a gradient each takes longer than some hundred passes over all of them."""
_ROWS_AT_ONCE = 16


def sum_squared_gradients(
    predict_fn: PredictFn, theta: Vector, inputs: Inputs, *, weights: Array | None = None, memory_mb: float
) -> Float[Array, " params"]:
    r"""Exact :math:`\sum_j w_j J_{ji}^2` over all observations and outputs, never more than a chunk of J at a time."""
    predict_fn, inputs = _weighted(predict_fn, inputs, weights)
    num_outputs = _num_outputs(predict_fn, theta, inputs)
    rows = _rows_in(memory_mb, theta)
    output_chunk = min(num_outputs, rows)
    input_chunk = max(1, rows // output_chunk)
    return _sum_squares(predict_fn, theta, inputs, input_chunk, output_chunk)


def estimate_squared_gradients(
    predict_fn: PredictFn,
    theta: Vector,
    inputs: Inputs,
    rng_key: Key,
    *,
    weights: Array | None = None,
    num_probes: int,
    memory_mb: float,
) -> tuple[Float[Array, " params"], Float[Array, " params"]]:
    r"""Unbiased estimate of :math:`\sum_j w_j J_{ji}^2` from random signs, and its standard error."""
    predict_fn, inputs = _weighted(predict_fn, inputs, weights)
    return _probe_squares(predict_fn, theta, inputs, rng_key, num_probes, _rows_in(memory_mb, theta))


def gradients_at(
    predict_fn: PredictFn, theta: Vector, inputs: Inputs, points: Int[np.ndarray, " points"]
) -> Float[Array, "points params"]:
    """Derivatives of some outputs by all parameters; `points` are indices into all outputs, inputs first."""
    return _gradients_at(as_pytree_function(predict_fn), theta, inputs, jnp.asarray(points))


def _rows_in(memory_mb: float, theta: Vector) -> int:
    return max(1, int(memory_mb * 1e6 / (theta.size * theta.dtype.itemsize)))


def _weighted(predict_fn: PredictFn, inputs: Inputs, weights: Array | None) -> tuple[PredictFn, Inputs]:
    """Scale predictions by the square roots of their weights, which travel with the inputs."""
    if weights is None:
        return as_pytree_function(predict_fn), inputs
    return Partial(_scaled, as_pytree_function(predict_fn)), (inputs, jnp.sqrt(weights))


def _scaled(predict_fn: PredictFn, theta: Array, inputs: tuple[Inputs, Array]) -> Array:
    return inputs[1] * predict_fn(theta, inputs[0])


@partial(jax.jit, static_argnums=(3, 4))
def _sum_squares(predict_fn: Partial, mean: Array, inputs: Inputs, input_chunk: int, output_chunk: int) -> Array:
    num_outputs = _num_outputs(predict_fn, mean, inputs)
    num_output_chunks = math.ceil(num_outputs / output_chunk)

    def squares_of_one(x: Inputs) -> Array:
        _, pullback = jax.vjp(lambda theta: predict_fn(theta, jax.tree.map(lambda leaf: leaf[None], x)).ravel(), mean)

        def squares_of_outputs(start: Array) -> Array:
            # One row of the identity per output; rows past the last output are zero and add nothing.
            index = start + jnp.arange(output_chunk)
            cotangents = (index[:, None] == jnp.arange(num_outputs)).astype(mean.dtype)
            return jnp.sum(jax.vmap(pullback)(cotangents)[0] ** 2, axis=0)

        if num_output_chunks == 1:
            return squares_of_outputs(jnp.asarray(0))
        starts = output_chunk * jnp.arange(num_output_chunks)
        return jax.lax.fori_loop(
            0, num_output_chunks, lambda i, total: total + squares_of_outputs(starts[i]), jnp.zeros_like(mean)
        )

    def add_chunk(total: Array, chunk: tuple[Inputs, Array]) -> tuple[Array, None]:
        x, weight = chunk
        return total + jnp.einsum("n,np->p", weight, jax.vmap(squares_of_one)(x)), None

    return jax.lax.scan(add_chunk, jnp.zeros_like(mean), _chunked(inputs, input_chunk, mean.dtype))[0]


@partial(jax.jit, static_argnums=(4, 5))
def _probe_squares(
    predict_fn: Partial, mean: Array, inputs: Inputs, rng_key: Key, num_probes: int, input_chunk: int
) -> tuple[Array, Array]:
    """Mean and standard error of squares of signed sums of gradients."""
    chunks = _chunked(inputs, input_chunk, mean.dtype)
    num_chunks = chunks[1].shape[0]

    def probe(index: Array) -> Array:
        key = jax.random.fold_in(rng_key, index)

        def add_chunk(total: Array, chunk: tuple) -> tuple[Array, None]:
            (x, weight), chunk_index = chunk
            outputs = jax.eval_shape(predict_fn, mean, x)
            signs = jax.random.rademacher(jax.random.fold_in(key, chunk_index), outputs.shape, outputs.dtype)
            signs = signs * weight.reshape(-1, *[1] * (outputs.ndim - 1)).astype(outputs.dtype)
            return total + jax.vjp(lambda theta: predict_fn(theta, x), mean)[1](signs)[0], None

        total, _ = jax.lax.scan(add_chunk, jnp.zeros_like(mean), (chunks, jnp.arange(num_chunks)))
        return total**2

    def add_probe(carry: tuple[Array, Array], index: Array) -> tuple[tuple[Array, Array], None]:
        # Welford: the variance of squares cancels badly as a difference of sums in float32.
        average, spread = carry
        value = probe(index)
        new_average = average + (value - average) / (index + 1)
        return (new_average, spread + (value - average) * (value - new_average)), None

    zero = jnp.zeros_like(mean)
    (average, spread), _ = jax.lax.scan(add_probe, (zero, zero), jnp.arange(num_probes))
    return average, jnp.sqrt(spread / max(num_probes - 1, 1) / num_probes)


@jax.jit
def _gradients_at(predict_fn: Partial, theta: Array, inputs: Inputs, points: Array) -> Array:
    num_outputs = math.prod(jax.eval_shape(predict_fn, theta, inputs).shape[1:])

    def one(point: Array) -> Array:
        index, output = jnp.divmod(point, num_outputs)
        x = jax.tree.map(lambda leaf: leaf[index][None], inputs)
        return jax.grad(lambda theta: predict_fn(theta, x).ravel()[output])(theta)

    return jax.lax.map(one, points, batch_size=min(_ROWS_AT_ONCE, len(points)))


def _num_outputs(predict_fn: PredictFn, mean: Array, inputs: Inputs) -> int:
    prediction = jax.eval_shape(predict_fn, mean, inputs)
    return prediction.size // prediction.shape[0]


def _chunked(inputs: Inputs, chunk: int, dtype: jnp.dtype) -> tuple[Inputs, Array]:
    """Split the leading axis into equal chunks, padded by repeats of the last row that weigh nothing."""
    length = jax.tree.leaves(inputs)[0].shape[0]
    chunk = min(chunk, length)
    num_chunks = math.ceil(length / chunk)
    index = jnp.minimum(jnp.arange(num_chunks * chunk), length - 1)
    weight = (jnp.arange(num_chunks * chunk) < length).astype(dtype)
    split = jax.tree.map(lambda leaf: leaf[index].reshape(num_chunks, chunk, *leaf.shape[1:]), inputs)
    return split, weight.reshape(num_chunks, chunk)
