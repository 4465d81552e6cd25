r"""Stage 4: predictions with error bars, in bounded memory.

.. math::
    \text{mean} = \frac1S \sum_s F_{\theta_s}(x), \qquad
    \text{total\_std}^2 = \underbrace{\mathrm{Var}_s[F_{\theta_s}(x)]}_{\text{epistemic\_std}^2} + \text{noise\_std}^2

Epistemic quantiles are those of the model's draws. Total quantiles are those of an observation, a mixture of one
Gaussian per draw, found from its distribution function by Newton's method: no noise is drawn.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from vihmc.tracing import as_pytree_function
from vihmc.types import Inputs, PredictFn

_MAX_ITERATIONS = 60
_DRAWS_AT_ONCE = 16


class Prediction(NamedTuple):
    """What the posterior says at each input; arrays have the shape of the model's output.

    Attributes:
        mean: Posterior mean.
        epistemic_std: Std of the model's output: what more data would reduce.
        total_std: Std of a new observation: the above and the noise.
        levels: Levels of the quantiles.
        epistemic_quantiles: Quantiles of the model's output, levels along the first axis.
        total_quantiles: Quantiles of a new observation, levels along the first axis.
    """

    mean: np.ndarray
    epistemic_std: np.ndarray
    total_std: np.ndarray
    levels: np.ndarray
    epistemic_quantiles: np.ndarray
    total_quantiles: np.ndarray


def predict(
    predict_fn: PredictFn,
    draws: Float[Array | np.ndarray, "draws dim"],
    inputs: Inputs,
    *,
    noise_std: Array | float,
    quantiles: Sequence[float] = (0.025, 0.5, 0.975),
    memory_mb: float = 256.0,
) -> Prediction:
    """Average the model over draws.

    Args:
        predict_fn: The model on one position vector; ``subspace.restrict(posterior.predict)`` for kept parameters.
        draws: Position vectors.
        inputs: Where to predict.
        noise_std: Std of the observation noise, one number or one per output.
        quantiles: Levels.
        memory_mb: Bound on the predictions held at a time.
    """
    levels = jnp.asarray(quantiles)
    parts = [
        _summarise(values, jnp.asarray(noise_std), levels)
        for values in _chunks(predict_fn, draws, inputs, memory_mb=memory_mb)
    ]
    mean, epistemic, total, epistemic_q, total_q = zip(*parts, strict=True)
    return Prediction(
        np.concatenate(mean),
        np.concatenate(epistemic),
        np.concatenate(total),
        np.asarray(levels),
        np.concatenate(epistemic_q, axis=1),
        np.concatenate(total_q, axis=1),
    )


def evaluate(
    predict_fn: PredictFn, draws: Float[Array | np.ndarray, "*batch dim"], inputs: Inputs, *, memory_mb: float = 256.0
) -> np.ndarray:
    """Return the model's output for every draw; leading axes as in `draws`, then those of the output."""
    flat = draws.reshape(-1, draws.shape[-1])
    values = np.concatenate(
        [np.asarray(part) for part in _chunks(predict_fn, flat, inputs, memory_mb=memory_mb)], axis=1
    )
    return values.reshape(*draws.shape[:-1], *values.shape[1:])


def _chunks(predict_fn: PredictFn, draws: Array | np.ndarray, inputs: Inputs, *, memory_mb: float) -> Iterator[Array]:
    """Predictions of all draws at one chunk of inputs after the other; all chunks but the last are of one shape."""
    predict_fn, draws = as_pytree_function(predict_fn), jnp.asarray(draws)
    inputs = jax.tree.map(jnp.asarray, inputs)
    output = jax.eval_shape(predict_fn, draws[0], inputs)
    length = output.shape[0]
    row_bytes = len(draws) * output.size // length * output.dtype.itemsize
    chunk = max(1, min(length, int(memory_mb * 1e6 / row_bytes)))
    for start in range(0, length, chunk):
        # A short last chunk is padded with the last input, so that one compiled program serves all.
        index = jnp.minimum(start + jnp.arange(chunk), length - 1)
        values = _predict_all(predict_fn, draws, jax.tree.map(lambda leaf: leaf[index], inputs))  # noqa: B023
        yield values[:, : length - start]


@jax.jit
def _predict_all(predict_fn: Partial, draws: Array, inputs: Inputs) -> Array:
    return jax.lax.map(lambda draw: predict_fn(draw, inputs), draws, batch_size=min(_DRAWS_AT_ONCE, len(draws)))


@jax.jit
def _summarise(values: Array, noise_std: Array, levels: Array) -> tuple[Array, Array, Array, Array, Array]:
    mean = jnp.mean(values, axis=0)
    epistemic = jnp.std(values, axis=0, ddof=1 if len(values) > 1 else 0)
    total = jnp.sqrt(epistemic**2 + noise_std**2)
    mixture = jax.lax.map(partial(_mixture_quantile, values, noise_std), levels)
    return mean, epistemic, total, jnp.quantile(values, levels, axis=0), mixture


def _mixture_quantile(values: Array, noise_std: Array, level: Array) -> Array:
    """Quantile of the equal mixture of N(value, noise_std²) over draws: Newton, kept inside a shrinking bracket."""
    # The quantile of every component, hence that of the mixture, lies between these two.
    z = jax.scipy.stats.norm.ppf(level)
    tolerance = max(1e-8, 100 * float(jnp.finfo(values.dtype).eps))  # on the level; a mean of many is no better
    low, high = values.min(axis=0) + noise_std * z, values.max(axis=0) + noise_std * z
    first = jnp.clip(values.mean(axis=0) + z * jnp.sqrt(values.var(axis=0) + noise_std**2), low, high)

    def improve(carry: _Search) -> _Search:
        scaled = (carry.guess - values) / noise_std
        excess = jnp.mean(jax.scipy.stats.norm.cdf(scaled), axis=0) - level
        slope = jnp.mean(jax.scipy.stats.norm.pdf(scaled), axis=0) / noise_std
        low = jnp.where(excess < 0, carry.guess, carry.low)
        high = jnp.where(excess < 0, carry.high, carry.guess)
        newton = carry.guess - excess / slope
        inside = (low <= newton) & (newton <= high)
        guess = jnp.where(inside, newton, (low + high) / 2)
        # Where the distribution function is flat a last step could still go far.
        guess = jnp.where(jnp.abs(excess) > tolerance, guess, carry.guess)
        return _Search(low, high, guess, jnp.max(jnp.abs(excess)), carry.iteration + 1)

    def unfinished(carry: _Search) -> Array:
        return (carry.excess > tolerance) & (carry.iteration < _MAX_ITERATIONS)

    start = _Search(low, high, first, jnp.ones_like(level), jnp.asarray(0))
    return jax.lax.while_loop(unfinished, improve, start).guess


class _Search(NamedTuple):
    low: Array
    high: Array
    guess: Array
    excess: Array
    iteration: Array
