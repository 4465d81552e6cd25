"""What a problem is, and how to get one by name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Array

from vihmc.config import Settings, SineConfig
from vihmc.posterior import Posterior
from vihmc.types import Inputs


@dataclass(frozen=True, eq=False)
class Problem:
    """A posterior, and what its results are judged against.

    Attributes:
        name: Name, as in ``vihmc run NAME``.
        posterior: Model, prior, likelihood and training data.
        validation_inputs: Where predictions are reported.
        validation_targets: The truth there, without noise.
        labels: Names of the parameters a person would use, where they have any.
    """

    name: str
    posterior: Posterior
    validation_inputs: Inputs
    validation_targets: Array
    labels: tuple[str, ...] = field(default=())

    @property
    def param_names(self) -> tuple[str, ...]:
        """The labels, or else the paths in the parameter tree."""
        return self.labels or self.posterior.layout.names


def build_problem(config: Settings) -> Problem:
    """Build the problem that a configuration describes."""
    from vihmc.problems import sine

    builders: dict[type, Callable[[Any], Problem]] = {SineConfig: sine.build}
    return builders[type(config)](config)
