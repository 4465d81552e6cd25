r"""Stage 2: how much each parameter moves the prediction.

.. math::
    S_i^2 = \sigma_i^2 \, \frac{1}{N} \sum_{j=1}^{N} \left(\frac{\partial F_\mu(x_j)}{\partial \theta_i}\right)^2

with the sum over all observations and all outputs (the paper's equation for :math:`S_i^2`). Outputs that have a noise
each may have a unit each: they count in inverse proportion to its variance, on average once. Two ways to the sum of
squares, both in bounded memory: every gradient, in chunks; or an unbiased estimate, since
:math:`\sum_j J_{ji}^2 = E[(\sum_j \epsilon_j J_{ji})^2]` for independent random signs, one backward pass each.

To second order a prediction has, for independent Gaussian parameters, the variance :math:`\sum_i \sigma_i^2 g_i^2 +
\tfrac12 \sum_{ij} \sigma_i^2 \sigma_j^2 H_{ij}^2`, and a score is the part of it that has an i: every pair is halved
between its two parameters, so that scores still sum to the variance.

.. math::
    S_i^2 = \sigma_i^2 \frac1N \sum_{n=1}^N \Big( J_{ni}^2 + \tfrac12 \textstyle\sum_j H_{nij}^2 \sigma_j^2 \Big)
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from vihmc.config.method import SensitivityConfig
from vihmc.posterior.density import Posterior
from vihmc.posterior.operator import OperatorPosterior
from vihmc.tracing import as_pytree_function
from vihmc.types import Inputs, Key, PredictFn, Vector

_STREAM_CURVATURES = 4000  # away from those of the gradients


class Scores(NamedTuple):
    """One score per parameter.

    Attributes:
        values: :math:`S_i^2`, in squared units of the prediction.
        standard_error: Monte Carlo error of each value; zero for exact scores.
    """

    values: Float[Array, " params"]
    standard_error: Float[Array, " params"]


def score(
    posterior: Posterior,
    mean: Vector,
    std: Vector,
    inputs: Inputs,
    config: SensitivityConfig,
    rng_key: Key | None = None,
    *,
    weights: Array | None = None,
) -> Scores:
    """Score every parameter at `mean`.

    Args:
        posterior: Its model makes the predictions; observations must not influence each other.
        mean: Where gradients are taken.
        std: Standard deviation of each parameter.
        inputs: Where the prediction matters.
        config: Exact or estimated, and the memory it may take.
        rng_key: Needed for the estimate only.
        weights: How much each prediction counts, of their shape; the same if not given.
    """
    shape = jax.eval_shape(as_pytree_function(posterior.predict), mean, inputs).shape
    weights, num_predictions = _weigh_by_noise(posterior.noise_std, weights, shape), math.prod(shape)
    if weights is not None:
        num_predictions = jnp.sum(weights)
    predict_fn, weighed = _weighed(posterior.predict, inputs, weights)
    if rng_key is None and (config.method == "random_signs" or config.order == 2):
        raise ValueError("`rng_key` is needed to draw random signs, got None.")
    if config.method == "random_signs":
        assert rng_key is not None
        squares, error = estimate_squared_gradients(
            predict_fn, mean, weighed, rng_key, num_probes=config.num_probes, memory_mb=config.memory_mb
        )
    else:
        squares = exact_sum_of_squares(posterior, mean, inputs, memory_mb=config.memory_mb, weights=weights)
        error = jnp.zeros_like(squares)
    if config.order == 2:
        assert rng_key is not None
        curvatures, its_error = estimate_squared_curvatures(
            predict_fn,
            mean,
            std,
            weighed,
            jax.random.fold_in(rng_key, _STREAM_CURVATURES),
            num_probes=config.num_probes,
            memory_mb=config.memory_mb,
        )
        squares, error = squares + curvatures / 2, jnp.hypot(error, its_error / 2)
    return Scores(std**2 * squares / num_predictions, std**2 * error / num_predictions)


def frozen_share(
    posterior: Posterior,
    mean: Vector,
    std: Vector,
    kept: Int[Array, " kept"],
    inputs: Inputs,
    config: SensitivityConfig | None = None,
    rng_key: Key | None = None,
    *,
    weights: Array | None = None,
) -> float:
    """Share of the first-order variance of the predictions at `inputs` that is not sampled: Σ S² of all but `kept`.

    As if parameters were independent, as they are in q. It is about these inputs: where predictions are made far from
    the data, other parameters move them than those that were kept. Arguments are those of :func:`score`.
    """
    values = score(posterior, mean, std, inputs, config or SensitivityConfig(), rng_key, weights=weights).values
    return float(1 - values[kept].sum() / values.sum())


def _weigh_by_noise(noise_std: Array, weights: Array | None, shape: tuple[int, ...]) -> Array | None:
    """Weights of predictions of this shape: none if they all count the same."""
    if noise_std.ndim == 0:
        return weights
    precision = 1 / noise_std**2
    by_noise = jnp.broadcast_to(precision / jnp.mean(precision), shape)
    return by_noise if weights is None else weights * by_noise


def exact_sum_of_squares(
    posterior: Posterior, mean: Vector, inputs: Inputs, *, memory_mb: float, weights: Array | None = None
) -> Float[Array, " params"]:
    """Exact sums of squared derivatives: the model's own way if it has one, else every gradient, in chunks."""
    if isinstance(posterior, OperatorPosterior):
        return _structured_squares(posterior, mean, inputs, weights)
    predict_fn, inputs = _weighed(posterior.predict, inputs, weights)
    return sum_squared_gradients(predict_fn, mean, inputs, memory_mb=memory_mb)


