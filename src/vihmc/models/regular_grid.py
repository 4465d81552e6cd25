"""Locations that form a regular grid, and an operator on the fields at them.

Data files have functions and fields as rows of numbers. :class:`RegularGrid` recognises that the locations are all
combinations of evenly spaced points, in any order. :class:`GridOperator` puts rows onto the grid, runs a Fourier neural
operator along the axes that the functions are sampled on, and takes fields off the grid again. Points along all other
axes, such as times, are channels of its output.
"""

from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vihmc.errors import InputError
from vihmc.models.fno import FNO
from vihmc.types import Key, Params

_UNEVEN = 1e-3
"""Largest difference of two distances between neighbours, as a share of the distance."""


class Spacing(NamedTuple):
    """Evenly spaced points.

    Attributes:
        start: The first.
        step: Distance of neighbours.
        length: How many.
        is_descending: Whether the file has the last one first.
    """

    start: float
    step: float
    length: int
    is_descending: bool = False

    @classmethod
    def of(cls, values: Float[np.ndarray, " n"]) -> "Spacing | None":
        """Recognise evenly spaced points in the values that a coordinate has; None if there are fewer than two."""
        points = _distinct(values)
        if len(points) < 2:
            return None
        steps = np.diff(points)
        step = float((points[-1] - points[0]) / (len(points) - 1))
        if np.max(np.abs(steps - step)) > _UNEVEN * step:
            return None
        return cls(float(points[0]), step, len(points), bool(values[0] > values[-1]))

    @property
    def end(self) -> float:
        """The last point."""
        return self.start + self.step * (self.length - 1)


@dataclass(frozen=True)
class RegularGrid:
    """Locations that are all combinations of evenly spaced points along each coordinate. Find it with :meth:`of`.

    Attributes:
        spacings: Points along each coordinate.
        order: The number of each location in a list whose last coordinate changes fastest; None if that is the list.
    """

    spacings: tuple[Spacing, ...]
    order: tuple[int, ...] | None = None

    @classmethod
    def of(cls, locations: Float[np.ndarray, "locations dims"]) -> "RegularGrid | None":
        """Recognise the grid in a list of locations, or return None."""
        locations = np.asarray(locations, np.float64)
        spacings = tuple(spacing for column in locations.T if (spacing := Spacing.of(column)) is not None)
        shape = tuple(spacing.length for spacing in spacings)
        if len(spacings) != locations.shape[1] or prod(shape) != len(locations):
            return None
        indices = [
            np.rint((column - one.start) / one.step).astype(int)
            for column, one in zip(locations.T, spacings, strict=True)
        ]
        order = np.ravel_multi_index(indices, shape)
        if not np.array_equal(np.sort(order), np.arange(len(order))):
            return None
        return cls(spacings, None if np.array_equal(order, np.arange(len(order))) else tuple(order.tolist()))

    @property
    def shape(self) -> tuple[int, ...]:
        """Points along each coordinate."""
        return tuple(spacing.length for spacing in self.spacings)

    @property
    def size(self) -> int:
        """Number of locations."""
        return prod(self.shape)

    def axes_of(self, num_sensors: int) -> list[tuple[int, ...]]:
        """Sets of coordinates along which so many sensors can lie, at the points of the grid."""
        every = range(len(self.shape))
        sets = [axes for count in range(1, len(self.shape) + 1) for axes in combinations(every, count)]
        return [axes for axes in sets if prod(self.shape[axis] for axis in axes) == num_sensors]

    def order_of_sensors(self, axes: tuple[int, ...]) -> Int[np.ndarray, " sensors"]:
        """The number of each sensor in a list whose last coordinate changes fastest.

        Sensors at all locations are in the order of these; along some of the axes, in the direction of each.
        """
        if len(axes) == len(self.shape):
            return np.arange(self.size) if self.order is None else np.asarray(self.order)
        numbers = np.arange(prod(self.shape[axis] for axis in axes)).reshape([self.shape[axis] for axis in axes])
        for number, axis in enumerate(axes):
            if self.spacings[axis].is_descending and self.shape[axis] > 1:
                numbers = np.flip(numbers, number)
        return numbers.ravel()


