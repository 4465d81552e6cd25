"""What a model is to the method: something with ``apply(params, inputs)``, and what else it may offer.

Any function will do. An object with a method `apply` that compares equal to another of the same architecture, as
:class:`vihmc.MLP` does, shares the programs compiled for it. What such an object offers beyond `apply` (the protocols
below) makes stages faster and never changes an answer.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float, Shaped

from vihmc.models.features import Scaling
from vihmc.types import Inputs, Params


@dataclass(frozen=True)
class FunctionModel:
    """A plain function as a model."""

    function: Callable[[Params, Inputs], Array]

    def apply(self, params: Params, inputs: Inputs) -> Array:
        """Run the function."""
        return self.function(params, inputs)


def as_model(model: Any) -> Any:
    """Return an object with `apply`: `model` itself, the object whose `apply` it is, or a function as a model."""
    if callable(getattr(model, "apply", None)):
        return model
    # A bound method is equal to another only if both belong to the very same object; the objects may be equal.
    if inspect.ismethod(model) and model.__name__ == "apply" and _is_hashable(model.__self__):
        return model.__self__
    return FunctionModel(model)


def initialiser(model: Any) -> Callable | None:
    """The function that draws parameters of a model, if it has one."""
    found = getattr(getattr(model, "network", model), "init", None)
    return found if callable(found) else None


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@runtime_checkable
class VectorisedChains(Protocol):
    """A network that runs with the parameters of many chains at once, along an additional last axis of every leaf."""

    def suits_vectorised_chains(self, num_observations: int) -> bool:
        """Whether that is faster than one batch of matrix products for each chain."""
        ...

    def apply_vectorised(self, params: Params, inputs: Inputs) -> Float[Array, "n outputs chains"]:
        """Run the network."""
        ...

    def features_vectorised(self, params: Params, inputs: Inputs) -> Float[Array, "n width chains"]:
        """What enters the output layer, a column of ones for its bias included."""
        ...

    def output_layer(self, params: Params) -> Shaped[Array, "rows outputs *chains"]:
        """The weights of the output layer, its bias as the last row."""
        ...

    def with_output_layer(self, params: Params, layer: Float[Array, "rows outputs"]) -> Params:
        """The same parameters with another output layer."""
        ...


@runtime_checkable
class SquaredGradients(Protocol):
    """A network whose squared derivatives can be summed over rows without a gradient for each."""

    def sum_squared_rows(
        self, params: Params, inputs: Inputs, weights: Float[Array, "n outputs"] | None = None
    ) -> Params | None:
        """Sums over rows and outputs of squared derivatives, times weights; None if it cannot after all."""
        ...


@runtime_checkable
class HasUnits(Protocol):
    """A network between data in their own units: ``targets.undo(network(inputs(x)))``."""

    network: Any
    inputs: Scaling
    targets: Scaling | None