@jax.jit
def _structured_squares(posterior: OperatorPosterior, mean: Array, inputs: Inputs, weights: Array | None) -> Array:
    return posterior.sum_squared_gradients(mean, inputs, weights)


def _weighed(predict_fn: PredictFn, inputs: Inputs, weights: Array | None) -> tuple[PredictFn, Inputs]:
    """Scale predictions by the roots of their weights, which travel with the inputs."""
    if weights is None:
        return predict_fn, inputs
    return Partial(_scaled, as_pytree_function(predict_fn)), (inputs, jnp.sqrt(weights))


def _scaled(predict_fn: PredictFn, theta: Array, inputs: tuple[Inputs, Array]) -> Array:
    return inputs[1] * predict_fn(theta, inputs[0])


def sum_squared_gradients(
    predict_fn: PredictFn, mean: Vector, inputs: Inputs, *, memory_mb: float
) -> Float[Array, " params"]:
    r"""Exact :math:`\sum_j J_{ji}^2` over all observations and outputs, never more than a chunk of J at a time."""
    predict_fn = as_pytree_function(predict_fn)
    num_outputs = _num_outputs(predict_fn, mean, inputs)
    rows = max(1, int(memory_mb * 1e6 / (mean.size * mean.dtype.itemsize)))
    output_chunk = min(num_outputs, rows)
    input_chunk = max(1, rows // output_chunk)
    return _sum_squares(predict_fn, mean, inputs, input_chunk, output_chunk)


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


def estimate_squared_gradients(
    predict_fn: PredictFn, mean: Vector, inputs: Inputs, rng_key: Key, *, num_probes: int, memory_mb: float
) -> tuple[Float[Array, " params"], Float[Array, " params"]]:
    r"""Unbiased estimate of :math:`\sum_j J_{ji}^2` from random signs, and its standard error."""
    predict_fn = as_pytree_function(predict_fn)
    rows = max(1, int(memory_mb * 1e6 / (mean.size * mean.dtype.itemsize)))
    return _probe_squares(predict_fn, mean, None, inputs, rng_key, num_probes, rows)


def estimate_squared_curvatures(
    predict_fn: PredictFn, mean: Vector, std: Vector, inputs: Inputs, rng_key: Key, *, num_probes: int, memory_mb: float
) -> tuple[Float[Array, " params"], Float[Array, " params"]]:
    r"""Unbiased estimate of :math:`\sum_n \sum_j H_{nij}^2 \sigma_j^2` and its standard error.

    For random signs of observations, :math:`\epsilon`, and of parameters, z, it is the mean of the square of
    :math:`(\sum_n \epsilon_n H_n)(\sigma z)`: one derivative, along one direction, of one backward pass.
    """
    predict_fn = as_pytree_function(predict_fn)
    rows = max(1, int(memory_mb * 1e6 / (mean.size * mean.dtype.itemsize)))
    return _probe_squares(predict_fn, mean, std, inputs, rng_key, num_probes, rows)


@partial(jax.jit, static_argnums=(5, 6))
def _probe_squares(
    predict_fn: Partial,
    mean: Array,
    std: Array | None,
    inputs: Inputs,
    rng_key: Key,
    num_probes: int,
    input_chunk: int,
) -> tuple[Array, Array]:
    """Squares of signed sums of gradients; of how these change along random signs times `std`, if that is given."""
    chunks = _chunked(inputs, input_chunk, mean.dtype)
    num_chunks = chunks[1].shape[0]

    def probe(index: Array) -> Array:
        key = jax.random.fold_in(rng_key, index)

        def add_chunk(total: Array, chunk: tuple) -> tuple[Array, None]:
            (x, weight), chunk_index = chunk
            shape = jax.eval_shape(predict_fn, mean, x).shape
            signs = jax.random.rademacher(jax.random.fold_in(key, chunk_index), shape, mean.dtype)
            signs = signs * weight.reshape(-1, *[1] * (len(shape) - 1))

            def gradient(theta: Array) -> Array:
                return jax.vjp(lambda theta: predict_fn(theta, x), theta)[1](signs)[0]

            if std is None:
                return total + gradient(mean), None
            along = std * jax.random.rademacher(jax.random.fold_in(key, num_chunks), mean.shape, mean.dtype)
            return total + jax.jvp(gradient, (mean,), (along,))[1], None

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
