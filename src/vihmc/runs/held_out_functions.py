"""Held-out functions of an operator: some with truth, mean and bands, and of all the error beside the predicted std."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.spatial import KDTree

from vihmc.data import Problem
from vihmc.posterior.subspace import Subspace
from vihmc.predict import Prediction, predict_posterior
from vihmc.runs.partial_dependence import ENDS, LEVELS, MAX_DRAWS

NUM_FUNCTIONS, MAX_SIDE, MAX_PANELS, MAX_PLACES = 11, 64, 12, 201
"""Functions that are shown; locations along each side of an image; curves of a function, and locations along each."""


class Layout(NamedTuple):
    """How the locations of an operator are shown: as an image, or as curves beside each other.

    Attributes:
        is_image: Whether rows are a coordinate, like columns.
        row_name: Of the coordinate of the rows, with its unit; empty if there is one row.
        column_name: Of the coordinate of the columns.
        rows: Values of the coordinate of the rows.
        columns: Values of the coordinate of the columns.
        places: Number of the location in each row and column; -1 where there is none.
    """

    is_image: bool
    row_name: str
    column_name: str
    rows: np.ndarray
    columns: np.ndarray
    places: np.ndarray


class Functions(NamedTuple):
    """Held-out functions; arrays are (…, function, row, column), NaN where nothing is known.

    Attributes:
        is_image: As in :class:`Layout`, like the next four.
        row_name: See there.
        column_name: See there.
        rows: See there.
        columns: See there.
        output: Name of the field.
        index: Number of each function among the held-out ones, in ascending order of their errors.
        num_functions: How many held-out functions there are.
        truth: The field.
        mean: Its prediction.
        low: Lower end of the band of a new observation, of each level.
        high: Upper end.
        error: Root mean square error of each function over all locations.
        std: Root mean square of its predicted total std.
        held: Share of its locations that are inside the widest band.
    """

    is_image: bool
    row_name: str
    column_name: str
    rows: np.ndarray
    columns: np.ndarray
    output: str
    index: np.ndarray
    num_functions: int
    truth: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    error: np.ndarray
    std: np.ndarray
    held: np.ndarray


class FunctionErrors(NamedTuple):
    """Root mean square error and root mean square of the predicted total std of every function."""

    error: np.ndarray
    std: np.ndarray

    @property
    def correlation(self) -> float:
        """Of the logarithms; not a number if one of them does not vary."""
        known = (self.error > 0) & (self.std > 0)
        both = np.log([self.error[known], self.std[known]])
        if both.shape[1] < 3 or np.any(np.std(both, axis=1) < 1e-6):
            return float("nan")
        return float(np.corrcoef(both)[0, 1])

    @property
    def ratio(self) -> float:
        """Root mean square error over root mean square predicted std, of all functions."""
        return float(np.sqrt(np.nanmean(self.error**2) / np.nanmean(self.std**2)))


def errors_of_functions(problem: Problem, predicted: Prediction) -> FunctionErrors:
    """Error and predicted std of every held-out function, in the units of the data."""
    truth = np.asarray(problem.validation_targets)
    scale = 1.0 if problem.units is None else problem.units.scale
    error, variance = np.square(predicted.mean - truth), np.square(predicted.total_std)
    return FunctionErrors(*(scale * np.sqrt(_average(values, problem)) for values in (error, variance)))


def show_functions(problem: Problem, predicted: Prediction, subspace: Subspace, draws: np.ndarray) -> Functions:
    """Choose functions from the best to the worst and predict them at some locations.

    Args:
        problem: An operator.
        predicted: Of all held-out functions at all locations, scored.
        subspace: What the draws are of.
        draws: Some of these are used.
    """
    errors = errors_of_functions(problem, predicted)
    order = np.argsort(np.where(np.isnan(errors.error), np.inf, errors.error), kind="stable")
    count = int(np.isfinite(errors.error).sum())
    index = order[np.unique(np.linspace(0, count - 1, min(NUM_FUNCTIONS, count)).round().astype(int))]
    layout = lay_out(problem)
    some = draws[np.linspace(0, len(draws) - 1, min(MAX_DRAWS, len(draws))).round().astype(int)]
    used, back = np.unique(layout.places[layout.places >= 0], return_inverse=True)
    found = predict_posterior(
        problem.posterior,
        subspace,
        some,
        problem.validation_inputs[index],
        quantiles=ENDS[:2] if layout.is_image else ENDS,
        locations=jnp.asarray(problem.locations)[used],
    )
    if problem.units is not None:
        found = found.in_units(offset=problem.units.offset, scale=problem.units.scale)

    def arrange(values: np.ndarray) -> np.ndarray:
        shown = np.full((*values.shape[:-1], layout.places.size), np.nan)
        shown[..., layout.places.ravel() >= 0] = np.asarray(values)[..., back]
        return shown.reshape(*values.shape[:-1], *layout.places.shape)

    assert predicted.pit is not None
    inside = np.abs(2 * np.asarray(predicted.pit) - 1) <= LEVELS[0]
    return Functions(
        *layout[:5],
        _output_name(problem),
        index,
        len(errors.error),
        arrange(_known_truth(problem)[index][:, used]),
        arrange(found.mean),
        arrange(found.total_quantiles[0::2]),
        arrange(found.total_quantiles[1::2]),
        errors.error[index],
        errors.std[index],
        _average(inside, problem)[index],
    )


def lay_out(problem: Problem) -> Layout:
    """Find out how the locations of an operator can be shown."""
    locations = np.asarray(problem.locations)
    numbers = np.arange(len(locations))
    if problem.curves is not None:
        panels, axis = problem.curves
        grid = numbers.reshape(len(panels.values), len(axis.values))
        return _thinned(Layout(False, _title(panels), _title(axis), panels.values, axis.values, grid))
    if problem.grid is not None:
        times, positions = problem.grid
        names = problem.input_names or ("t", "x")
        return _thinned(Layout(True, names[0], names[1], times, positions, numbers.reshape(len(times), -1)))
    names = problem.input_names or tuple(f"x{number + 1}" for number in range(locations.shape[1]))
    if locations.shape[1] == 1:
        order = np.argsort(locations[:, 0], kind="stable")
        return _thinned(Layout(False, "", names[0], np.zeros(1), locations[order, 0], order[None]))
    if locations.shape[1] == 2 and np.all(np.ptp(locations, axis=0) > 0):
        return _resampled(locations, names)
    return _thinned(Layout(False, "", "Number of the location", np.zeros(1), numbers.astype(float), numbers[None]))


def _thinned(layout: Layout) -> Layout:
    """As many rows and columns as can be shown, evenly spread."""
    limits = (MAX_SIDE, MAX_SIDE) if layout.is_image else (MAX_PANELS, MAX_PLACES)
    kept = [
        np.unique(np.linspace(0, length - 1, min(length, limit)).round().astype(int))
        for length, limit in zip(layout.places.shape, limits, strict=True)
    ]
    return layout._replace(
        rows=layout.rows[kept[0]], columns=layout.columns[kept[1]], places=layout.places[np.ix_(*kept)]
    )


def _resampled(locations: np.ndarray, names: tuple[str, ...]) -> Layout:
    """Scattered locations as an image: the nearest one to each pixel, if it is near."""
    side = int(np.clip(1.5 * np.sqrt(len(locations)), 2, MAX_SIDE))
    low, width = locations.min(axis=0), np.ptp(locations, axis=0)
    unit = (locations - low) / width
    ticks = np.linspace(0, 1, side)
    pixels = np.stack(np.meshgrid(ticks, ticks, indexing="ij"), axis=-1).reshape(-1, 2)
    tree = KDTree(unit)
    spacing = np.median(tree.query(unit, k=min(2, len(unit)))[0][:, -1])
    distance, nearest = tree.query(pixels)
    places = np.where(distance <= max(2 * spacing, 1 / side), nearest, -1).reshape(side, side)
    rows, columns = (low[axis] + width[axis] * ticks for axis in (0, 1))
    return Layout(True, names[0], names[1], rows, columns, places)


def _known_truth(problem: Problem) -> np.ndarray:
    """Held-out fields in the units of the data, NaN where they were not observed."""
    truth, weights, units = np.asarray(problem.validation_targets), problem.validation_weights, problem.units
    values = truth if units is None else units.offset + units.scale * truth
    return values if weights is None else np.where(weights > 0, values, np.nan)


def _average(values: np.ndarray, problem: Problem) -> np.ndarray:
    """Mean over the locations of every function, by the weights of the observations; NaN for one without any."""
    weights = np.ones_like(values, float) if problem.validation_weights is None else problem.validation_weights
    total = np.sum(weights, axis=1)
    return np.sum(np.where(weights > 0, values, 0) * weights, axis=1) / np.where(total > 0, total, np.nan)


def _output_name(problem: Problem) -> str:
    if problem.target_names:
        return problem.target_names[0]
    return "u" if problem.units is None else problem.units.name


def _title(axis: Any) -> str:
    return f"{axis.name} ({axis.unit})" if axis.unit else axis.name
