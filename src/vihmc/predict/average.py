r"""Stage 4: predictions with error bars, in bounded memory.

.. math::
    \text{mean} = \frac1S \sum_s E[y \mid f_s, u_s], \qquad
    \text{total\_std}^2 = \underbrace{\mathrm{Var}_s\, E[y \mid f_s, u_s]}_{\text{epistemic\_std}^2}
    + \frac1S \sum_s \mathrm{Var}[y \mid f_s, u_s]

for the outputs f and the scales u of every draw s. The predictive distribution of an observation is the mixture of one
likelihood per draw. Its quantiles are found from its distribution function by Newton's method: no noise is drawn; of
counts and classes they are those of samples. Against observations it is scored point by point: by its log density, by
its distribution function there (the probability integral transform), and by
:math:`\text{crps} = E|Y - y| - \tfrac12 E|Y - Y'|`, estimated without bias from samples Y of the mixture.
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
from vihmc.posterior.likelihoods import Likelihood
from vihmc.posterior.subspace import Subspace
from vihmc.predict.prediction import BAND_LEVELS, Prediction
from vihmc.types import Inputs, PredictFn, as_pytree_function

_MAX_ITERATIONS = 60
_MAX_DOUBLINGS = 40
_DRAWS_AT_ONCE = 16
_NUM_SAMPLES = 2000
"""Samples of an observation, at least, from as many draws as there are."""
_MANY_VALUES, _NUM_FEW = 20_000, 64
"""Of more values than these, the score has samples of a few draws, which leaves it unbiased, and the widths of bands
are those of some rows."""


def predict(
    predict_fn: PredictFn,
    draws: Float[Array | np.ndarray, "draws dim"],
    inputs: Inputs,
    *,
    likelihood: Likelihood,
    log_scales: Float[Array, "draws scales"] | None = None,
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
        likelihood: How observations scatter around the model's outputs.
        log_scales: Logarithms of the learnt scales of every draw; none if all are known.
        quantiles: Levels.
        observations: Whether to find the quantiles of a new observation, the costly part.
        truth: Observations at `inputs`, to score the predictions by.
        memory_mb: Bound on the predictions held at a time.
    """
    levels = np.asarray(quantiles)
    scales = jnp.zeros((len(draws), 0)) if log_scales is None else jnp.asarray(log_scales)
    parts, done = [], 0
    for values in _chunks(predict_fn, draws, inputs, memory_mb=memory_mb):
        length = values.shape[1]
        mixture = Mixture(likelihood.rows(jnp.arange(done, done + length)), values, scales)
        expected, variance = _moments(mixture)
        part = dict(zip(("mean", "std", "quantiles"), _summarise(np.asarray(expected), levels), strict=True))
        part["noise_var"] = np.asarray(variance)
        part["total"] = mixture.quantiles(levels if observations else levels[:0])
        if truth is not None:
            part |= _score(mixture, np.asarray(truth[done : done + length]), done, num_values_in_all=truth.size)
        parts.append(part)
        done += length

    def joined(name: str, axis: int = 0) -> np.ndarray:
        return np.concatenate([part[name] for part in parts], axis=axis)

    std = joined("std")
    scored = {} if truth is None else {name: joined(name, axis=int(name == "widths")) for name in _SCORES}
    return Prediction(
        joined("mean"),
        std,
        np.sqrt(std**2 + joined("noise_var")).astype(std.dtype),
        levels,
        joined("quantiles", axis=1),
        joined("total", axis=1),
        **scored,
    )


def scales_of(
    posterior: Posterior, subspace: Subspace, draws: Float[Array | np.ndarray, "draws dim"]
) -> Float[Array, "draws scales"]:
    """Logarithms of the likelihood's learnt scales of every draw."""
    if not posterior.likelihood.num_scales:
        return jnp.zeros((len(draws), 0))
    return _scales_of(posterior, subspace, jnp.asarray(draws))


@jax.jit
def _scales_of(posterior: Posterior, subspace: Subspace, draws: Array) -> Array:
    return jax.lax.map(lambda draw: posterior.scales(subspace.embed(draw)).likelihood, draws)


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