@dataclass(frozen=True)
class GridOperator:
    """A Fourier neural operator between rows of sensors and rows of locations; hashable like the network.

    Attributes:
        network: The operator on the grid of the functions; a channel of its output for every point along other axes.
        grid: The locations of the training fields.
        axes: Coordinates along which the functions are sampled.
        finer: Further grids over the same domain, with other numbers of points along `axes`.
        function_mean: Mean of the functions, which the network does not see.
        function_std: Unit of the functions inside.
        field_mean: What is added to the fields.
        field_std: What the fields are multiplied by before that.
    """

    network: FNO
    grid: RegularGrid
    axes: tuple[int, ...]
    finer: tuple[RegularGrid, ...] = ()
    function_mean: float = 0.0
    function_std: float = 1.0
    field_mean: float = 0.0
    field_std: float = 1.0

    def init(self, rng_key: Key) -> Params:
        """Draw parameters of the network."""
        return self.network.init(rng_key)

    def apply(self, params: Params, functions: Float[Array, "n sensors"]) -> Float[Array, "n locations"]:
        """Predict the fields at the locations of the grid that has as many sensors as the functions."""
        return self.project(params, self.hidden(params, functions), self.grid_of(functions.shape[1]))

    def hidden(self, params: Params, functions: Float[Array, "n sensors"]) -> Float[Array, "n *grid_features"]:
        """What the output layer of the network multiplies."""
        grid = self.grid_of(functions.shape[1])
        places = np.argsort(grid.order_of_sensors(self.axes), kind="stable")
        standardised = (functions - self.function_mean) / self.function_std
        inputs = standardised[:, places].reshape(-1, *self.shape_of(grid), 1)
        pairs = [(self.grid.spacings[axis], grid.spacings[axis]) for axis in self.axes]
        coordinates = [
            (np.arange(new.length) * new.step + new.start - known.start + known.step / 2) / (known.length * known.step)
            for known, new in pairs
        ]
        # The period of the waves is a length in space, whatever the resolution.
        lengths = self.network.padded(self.shape_of(self.grid))
        periods = [known.step * length for (known, _), length in zip(pairs, lengths, strict=True)]
        padded = [max(round(period / new.step), new.length) for period, (_, new) in zip(periods, pairs, strict=True)]
        return self.network.hidden(params, inputs, coordinates, padded)

    def project(
        self, params: Params, hidden: Float[Array, "n *grid_features"], grid: RegularGrid
    ) -> Float[Array, "n locations"]:
        """The output layer, and the way back from the grid to a list of locations."""
        return self.field_mean + self.field_std * self.off_grid(self.network.project(params, hidden), grid)

    def off_grid(self, outputs: Array, grid: RegularGrid) -> Array:
        """Outputs of the network, (functions, points…, channels), as rows of locations."""
        others = [axis for axis in range(len(grid.shape)) if axis not in self.axes]
        fields = outputs.reshape(-1, *self.shape_of(grid), *(grid.shape[axis] for axis in others))
        fields = jnp.moveaxis(fields, range(1, fields.ndim), [1 + axis for axis in (*self.axes, *others)])
        rows = fields.reshape(len(outputs), -1)
        return rows if grid.order is None else rows[:, np.asarray(grid.order)]

    def shape_of(self, grid: RegularGrid) -> tuple[int, ...]:
        """Points along the coordinates on which functions are sampled."""
        return tuple(grid.shape[axis] for axis in self.axes)

    def grid_of(self, num_sensors: int) -> RegularGrid:
        """The grid of functions with so many sensors.

        Raises:
            InputError: If none is known.
        """
        grids = {prod(self.shape_of(grid)): grid for grid in (*self.finer, self.grid)}
        if num_sensors not in grids:
            known = " or ".join(str(number) for number in sorted(grids))
            raise InputError(
                f"`functions` must have {known} sensors where no other locations are given, got {num_sensors}."
            )
        return grids[num_sensors]

    def with_grid(self, setting: str, locations: Float[np.ndarray, "locations dims"]) -> "GridOperator":
        """The same operator, which also predicts on another grid.

        Args:
            setting: What the locations are called in errors.
            locations: Over the same domain; axes that functions are not sampled on have the training points.

        Raises:
            InputError: If they are no grid, or of another domain.
        """
        grid = RegularGrid.of(locations)
        if grid is None or len(grid.shape) != len(self.grid.shape):
            raise InputError(f"`{setting}` must hold a regular grid of locations, as in training, got another list.")
        if grid == self.grid or grid in self.finer:
            return self
        for axis, (one, two) in enumerate(zip(self.grid.spacings, grid.spacings, strict=True)):
            is_sampled = axis in self.axes
            # The first and last points of cells of half the size are a quarter of a cell nearer to the ends.
            slack = (max(one.step, two.step) if is_sampled else 1e-3 * one.step) * 0.5001
            if abs(one.start - two.start) > slack or abs(one.end - two.end) > slack:
                raise InputError(
                    f"`{setting}` must have locations over the domain of the training data, {one.start:g} to "
                    f"{one.end:g} along coordinate {axis}, got {two.start:g} to {two.end:g}."
                )
            if not is_sampled and one.length != two.length:
                raise InputError(
                    f"`{setting}` must have the training points along coordinate {axis}, on which functions are not "
                    f"sampled, {one.length} of them, got {two.length}."
                )
        shape, trained = self.shape_of(grid), self.shape_of(self.grid)
        if prod(shape) == prod(trained):
            raise InputError(
                f"`{setting}` must have the training locations in their order, or a grid of another resolution, got "
                f"others on a grid of {' × '.join(map(str, shape))}."
            )
        self.network.check_grid(shape)
        others = tuple(one for one in self.finer if prod(self.shape_of(one)) != prod(shape))
        return replace(self, finer=(*others, grid))

    def locations_of(self, num_sensors: int) -> Float[np.ndarray, "locations dims"]:
        """The locations where fields of functions with so many sensors are predicted."""
        grid = self.grid_of(num_sensors)
        axes = [one.start + one.step * np.arange(one.length) for one in grid.spacings]
        every = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(grid.size, -1)
        return every if grid.order is None else every[np.asarray(grid.order)]

    def indices_at(self, num_sensors: int, locations: Float[np.ndarray, "places dims"]) -> Int[np.ndarray, " places"]:
        """Which of its locations some places are.

        Raises:
            InputError: If a place is not a point of the grid.
        """
        grid = self.grid_of(num_sensors)
        columns = []
        for values, one in zip(np.asarray(locations, np.float64).T, grid.spacings, strict=True):
            exact = (values - one.start) / one.step
            index = np.rint(exact)
            if np.any(np.abs(exact - index) > 0.01) or np.any((index < 0) | (index >= one.length)):
                raise InputError(
                    f"`locations` must be points of the grid of functions with {num_sensors} sensors, got others."
                )
            columns.append(index.astype(int))
        numbers = np.ravel_multi_index(columns, grid.shape)
        if grid.order is None:
            return numbers
        place_of = np.argsort(np.asarray(grid.order))
        return place_of[numbers]


def _distinct(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " distinct"]:
    """Distinct values, ascending; those that differ by rounding of single precision are one."""
    ordered = np.sort(values)
    gaps = np.diff(ordered)
    least = 1e-5 * max(float(ordered[-1] - ordered[0]), np.finfo(np.float32).tiny)
    groups = np.split(ordered, np.flatnonzero(gaps > least) + 1)
    return np.array([group.mean() for group in groups])
