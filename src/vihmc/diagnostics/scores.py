r"""Scores of a predictive distribution against held-out observations.

A predictive distribution P with density p and distribution function :math:`\Phi_P` is that of a new observation, noise
included. For an observation y

.. math::
    \text{log\_density} = \log p(y), \qquad
    \text{crps} = E|Y - y| - \tfrac12 E|Y - Y'|, \qquad
    \text{pit} = \Phi_P(y), \qquad Y, Y' \sim P

The first two are proper scores (Gneiting & Raftery 2007): only the right distribution has the best expected value. The
central band of level L holds y where :math:`(1 - L)/2 \le \text{pit} \le (1 + L)/2`, so coverage needs no quantiles
(Dawid 1984). A Gaussian has, with :math:`z = (y - \text{mean})/\text{std}`,

.. math:: \text{crps} = \text{std}\,\bigl(z(2\Phi(z) - 1) + 2\varphi(z) - 1/\sqrt\pi\bigr)

For classes with probabilities p, of which c was observed, the log score is :math:`\log p_c` and the Brier score
:math:`\sum_k (p_k - [k = c])^2`, both proper.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy import special

from vihmc.errors import InputError
from vihmc.predict import BAND_LEVELS, Prediction
from vihmc.types import readable

BANDS = {f"{100 * level:.0f}": level for level in BAND_LEVELS}
"""Levels of the central bands by their name, in per cent."""
NUM_CALIBRATION_BINS = 15
"""As in Guo et al. 2017."""

_SUM_TOLERANCE = 1e-4


@readable
class Pointwise(NamedTuple):
    """What a predictive distribution says about each observation.

    Attributes:
        mean: Predictive mean.
        log_density: Log predictive density of the observation, in nats.
        crps: Continuous ranked probability score of the predictive distribution of an observation.
        pit: Probability integral transform, the predictive distribution function at the observation.
        widths: Widths of the central bands in the order of `BANDS`; may be those of some of the values.
    """

    mean: Float[np.ndarray, "*shape"]
    log_density: Float[np.ndarray, "*shape"]
    crps: Float[np.ndarray, "*shape"]
    pit: Float[np.ndarray, "*shape"]
    widths: Float[np.ndarray, "bands *values"]

    @classmethod
    def of(cls, prediction: Prediction) -> "Pointwise":
        """What a prediction says about the observations that it was made with.

        Raises:
            InputError: If it was made without any.
        """
        parts = {name: getattr(prediction, name) for name in cls._fields}
        missing = [name for name, value in parts.items() if value is None]
        if missing:
            raise InputError(
                f"`prediction` must be made with `truth=`, the observations to score it by, got one without "
                f"`{missing[0]}`."
            )
        return cls(**{name: np.asarray(value) for name, value in parts.items()})


class Scores(NamedTuple):
    """Averages over observations.

    Attributes:
        log_predictive_density: Mean log density per value, in nats. Higher is better.
        crps: Mean continuous ranked probability score, in units of the output. Lower is better.
        rmse: Root mean square error of the predictive mean.
        coverage: Share of the observations inside the central band of each level, by the names in `BANDS`.
        width: Mean width of each band, in units of the output. Of two right coverages the narrower is better.
    """

    log_predictive_density: float
    crps: float
    rmse: float
    coverage: dict[str, float]
    width: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and dictionaries of them."""
        return self._asdict() | {"coverage": dict(self.coverage), "width": dict(self.width)}

    def scaled(self, scale: float) -> "Scores":
        """The scores in other units, of which one of the present ones has `scale`."""
        return Scores(
            self.log_predictive_density - float(np.log(scale)),
            self.crps * scale,
            self.rmse * scale,
            dict(self.coverage),
            {name: width * scale for name, width in self.width.items()},
        )


