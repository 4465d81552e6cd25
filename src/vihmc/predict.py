r"""Stage 4: predictions with error bars, in bounded memory.

.. math::
    \text{mean} = \frac1S \sum_s F_{\theta_s}(x), \qquad
    \text{total\_std}^2 = \underbrace{\mathrm{Var}_s[F_{\theta_s}(x)]}_{\text{epistemic\_std}^2} + \text{noise\_std}^2

Epistemic quantiles are those of the model's draws. Total quantiles are those of an observation, a mixture of one
Gaussian per draw, found from its distribution function by Newton's method: no noise is drawn. Against a known truth y
the draws are scored by :math:`\text{crps} = E|F - y| - \tfrac12 E|F - F'|`, unbiased for a finite number of them.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from vihmc.posterior.density import Posterior
from vihmc.posterior.subspace import Subspace
from vihmc.types import Inputs, PredictFn, as_pytree_function

_MAX_ITERATIONS = 60
_DRAWS_AT_ONCE = 16
_MEMORY_MB_ROWS, _MEMORY_MB_LOCATIONS = 8.0, 256.0


class Prediction(NamedTuple):
    """What the posterior says at each input; arrays have the shape of the model's output.

    Attributes:
        mean: Posterior mean.
        epistemic_std: Std of the model's output: what more data would reduce.
        total_std: Std of a new observation: the above and the noise.
        levels: Levels of the quantiles.
        epistemic_quantiles: Quantiles of the model's output, levels along the first axis.
        total_quantiles: Quantiles of a new observation, levels along the first axis; none if they were not asked for.
        crps: Continuous ranked probability score of the model's output against the truth, if that was given.
    """

    mean: np.ndarray
    epistemic_std: np.ndarray
    total_std: np.ndarray
    levels: np.ndarray
    epistemic_quantiles: np.ndarray
    total_quantiles: np.ndarray
    crps: np.ndarray | None = None

    def transposed(self) -> "Prediction":
        """Swap the two axes of the model's output in every array."""
        arrays = {
            name: np.swapaxes(value, -1, -2)
            for name, value in self._asdict().items()
            if value is not None and value.ndim > 1
        }
        return self._replace(**arrays)


def predict(
    predict_fn: PredictFn,
    draws: Float[Array | np.ndarray, "draws dim"],
    inputs: Inputs,
    *,
    noise_std: Array | float,
    quantiles: Sequence[float] = (0.025, 0.5, 0.975),
    observations: bool = True,
    truth: Array | np.ndarray | None = None,
    memory_mb: float = 256.0,
) -> Prediction:
    """Average the model over draws.

    Args:
        predict_fn: The model on one position vector; ``subspace.restrict(posterior.predict)`` for selected parameters.
        draws: Position vectors.
        inputs: Where to predict.
        noise_std: Std of the observation noise, one number or one per output.
        quantiles: Levels.
        observations: Whether to find the quantiles of a new observation, the costly part.
        truth: What the model should say, of the shape of its output, to score it by.
        memory_mb: Bound on the predictions held at a time.
    """
    levels = np.asarray(quantiles)
    parts, done = [], 0
    for values in _chunks(predict_fn, draws, inputs, memory_mb=memory_mb):
        length = values.shape[1]
        part_of_truth = None if truth is None else np.asarray(truth[done : done + length])
        total_quantiles = np.zeros((0, *values.shape[1:]), values.dtype)
        if observations:
            total_quantiles = _observation_quantiles(values, jnp.asarray(noise_std), jnp.asarray(levels))
        parts.append((*_summarise(np.asarray(values), levels, part_of_truth), np.asarray(total_quantiles)))
        done += length
    mean, std, quantile, crps, total_quantile = zip(*parts, strict=True)
    std = np.concatenate(std)
    return Prediction(
        np.concatenate(mean),
        std,
        np.sqrt(std**2 + np.asarray(noise_std) ** 2).astype(std.dtype),
        levels,
        np.concatenate(quantile, axis=1),
        np.concatenate(total_quantile, axis=1),
        None if truth is None else np.concatenate(crps),
    )


