"""A problem: a posterior, and the data that its predictions are compared with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from vihmc.posterior.checks import Validation
from vihmc.posterior.density import Posterior
from vihmc.types import Inputs, Key, Params


class Grid(NamedTuple):
    """Locations that are all pairs of some times and some positions, times first."""

    times: np.ndarray
    positions: np.ndarray

    @classmethod
    def of(cls, locations: np.ndarray) -> "Grid | None":
        """Recognise the grid in a list of (time, position), or return None."""
        if locations.shape[1] != 2:
            return None
        times, positions = (np.unique(locations[:, column]) for column in (0, 1))
        if len(times) * len(positions) != len(locations):
            return None
        full = np.stack(np.meshgrid(times, positions, indexing="ij"), axis=-1).reshape(-1, 2)
        return cls(times, positions) if np.array_equal(full, locations) else None


class Axis(NamedTuple):
    """A coordinate of the locations."""

    name: str
    unit: str
    values: np.ndarray


class Units(NamedTuple):
    """Physical units of a prediction: ``offset + scale · prediction``, in units of `name`."""

    name: str
    offset: float
    scale: float


class Split(NamedTuple):
    """Some of the validation outputs, reported on their own.

    Attributes:
        name: A word.
        title: A few words.
        weights: How much each output counts, of the shape of the targets.
        floors: Root mean square errors of simpler predictors, by name, for comparison.
    """

    name: str
    title: str
    weights: np.ndarray
    floors: dict[str, float]


class Folds(NamedTuple):
    """Groups of training functions; each is predicted by a fit to the others.

    Attributes:
        number: The group of each function.
        weights: How much each output counts in the error, of the shape of the targets.
        floors: Root mean square errors of simpler predictors that left out the same.
    """

    number: np.ndarray
    weights: np.ndarray
    floors: dict[str, float]


@dataclass(frozen=True, eq=False)
class Problem:
    """A posterior, and the data that its results are compared with.

    Attributes:
        name: Name, as in ``vihmc run NAME``.
        posterior: Model, prior, likelihood and training data.
        validation_inputs: Where predictions are reported.
        validation_targets: The truth there, without noise; or observations, if `data_description` says so.
        labels: Names of the parameters, where they have a meaning.
        initial_params: Draws the initial parameters of the fit; small random numbers if not given.
        grid: Times and positions of the locations of an operator, if they are a grid.
        validation_locations: Where the validation fields of an operator are known, if not at the training locations.
        validation_weights: How often each validation output was observed, zero for never; once each if not given.
        splits: Parts of the validation outputs to report on one by one.
        fold: Puts training functions into a given number of groups, to leave out in turn; None if not possible.
        units: Physical units of the predictions, if they are normalised.
        curves: Coordinates of the locations of an operator whose fields are curves, one panel each; panels first.
        probes: Functions and locations whose predictions are watched for convergence; None for evenly spread ones.
        published: What a paper reports on this problem, if these are its data.
        result_table: Makes a table for the terminal of a run's summary, with published numbers beside ours.
        notice: A sentence that the user should read; printed when a run starts, and part of the report.
        input_names: Names of the columns of the inputs; of an operator, of the coordinates. Empty if they have none.
        target_names: Names of the columns of the targets; of an operator, of the field.
        calibration: Held-out data that bands are calibrated on, apart from those for validation.
        data_description: Source, split and standardisation of your own data: plain numbers, lists and strings.
        has_held_out: Whether the validation data are others than the training data.
    """

    name: str
    posterior: Posterior
    validation_inputs: Inputs
    validation_targets: Array
    labels: tuple[str, ...] = field(default=())
    initial_params: Callable[[Key], Params] | None = None
    grid: Grid | None = None
    validation_locations: Array | None = None
    validation_weights: np.ndarray | None = None
    splits: tuple[Split, ...] = ()
    fold: Callable[[int], Folds] | None = None
    units: Units | None = None
    curves: tuple[Axis, Axis] | None = None
    probes: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
    published: dict[str, Any] = field(default_factory=dict)
    result_table: Callable[[dict[str, Any]], Any] | None = None
    notice: str | None = None
    input_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    calibration: Validation | None = None
    data_description: dict[str, Any] | None = None
    has_held_out: bool = True

    @property
    def locations(self) -> Array | None:
        """Where the validation fields of an operator are known; None for other models."""
        return self.training_locations if self.validation_locations is None else self.validation_locations

    @property
    def training_locations(self) -> Array | None:
        """Where the training fields of an operator are known; None for other models."""
        return getattr(self.posterior, "locations", None)

    @property
    def input_name(self) -> str:
        """Name of the first input."""
        return self.input_names[0] if self.input_names else "x"

    @property
    def target_name(self) -> str:
        """Name of the first target."""
        return self.target_names[0] if self.target_names else "y"

    @property
    def has_truth(self) -> bool:
        """Whether the validation targets are exact rather than noisy observations."""
        return self.data_description is None

    @property
    def param_names(self) -> tuple[str, ...]:
        """The labels, or else the paths in the parameter tree."""
        return self.labels or self.posterior.layout.names