class ClassScores(NamedTuple):
    """Scores of class probabilities.

    Attributes:
        accuracy: Share of the rows whose most probable class was observed.
        log_score: Mean log probability of the observed class, in nats; minus infinity if one had probability zero.
        brier: Mean over rows of the squared differences summed over classes, from 0 to 2. Lower is better.
        calibration_error: Expected calibration error: the mean difference between confidence and accuracy.
    """

    accuracy: float
    log_score: float
    brier: float
    calibration_error: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers."""
        return self._asdict()

    def scaled(self, scale: float) -> "ClassScores":
        """The same: probabilities have no units."""
        return self


class RowSums(NamedTuple):
    """Log densities summed over the values of each row, and how many values each row has.

    A row is what is independent of all others: a row of a table, or a function of an operator.
    """

    log_density: Float[np.ndarray, " rows"]
    count: Float[np.ndarray, " rows"]


class Difference(NamedTuple):
    """How much more log predictive density one distribution gives to the same values than another, in nats a value.

    Attributes:
        excess: Mean difference.
        standard_error: From its variation over rows.
    """

    excess: float
    standard_error: float


def gaussian(mean: ArrayLike, std: ArrayLike, truth: ArrayLike) -> Pointwise:
    """Score a Gaussian predictive distribution in closed form.

    Args:
        mean: Predictive mean, of the shape of `truth` or one that broadcasts to it.
        std: Predictive standard deviation of an observation, noise included; shape as for `mean`.
        truth: Observations. Those that are not a number have scores that are none.

    Raises:
        InputError: If shapes disagree or a std is not positive.
    """
    truth = np.asarray(truth, dtype=np.float64)
    mean, std = _spread("mean", mean, truth.shape), _spread("std", std, truth.shape)
    if not np.all(np.isfinite(std) & (std > 0)):
        raise InputError(f"`std` must be positive and finite, got {np.min(std)}. It is the std of an observation.")
    z = (truth - mean) / std
    pit, density = special.ndtr(z), np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return Pointwise(
        mean,
        -0.5 * z**2 - np.log(std) - 0.5 * np.log(2 * np.pi),
        std * (z * (2 * pit - 1) + 2 * density - 1 / np.sqrt(np.pi)),
        pit,
        np.stack([2 * special.ndtri((1 + level) / 2) * std for level in BANDS.values()]),
    )


def scores(prediction: Prediction, truth: ArrayLike, *, weights: ArrayLike | None = None) -> Scores:
    """Score a prediction against observations.

    Args:
        prediction: Made with ``truth=``, the same observations.
        truth: Observations, of the shape of ``prediction.mean``. Probabilities of classes are for :func:`classify`.
        weights: How often each value was observed, zero for never; once each if not given.

    Raises:
        InputError: If the prediction was made without its truth, or shapes disagree.
    """
    return summarise(Pointwise.of(prediction), truth, weights=weights)


def summarise(pointwise: Pointwise, truth: ArrayLike, *, weights: ArrayLike | None = None) -> Scores:
    """Average over all values.

    Args:
        pointwise: What the predictive distribution says about each observation.
        truth: Observations.
        weights: How often each value was observed, zero for never; once each if not given. They apply to the widths
            where these are given for every value; otherwise widths are averaged evenly.

    Raises:
        InputError: If shapes disagree, or weights are negative or all zero.
    """
    truth, weights = _check(pointwise, truth, weights)
    return _summarise(pointwise, truth, weights)


def per_output(pointwise: Pointwise, truth: ArrayLike, *, weights: ArrayLike | None = None) -> list[Scores]:
    """Average over the values of each output, an entry of the last axis.

    Arguments and errors are those of :func:`summarise`, with widths for each output. The scores of an output that was
    never observed are not numbers.
    """
    truth, weights = _check(pointwise, truth, weights)
    if truth.ndim < 2:
        raise InputError(f"`truth` must have observations and outputs as its axes, got shape {truth.shape}.")
    check_shape("widths", pointwise.widths.shape[-1:], truth.shape[-1:], "on the last axis the outputs of `truth`")
    return [
        _summarise(
            Pointwise(*(values[..., output] for values in pointwise)),
            truth[..., output],
            None if weights is None else weights[..., output],
        )
        for output in range(truth.shape[-1])
    ]


def join(parts: Sequence[Scores], counts: Sequence[float]) -> Scores:
    """Scores of all values from those of parts of them, of which each has so many."""

    def average(values: Iterable[float]) -> float:
        return float(np.average(list(values), weights=counts))

    return Scores(
        average(part.log_predictive_density for part in parts),
        average(part.crps for part in parts),
        average(part.rmse**2 for part in parts) ** 0.5,
        {name: average(part.coverage[name] for part in parts) for name in BANDS},
        {name: average(part.width[name] for part in parts) for name in BANDS},
    )


def sum_rows(log_density: np.ndarray, weights: np.ndarray | None = None) -> RowSums:
    """Sum log densities over all axes but the first."""
    rows = np.asarray(log_density, dtype=np.float64).reshape(len(log_density), -1)
    if weights is None:
        return RowSums(rows.sum(axis=1), np.full(len(rows), float(rows.shape[1])))
    weights = np.asarray(weights, dtype=np.float64).reshape(rows.shape)
    return RowSums(np.sum(np.where(weights > 0, rows, 0.0) * weights, axis=1), weights.sum(axis=1))


def compare(ours: RowSums, theirs: RowSums) -> Difference:
    """By how much the second predictive distribution is better on the same rows, pair by pair.

    The difference is a ratio of sums over rows, and its standard error that of a ratio (Cochran 1977). For a single row
    the error is infinite.
    """
    total, num_rows = ours.count.sum(), np.count_nonzero(ours.count)
    differences = theirs.log_density - ours.log_density
    excess = differences.sum() / total
    if num_rows < 2:
        return Difference(float(excess), np.inf)
    variance = np.sum((differences - ours.count * excess) ** 2) * num_rows / (num_rows - 1)
    return Difference(float(excess), float(np.sqrt(variance) / total))


def _summarise(pointwise: Pointwise, truth: np.ndarray, weights: np.ndarray | None) -> Scores:
    pit, widths = pointwise.pit, pointwise.widths
    width_weights = weights if widths.shape[1:] == truth.shape else None
    return Scores(
        _average(pointwise.log_density, weights),
        _average(pointwise.crps, weights),
        _average((pointwise.mean - truth) ** 2, weights) ** 0.5,
        {name: _average(((1 - level) / 2 <= pit) & (pit <= (1 + level) / 2), weights) for name, level in BANDS.items()},
        {name: _average(width, width_weights) for name, width in zip(BANDS, widths, strict=True)},
    )


def _average(values: np.ndarray, weights: np.ndarray | None) -> float:
    if weights is None:
        return float(np.mean(values, dtype=np.float64))
    # Values that were never observed may not be numbers.
    observed = weights > 0
    if not np.any(observed):
        return float("nan")
    return float(np.average(values[observed], weights=weights[observed]))


def classify(probabilities: ArrayLike, labels: ArrayLike) -> ClassScores:
    """Score class probabilities against the observed classes.

    The expected calibration error (Naeini et al. 2015) sorts rows by the confidence, the probability of the predicted
    class, into 15 bins of equally many rows, and averages |accuracy - mean confidence| over bins. Rows of equal
    confidence share their accuracy, so the order of the rows is of no account. Finite bins of a calibrated prediction
    also differ by chance, with n rows by at most about 0.4 sqrt(15 / n).

    Args:
        probabilities: One row per observation, one column per class.
        labels: Indices of the observed classes, from 0.

    Raises:
        InputError: If shapes disagree, rows are not probabilities or labels are out of range.
    """
    probabilities, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    _check_probabilities(probabilities)
    _check_labels(labels, *probabilities.shape)
    rows, predicted = np.arange(len(labels)), probabilities.argmax(axis=1)
    observed = np.zeros_like(probabilities)
    observed[rows, labels] = 1.0
    with np.errstate(divide="ignore"):
        log_probabilities = np.log(probabilities[rows, labels])
    return ClassScores(
        float(np.mean(predicted == labels)),
        float(np.mean(log_probabilities)),
        float(np.mean(np.sum((probabilities - observed) ** 2, axis=1))),
        _calibration_error(probabilities[rows, predicted], predicted == labels),
    )


def _calibration_error(confidence: Float[np.ndarray, " rows"], is_right: Bool[np.ndarray, " rows"]) -> float:
    _, group, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    accuracy = (np.bincount(group, weights=is_right) / counts)[group]
    excess = (confidence - accuracy)[np.argsort(confidence)]
    bins = np.array_split(excess, min(NUM_CALIBRATION_BINS, len(excess)))
    return float(sum(abs(part.sum()) for part in bins) / len(excess))


def check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...], meaning: str) -> None:
    """Refuse an argument of another shape than the expected one."""
    if shape != expected:
        raise InputError(f"`{name}` must have {meaning}, {expected}, got {shape}.")


def check_weights(weights: ArrayLike | None, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return weights as an array, after checking that they are of the expected shape, not negative nor all zero."""
    if weights is None:
        return None
    array = np.asarray(weights, dtype=np.float64)
    check_shape("weights", array.shape, shape, "the shape of the targets")
    if not (np.all(np.isfinite(array) & (array >= 0)) and np.any(array)):
        raise InputError(
            f"`weights` must be finite and not negative, nor all zero, got a smallest of "
            f"{np.min(array, initial=np.inf):g} and a sum of {np.sum(array):g}. "
            "They are how often each value was observed."
        )
    return array