def predict_posterior(
    posterior: Posterior,
    subspace: Subspace,
    draws: Float[Array | np.ndarray, "draws dim"],
    inputs: Inputs,
    *,
    quantiles: Sequence[float] = (0.025, 0.5, 0.975),
    locations: Array | None = None,
    observations: bool = True,
    truth: Array | np.ndarray | None = None,
    memory_mb: float | None = None,
) -> Prediction:
    """Average a posterior's model over draws of its selected parameters; arguments as for :func:`predict`.

    The fields of an operator are those at `locations`, or at the training locations if none are given.
    """
    settings: dict[str, Any] = {
        "noise_std": posterior.noise_std,
        "quantiles": quantiles,
        "observations": observations,
    }
    rows = posterior.row_wise(subspace, inputs, locations=locations)
    # Rows of a table are cheap to come back to, and small chunks stay in the cache; a location runs through the trunk.
    settings["memory_mb"] = memory_mb or (_MEMORY_MB_LOCATIONS if rows.is_transposed else _MEMORY_MB_ROWS)
    if not rows.is_transposed:
        return predict(rows.predict_fn, draws, rows.rows, truth=truth, **settings)
    flipped = None if truth is None else np.asarray(truth).T
    return predict(rows.predict_fn, draws, rows.rows, truth=flipped, **settings).transposed()


def evaluate(
    predict_fn: PredictFn, draws: Float[Array | np.ndarray, "*batch dim"], inputs: Inputs, *, memory_mb: float = 16.0
) -> np.ndarray:
    """Return the model's output for every draw; leading axes as in `draws`, then those of the output."""
    flat = draws.reshape(-1, draws.shape[-1])
    num_inputs, values, done = len(jax.tree.leaves(inputs)[0]), None, 0
    for part in _chunks(predict_fn, flat, inputs, memory_mb=memory_mb):
        if values is None:
            values = np.empty((len(flat), num_inputs, *part.shape[2:]), part.dtype)
        values[:, done : done + part.shape[1]] = part
        done += part.shape[1]
    assert values is not None
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


def _summarise(
    values: np.ndarray, levels: np.ndarray, truth: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Mean, std, quantiles and score over the first axis."""
    # Sorted once, draws last: NumPy's sort along contiguous memory is ten times faster than XLA's.
    values = np.array(np.moveaxis(values, 0, -1), order="C")
    values.sort(axis=-1)
    num_draws = values.shape[-1]
    mean = values.mean(axis=-1)
    std = values.std(axis=-1, ddof=1 if num_draws > 1 else 0)
    place = levels * (num_draws - 1)
    below = np.floor(place).astype(int)
    above = np.minimum(below + 1, num_draws - 1)
    share = (place - below).astype(values.dtype)
    quantiles = np.moveaxis(values[..., below] * (1 - share) + values[..., above] * share, -1, 0)
    if truth is None:
        return mean, std, quantiles, None
    # The mean absolute difference of two draws is a weighted sum of the sorted ones.
    weights = (2 * np.arange(1, num_draws + 1) - num_draws - 1) / (num_draws * max(num_draws - 1, 1))
    half_spread = values @ weights.astype(values.dtype)
    values -= truth[..., None].astype(values.dtype)
    return mean, std, quantiles, np.abs(values, out=values).mean(axis=-1) - half_spread


@jax.jit
def _observation_quantiles(values: Array, noise_std: Array, levels: Array) -> Array:
    return jax.lax.map(partial(_mixture_quantile, values, noise_std), levels)


def _mixture_quantile(values: Array, noise_std: Array, level: Array) -> Array:
    """Quantile of the equal mixture of N(value, noise_std²) over draws: Newton, selected inside a shrinking bracket."""
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