class Mixture(NamedTuple):
    """The predictive distribution at some inputs: one likelihood per draw, with equal weights.

    Attributes:
        likelihood: Of observations.
        outputs: Of the model, draws along the first axis.
        log_scales: Learnt scales of each draw.
    """

    likelihood: Likelihood
    outputs: Float[Array, "draws *outputs"]
    log_scales: Float[Array, "draws scales"]

    def quantiles(self, levels: Sequence[float] | np.ndarray) -> np.ndarray:
        """Quantiles of an observation, levels along the first axis."""
        if not len(levels):
            return np.zeros((0, *jax.eval_shape(_moments, self)[1].shape))
        if self.likelihood.is_discrete:
            return np.quantile(self.samples(), levels, axis=0, method="inverted_cdf")
        return np.asarray(_observation_quantiles(self, jnp.asarray(levels)))

    def samples(self, start: int = 0, *, at_least: int = _NUM_SAMPLES) -> np.ndarray:
        """Observations, as many of every draw; those of a row depend on its number alone, the first being `start`."""
        each = -(-at_least // len(self.outputs))
        drawn = np.asarray(_sample(self, jnp.asarray(start), each))
        return np.moveaxis(drawn.reshape(len(drawn), -1, *drawn.shape[3:]), 1, 0)

    def thinned(self, count: int) -> "Mixture":
        """Some of the draws, evenly spread."""
        index = np.linspace(0, len(self.outputs) - 1, count).round().astype(int)
        return self._replace(outputs=self.outputs[index], log_scales=self.log_scales[index])


def _over_draws(mixture: Mixture, function: Any) -> Array:
    # In the precision of the outputs: known scales may be wider.
    dtype = mixture.outputs.dtype
    return jax.vmap(function)(mixture.outputs, mixture.log_scales.astype(dtype)).astype(dtype)


@jax.jit
def _moments(mixture: Mixture) -> tuple[Array, Array]:
    """Expected observation of every draw, and the mean variance around it."""
    likelihood = mixture.likelihood
    variance = _over_draws(mixture, likelihood.variance)
    return _over_draws(mixture, likelihood.mean), jnp.mean(variance, axis=0)


@jax.jit
def expected_values(mixture: Mixture) -> Array:
    """Expected observation of every draw."""
    return _over_draws(mixture, mixture.likelihood.mean)


@partial(jax.jit, static_argnums=2)
def _sample(mixture: Mixture, start: Array, each: int) -> Array:
    """Observations: (row, times, draw, …)."""
    log_scales = mixture.log_scales.astype(mixture.outputs.dtype)

    def of_row(number: Array, outputs: Array) -> Array:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), start + number), (each, len(outputs)))
        likelihood = mixture.likelihood.rows(number)
        return jax.vmap(lambda some: jax.vmap(likelihood.sample)(some, outputs, log_scales))(keys)

    rows = jnp.moveaxis(mixture.outputs, 1, 0)
    return jax.vmap(of_row)(jnp.arange(len(rows)), rows)


_SCORES = ("log_density", "crps", "pit", "widths")


