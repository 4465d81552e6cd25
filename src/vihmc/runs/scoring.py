r"""Every prediction of a run scored on the held-out data, beside yardsticks that cost next to nothing.

The yardsticks learn from the same training data (:mod:`vihmc.diagnostics.yardsticks`): the MAP with its training
residual, ridge regression, and the mean of the targets. A Bayesian answer that predicts worse than one of them is not
worth its cost, and :mod:`vihmc.diagnostics.verdict` says so.

Yardsticks of an operator are scored some locations at a time, every k-th location together, so that memory is bounded
whatever the size of the fields. Beyond some ten million values only some of the locations are scored; the penalty of
the ridge regression and the residual of the MAP are those of the first of these parts.

A predictive distribution is that of an observation. Where the held-out values are exact (:attr:`Problem.has_truth`) a
narrow one has an advantage that it would lose on observations. The comparison that the verdict rests on takes it away:
noise of variance v around the exact values lowers the expected log density of a Gaussian by

.. math:: v / (2 \, \text{total\_std}^2)

with v the smallest of the noise variance in the predictions, the residual variances of ridge regression and constant,
and four times that of the MAP, which may have fitted some of the noise. The scores themselves are those of the values
as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from vihmc.data import Problem
from vihmc.diagnostics.scores import (
    ClassScores,
    Pointwise,
    RowSums,
    Scores,
    classify,
    compare,
    gaussian,
    join,
    per_output,
    sum_rows,
    summarise,
)
from vihmc.diagnostics.verdict import Rival
from vihmc.diagnostics.yardsticks import Components, constant, residual_gaussian
from vihmc.posterior.density import Posterior
from vihmc.posterior.likelihoods import Bernoulli, Categorical, Likelihood
from vihmc.posterior.subspace import whole_space
from vihmc.predict import Prediction, evaluate
from vihmc.runs.expectation import expected_observations
from vihmc.types import Inputs, Vector

MAP, MAP_RESIDUAL, RIDGE, CONSTANT = "map", "map_residual", "ridge", "constant"
YARDSTICKS = (MAP, MAP_RESIDUAL, RIDGE, CONSTANT)
"""Names of the yardsticks in the summary."""

_MAX_VALUES, _MAX_PARTS = 2**21, 8
_FITTED_NOISE = 4.0
"""By how much the noise variance may exceed the residual of a MAP that has fitted noise."""

Forecast = Callable[[slice], tuple[np.ndarray, np.ndarray]]
"""Mean and std of the held-out values in some columns."""


class Scored(NamedTuple):
    """Scores of one method or yardstick.

    Attributes:
        overall: Of all values.
        outputs: Of each output by name, where there are several.
        rows: Log densities of each row, for comparisons pair by pair; where the values are exact, those expected of
            observations.
    """

    overall: Scores | ClassScores
    outputs: Mapping[str, Scores | ClassScores]
    rows: RowSums


@dataclass(frozen=True, eq=False)
class Data:
    """The data of a run as rows of values: rows of a table and its targets, or functions and their fields.

    Attributes:
        targets: Training targets.
        weights: How often each was observed; None for once each.
        truth: Held-out values.
        truth_weights: How often each was observed; None for once each.
        names: Of the outputs, where there are several.
        noise_var: Variance of the noise that the held-out values lack, of each column.
    """

    targets: np.ndarray
    weights: np.ndarray | None
    truth: np.ndarray
    truth_weights: np.ndarray | None
    names: tuple[str, ...]
    noise_var: Float[np.ndarray, " columns"]

    @classmethod
    def of(cls, problem: Problem) -> "Data":
        """Training and held-out data of a problem."""
        posterior = problem.posterior
        truth = _as_rows(problem.validation_targets)
        is_one = problem.locations is not None or truth.shape[1] == 1
        return cls(
            _as_rows(posterior.targets),
            None if posterior.weights is None else _as_rows(posterior.weights),
            truth,
            None if problem.validation_weights is None else _as_rows(problem.validation_weights),
            () if is_one else problem.target_names or tuple(f"output {index}" for index in range(truth.shape[1])),
            np.zeros(truth.shape[1]),
        )

    @cached_property
    def parts(self) -> tuple[slice, ...]:
        """Columns that are scored together, evenly spread over all."""
        size = max(self.targets.size, self.truth.size)
        count = min(-(-size // _MAX_VALUES), self.truth.shape[1])
        return tuple(slice(start, None, count) for start in range(min(count, _MAX_PARTS)))

    def columns(self, part: slice) -> "Data":
        """The data of some columns."""
        return Data(
            self.targets[:, part],
            None if self.weights is None else self.weights[:, part],
            self.truth[:, part],
            None if self.truth_weights is None else self.truth_weights[:, part],
            self.names[part],
            self.noise_var[part],
        )


def _as_rows(values: object) -> np.ndarray:
    array = np.asarray(values)
    return array.reshape(len(array), -1)


def score_predictions(problem: Problem, mode: Vector, predictions: dict[str, Prediction]) -> dict[str, Scored]:
    """Score the predictions of every method, and those of the yardsticks.

    Scores are in the units of the data file. Counts are scored like other numbers: the log density of a yardstick, a
    Gaussian, is comparable with the log probability of a count.

    Args:
        problem: Training and held-out data.
        mode: The MAP estimate, weights and scales.
        predictions: At the validation inputs, by method; made with their truth.
    """
    if is_of_classes(problem.posterior.likelihood):
        return _score_classes(problem, mode, predictions)
    data, scale = Data.of(problem), 1.0 if problem.units is None else problem.units.scale
    at_mode = _predict_at_mode(problem, mode)
    forecasts = _forecasts(problem, data, at_mode)
    if problem.has_truth:
        data = _with_noise(data, forecasts, predictions)
    scored = {name: _score_prediction(one, data) for name, one in predictions.items()}
    scored |= {name: _score_forecast(forecast, data) for name, forecast in forecasts.items()}
    return {name: _in_units(one, scale) for name, one in scored.items()}


def find_rivals(scored: dict[str, Scored], method: str) -> dict[str, Rival]:
    """Put each yardstick beside a method, row by row of the held-out data."""
    ours = scored[method]
    yardsticks = {name: scored[name] for name in YARDSTICKS if name in scored}
    return {
        name: Rival(_log_density(ours), _log_density(one), compare(ours.rows, one.rows))
        for name, one in yardsticks.items()
    }


def _log_density(scored: Scored) -> float:
    found = scored.overall
    return found.log_score if isinstance(found, ClassScores) else found.log_predictive_density


def is_of_classes(likelihood: Likelihood) -> bool:
    """Whether targets are labels, whose predictions are probabilities."""
    return isinstance(likelihood, Bernoulli | Categorical)


class AtMode(NamedTuple):
    """Expected observations at the MAP."""

    training: np.ndarray
    validation: np.ndarray


def _predict_at_mode(problem: Problem, mode: Vector) -> AtMode:
    places = (problem.posterior.inputs, problem.validation_inputs)
    return AtMode(*(_as_rows(predict_at(problem.posterior, mode, inputs)) for inputs in places))


def _forecasts(problem: Problem, data: Data, at_mode: AtMode) -> dict[str, Forecast]:
    """The yardsticks; ridge regression needs inputs that are rows of numbers."""
    if data.truth.shape[1] != data.targets.shape[1]:
        return _forecasts_at_other_resolution(data, at_mode)
    found = {MAP_RESIDUAL: _map_residual(problem, data, at_mode)}
    rows = (problem.posterior.inputs, problem.validation_inputs)
    if all(getattr(inputs, "ndim", 0) == 2 for inputs in rows) and len(rows[0]) > 1:
        found[RIDGE] = _ridge(data, *map(np.asarray, rows))
    return found | {CONSTANT: _constant(data)}


def _forecasts_at_other_resolution(data: Data, at_mode: AtMode) -> dict[str, Forecast]:
    """Yardsticks that need no correspondence of locations: one std for a whole field."""
    residual = np.sqrt(np.mean((at_mode.training - data.targets) ** 2, dtype=np.float64))
    mean, std = np.mean(data.targets, dtype=np.float64), np.std(data.targets, dtype=np.float64)
    return {
        MAP_RESIDUAL: lambda part: (at_mode.validation[:, part], np.full((1, 1), residual)),
        CONSTANT: lambda part: (np.full_like(data.truth[:, part], mean), np.full((1, 1), std)),
    }


def _map_residual(problem: Problem, data: Data, at_mode: AtMode) -> Forecast:
    """The residual of each output, or one for all of a field."""
    trained, new = at_mode

    def forecast(part: slice) -> tuple[np.ndarray, np.ndarray]:
        columns = data.columns(part)
        return residual_gaussian(trained[:, part], columns.targets, new[:, part], weights=columns.weights)

    if problem.locations is None:
        return forecast
    first, columns = data.parts[0], data.columns(data.parts[0])
    known = {"weights": columns.weights, "per_output": False}
    _, std = residual_gaussian(trained[:, first], columns.targets, new[:1, first], **known)
    return lambda part: (new[:, part], std[:1, :1])


def _ridge(data: Data, inputs: np.ndarray, new_inputs: np.ndarray) -> Forecast:
    components, first = Components.of(inputs), data.columns(data.parts[0])
    penalty = components.best_penalty(first.targets, weights=first.weights)

    def forecast(part: slice) -> tuple[np.ndarray, np.ndarray]:
        columns = data.columns(part)
        return components.fit(columns.targets, weights=columns.weights, penalty=penalty).predict(new_inputs)

    return forecast


def _constant(data: Data) -> Forecast:
    return lambda part: constant(data.columns(part).targets, weights=data.columns(part).weights)


def _with_noise(data: Data, forecasts: Mapping[str, Forecast], predictions: Mapping[str, Prediction]) -> Data:
    """Exact values lack the noise of the training data: find how large it is, of each column."""
    first = data.parts[0]
    shape = data.truth[:, first].shape
    found = {name: np.broadcast_to(forecast(first)[1] ** 2, shape) for name, forecast in forecasts.items()}
    found[MAP_RESIDUAL] = _FITTED_NOISE * found[MAP_RESIDUAL]
    for name, one in predictions.items():
        found[name] = (_as_rows(one.total_std) ** 2 - _as_rows(one.epistemic_std) ** 2)[:, first]
    residual_vars = [variance.mean(axis=0, dtype=np.float64) for variance in found.values()]
    noise_var = np.min(residual_vars, axis=0) if data.names else np.min(np.mean(residual_vars, axis=1))
    return replace(data, noise_var=np.resize(noise_var, data.noise_var.shape))


def _score_forecast(forecast: Forecast, data: Data) -> Scored:
    """Score a Gaussian forecast, some columns at a time."""
    parts, outputs, rows = [], {}, []
    for part in data.parts:
        (mean, std), columns = forecast(part), data.columns(part)
        pointwise = gaussian(mean, std, columns.truth)
        parts.append(summarise(pointwise, columns.truth, weights=columns.truth_weights))
        outputs |= _score_outputs(pointwise, columns)
        rows.append(_row_sums(pointwise.log_density, std, columns))
    return Scored(join(parts, [float(one.count.sum()) for one in rows]), outputs, _add(rows))


def _score_prediction(prediction: Prediction, data: Data) -> Scored:
    """Score a prediction on all values; rows have those values alone that the yardsticks are scored on."""
    pointwise, total_std = _as_rows_of_values(Pointwise.of(prediction), data.truth), _as_rows(prediction.total_std)
    rows = [_row_sums(pointwise.log_density[:, part], total_std[:, part], data.columns(part)) for part in data.parts]
    overall = summarise(pointwise, data.truth, weights=data.truth_weights)
    return Scored(overall, _score_outputs(pointwise, data), _add(rows))


def _row_sums(log_density: np.ndarray, std: np.ndarray, data: Data) -> RowSums:
    """Log densities of each row, less what the noise that exact values lack would cost."""
    if np.any(data.noise_var):
        log_density = log_density - data.noise_var / (2 * np.asarray(std, dtype=np.float64) ** 2)
    return sum_rows(log_density, data.truth_weights)


def _score_outputs(pointwise: Pointwise, data: Data) -> dict[str, Scores]:
    if not data.names:
        return {}
    found = per_output(pointwise, data.truth, weights=data.truth_weights)
    return dict(zip(data.names, found, strict=True))


def _as_rows_of_values(pointwise: Pointwise, truth: np.ndarray) -> Pointwise:
    """Values of the shape of the truth; widths may be those of some of them."""
    *values, widths = pointwise
    if widths[0].size == truth.size:
        widths = widths.reshape(len(widths), *truth.shape)
    return Pointwise(*(one.reshape(truth.shape) for one in values), widths=widths)


def _add(rows: list[RowSums]) -> RowSums:
    return RowSums(*(np.sum(values, axis=0) for values in zip(*rows, strict=True)))


def _in_units(scored: Scored, scale: float) -> Scored:
    outputs = {name: one.scaled(scale) for name, one in scored.outputs.items()}
    return scored._replace(overall=scored.overall.scaled(scale), outputs=outputs)


def predict_at(posterior: Posterior, theta: Vector, inputs: Inputs) -> np.ndarray:
    """Expected observations of one parameter vector, some rows at a time; of an operator, at the training locations."""
    predict_fn, rows, is_transposed = expected_observations(posterior, whole_space(theta), inputs)
    values = evaluate(predict_fn, jnp.asarray(theta)[None], rows)[0]
    return values.T if is_transposed else values


def _score_classes(problem: Problem, mode: Vector, predictions: dict[str, Prediction]) -> dict[str, Scored]:
    """Score class probabilities; the yardsticks are those of the MAP, and the frequencies in the training data."""
    at_mode = predict_at(problem.posterior, mode, problem.validation_inputs)
    targets = np.asarray(problem.posterior.targets)
    if isinstance(problem.posterior.likelihood, Categorical):
        targets = np.eye(at_mode.shape[-1])[targets.astype(int)]
    frequencies = np.broadcast_to(targets.mean(axis=0), at_mode.shape)
    probabilities = {name: one.mean for name, one in predictions.items()} | {MAP: at_mode, CONSTANT: frequencies}
    return {name: _classify(problem, one) for name, one in probabilities.items()}


def _classify(problem: Problem, mean: np.ndarray) -> Scored:
    """Scores of all labels, and of each output of several with labels of their own."""
    probabilities, labels = class_probabilities(problem, mean)
    overall = classify(probabilities.reshape(-1, probabilities.shape[-1]), labels.ravel())
    outputs = {
        name: classify(probabilities[:, index], labels[:, index]) for index, name in enumerate(Data.of(problem).names)
    }
    return Scored(overall, outputs, sum_rows(_label_density(problem, mean)))


def _label_density(problem: Problem, mean: np.ndarray) -> Float[np.ndarray, "rows values"]:
    """Log probability of every observed label."""
    probabilities, labels = class_probabilities(problem, mean)
    with np.errstate(divide="ignore"):
        return _as_rows(np.log(np.take_along_axis(probabilities, labels[..., None], axis=-1)[..., 0]))


def class_probabilities(problem: Problem, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of all classes along the last axis, and the observed classes.

    Args:
        problem: Of classes.
        mean: Predictive mean at the validation inputs.
    """
    values, labels = np.asarray(mean, dtype=np.float64), np.asarray(problem.validation_targets).astype(int)
    if isinstance(problem.posterior.likelihood, Bernoulli):
        return np.stack([1 - values, values], axis=-1), labels
    # In single precision they do not quite sum to one.
    return values / values.sum(axis=-1, keepdims=True), labels