def _check(
    pointwise: Pointwise, truth: ArrayLike, weights: ArrayLike | None
) -> tuple[Float[np.ndarray, "*shape"], np.ndarray | None]:
    truth = np.asarray(truth, dtype=np.float64)
    if truth.size == 0:
        raise InputError(f"`truth` must have at least one value, got shape {truth.shape}.")
    for name in ("mean", "log_density", "crps", "pit"):
        check_shape(name, getattr(pointwise, name).shape, truth.shape, "the shape of `truth`")
    check_shape("widths", pointwise.widths.shape[:1], (len(BANDS),), "on the first axis the central bands")
    return truth, check_weights(weights, truth.shape)


def _spread(name: str, values: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    """Broadcast to a shape that is expected, without a copy."""
    values = np.asarray(values, dtype=np.float64)
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        raise InputError(f"`{name}` must have the shape of `truth`, {shape}, got {values.shape}.") from None


def _check_probabilities(probabilities: np.ndarray) -> None:
    if probabilities.ndim != 2 or probabilities.size == 0:
        raise InputError(f"`probabilities` must have rows and classes as its axes, got shape {probabilities.shape}.")
    if not np.all(probabilities >= 0):
        raise InputError(f"`probabilities` must not be negative, got {np.min(probabilities)}.")
    sums = probabilities.sum(axis=1)
    worst = sums[np.argmax(np.abs(sums - 1))]
    if abs(worst - 1) > _SUM_TOLERANCE:
        raise InputError(f"`probabilities` must have rows that sum to one, got a sum of {worst}.")


def _check_labels(labels: np.ndarray, num_rows: int, num_classes: int) -> None:
    check_shape("labels", labels.shape, (num_rows,), "one label per row of `probabilities`")
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"`labels` must be integers, got dtype {labels.dtype}.")
    outside = labels[(labels < 0) | (labels >= num_classes)]
    if len(outside):
        raise InputError(
            f"`labels` must be from 0 to {num_classes - 1}, the columns of `probabilities`, got {outside[0]}."
        )