def _score(mixture: Mixture, truth: np.ndarray, start: int, *, num_values_in_all: int) -> dict[str, np.ndarray]:
    """Scores of every observation of a chunk whose first row has the number `start`."""
    few = mixture.thinned(min(_NUM_FEW, len(mixture.outputs)))
    # The mean score of many values needs few samples of each.
    samples = few.samples(start, at_least=1) if num_values_in_all > _MANY_VALUES else mixture.samples(start)
    log_density, pit = _at_truth(mixture, jnp.asarray(truth, mixture.outputs.dtype))
    if pit is None:
        pit = ((samples < truth).mean(axis=0) + (samples <= truth).mean(axis=0)) / 2
    per_row = max(1, int(np.prod(mixture.outputs.shape[2:])))
    every = max(1, -(-num_values_in_all // max(_MANY_VALUES, per_row)))
    rows = np.arange((-start) % every, mixture.outputs.shape[1], every)
    some = mixture._replace(likelihood=mixture.likelihood.rows(jnp.asarray(rows)), outputs=mixture.outputs[:, rows])
    ends = [(1 + sign * level) / 2 for level in BAND_LEVELS for sign in (-1, 1)]
    found = some.quantiles(ends) if len(rows) else np.zeros((len(ends), *samples.shape[1:]))[:, rows]
    return {
        "log_density": np.asarray(log_density),
        "crps": crps_of_samples(samples, truth),
        "pit": np.asarray(pit),
        "widths": found[1::2] - found[::2],
    }


@jax.jit
def _at_truth(mixture: Mixture, truth: Array) -> tuple[Array, Array | None]:
    """Log density and distribution function of the mixture."""
    likelihood = mixture.likelihood
    of_draws = _over_draws(mixture, partial(likelihood.log_prob, truth))
    log_density = jax.scipy.special.logsumexp(of_draws, axis=0) - jnp.log(len(of_draws))
    if likelihood.is_discrete:
        return log_density, None
    return log_density, jnp.mean(_over_draws(mixture, partial(likelihood.cdf, truth)), axis=0)


def crps_of_samples(samples: Float[np.ndarray, "samples *values"], truth: np.ndarray) -> np.ndarray:
    """Unbiased estimate of the continuous ranked probability score from independent samples."""
    ordered = np.array(np.moveaxis(samples, 0, -1), order="C")
    # NumPy's sort along contiguous memory is ten times faster than XLA's.
    ordered.sort(axis=-1)
    count = ordered.shape[-1]
    # The mean absolute difference of two samples is a weighted sum of the sorted ones.
    weights = (2 * np.arange(1, count + 1) - count - 1) / (count * max(count - 1, 1))
    half_spread = ordered @ weights.astype(ordered.dtype)
    ordered -= np.asarray(truth)[..., None].astype(ordered.dtype)
    return np.abs(ordered, out=ordered).mean(axis=-1) - half_spread


def _summarise(values: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, std and quantiles over the first axis."""
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
    return mean, std, quantiles


@jax.jit
def _observation_quantiles(mixture: Mixture, levels: Array) -> Array:
    return jax.lax.map(partial(_mixture_quantile, mixture), levels)


def _mixture_quantile(mixture: Mixture, level: Array) -> Array:
    """Quantile of the mixture: Newton, kept inside a shrinking bracket."""
    likelihood, dtype = mixture.likelihood, mixture.outputs.dtype
    level = level.astype(dtype)
    tolerance = max(1e-8, 100 * float(jnp.finfo(dtype).eps))  # on the level; a mean of many is no better

    def cdf(values: Array) -> Array:
        return jnp.mean(_over_draws(mixture, partial(likelihood.cdf, values)), axis=0)

    def density(values: Array) -> Array:
        return jnp.mean(jnp.exp(_over_draws(mixture, partial(likelihood.log_prob, values))), axis=0)

    expected, noise_var = _moments(mixture)
    center, spread = expected.mean(axis=0), jnp.sqrt(expected.var(axis=0) + noise_var)
    # Heavy tails may have no variance: then the bracket grows from the spread of the centres and their precision.
    spread = jnp.where(jnp.isfinite(spread), spread, expected.std(axis=0) + jnp.abs(center) + 1)
    low, high = _bracket(cdf, center, spread, level)
    first = jnp.clip(center + jax.scipy.special.ndtri(level) * spread, low, high)

    def improve(carry: _Search) -> _Search:
        excess = cdf(carry.guess) - level
        low = jnp.where(excess < 0, carry.guess, carry.low)
        high = jnp.where(excess < 0, carry.high, carry.guess)
        newton = carry.guess - excess / density(carry.guess)
        inside = (low <= newton) & (newton <= high)
        guess = jnp.where(inside, newton, (low + high) / 2)
        # Where the distribution function is flat a last step could still go far.
        guess = jnp.where(jnp.abs(excess) > tolerance, guess, carry.guess)
        return _Search(low, high, guess, jnp.max(jnp.abs(excess)), carry.iteration + 1)

    def unfinished(carry: _Search) -> Array:
        return (carry.excess > tolerance) & (carry.iteration < _MAX_ITERATIONS)

    start = _Search(low, high, first, jnp.ones_like(level), jnp.asarray(0))
    return jax.lax.while_loop(unfinished, improve, start).guess


def _bracket(cdf: Any, center: Array, spread: Array, level: Array) -> tuple[Array, Array]:
    """Values below and above the quantile, by doubling the distance from the centre."""

    def is_outside(carry: tuple[Array, Array, Array, Array]) -> Array:
        low, high, _, count = carry
        return (jnp.any(cdf(low) > level) | jnp.any(cdf(high) < level)) & (count < _MAX_DOUBLINGS)

    def widen(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        _, _, width, count = carry
        return center - 2 * width, center + 2 * width, 2 * width, count + 1

    start = (center - 4 * spread, center + 4 * spread, 4 * spread, jnp.asarray(0))
    low, high, *_ = jax.lax.while_loop(is_outside, widen, start)
    return low, high


class _Search(NamedTuple):
    low: Array
    high: Array
    guess: Array
    excess: Array
    iteration: Array
