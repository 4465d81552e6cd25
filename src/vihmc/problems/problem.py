"""What a problem is, and how to get one by name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from vihmc.config import BurgersConfig, Settings, SineConfig
from vihmc.posterior import Posterior
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


@dataclass(frozen=True, eq=False)
class Problem:
    """A posterior, and what its results are judged against.

    Attributes:
        name: Name, as in ``vihmc run NAME``.
        posterior: Model, prior, likelihood and training data.
        validation_inputs: Where predictions are reported.
        validation_targets: The truth there, without noise.
        labels: Names of the parameters a person would use, where they have any.
        initial_params: Draws where the fit starts; small random numbers if there is none.
        grid: Times and positions of the locations of an operator, if they are a grid.
    """

    name: str
    posterior: Posterior
    validation_inputs: Inputs
    validation_targets: Array
    labels: tuple[str, ...] = field(default=())
    initial_params: Callable[[Key], Params] | None = None
    grid: Grid | None = None

    @property
    def param_names(self) -> tuple[str, ...]:
        """The labels, or else the paths in the parameter tree."""
        return self.labels or self.posterior.layout.names


def build_problem(config: Settings) -> Problem:
    """Build the problem that a configuration describes."""
    from vihmc.problems import burgers, sine

    builders: dict[type, Callable[[Any], Problem]] = {SineConfig: sine.build, BurgersConfig: burgers.build}
    return builders[type(config)](config)
