r"""What every adapter makes of a model of another library: parameters, and a pure function of them.

.. math:: F_\theta(x) = \text{run}(c, \theta, x)

The constants c are all of the model that is no parameter: its architecture, statistics of batch norm, buffers. They
compare by value, so that equal models share compiled programs.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from vihmc.errors import InputError
from vihmc.types import Inputs, Params

EVALUATION = {
    "train": False,
    "training": False,
    "is_training": False,
    "deterministic": True,
    "inference": True,
    "use_running_average": True,
}
"""Arguments by which models are told that they are not trained, and their values."""


class Constants:
    """A tree that compares by the values of its leaves, arrays included."""

    def __init__(self, tree: Any) -> None:
        """Hold a tree."""
        self.tree = tree
        self._leaves, self._structure = jax.tree.flatten(tree)

    def __hash__(self) -> int:
        return hash((self._structure, tuple(leaf.shape if _is_array(leaf) else leaf for leaf in self._leaves)))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Constants) or self._structure != other._structure:
            return False
        return all(_are_equal(one, two) for one, two in zip(self._leaves, other._leaves, strict=True))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _are_equal(one: Any, two: Any) -> bool:
    if not (_is_array(one) and _is_array(two)):
        return one is two or (not _is_array(one) and not _is_array(two) and bool(one == two))
    return one.dtype == two.dtype and np.array_equal(_numbers(one), _numbers(two))


def _numbers(array: Any) -> np.ndarray:
    is_key = jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array)


@dataclass(frozen=True)
class FrameworkModel:
    """A model of another library; equal models share compiled programs.

    Attributes:
        framework: Name of the library.
        constants: All of the model that is no parameter.
        run: ``run(constants, params, inputs)``, the model as a pure function.
        rebuild: ``rebuild(constants, params)``, the library's own object with these parameters.
    """

    framework: str
    constants: Constants
    run: Callable[[Any, Params, Inputs], Array]
    rebuild: Callable[[Any, Params], Any]

    def apply(self, params: Params, inputs: Inputs) -> Array:
        """Run the model on a batch, in evaluation mode."""
        return self.run(self.constants.tree, params, inputs)

    def to_module(self, params: Params) -> Any:
        """The library's own object with these parameters."""
        return self.rebuild(self.constants.tree, params)


class Adapted(NamedTuple):
    """A model and its parameters.

    Attributes:
        model: Has ``apply(params, inputs)``.
        params: Its parameters, or a tree like them.
        is_start: Whether a fit starts at `params`: they are the model's own, not a mere example.
    """

    model: Any
    params: Params
    is_start: bool


def evaluation_arguments(function: Callable) -> dict[str, bool]:
    """Arguments that switch a function to evaluation mode, as far as it has such arguments."""
    return {name: EVALUATION[name] for name in inspect.signature(function).parameters if name in EVALUATION}


def call(function: Callable, inputs: Inputs, signature_of: Callable | None = None, **others: Any) -> Any:
    """Call a model as its signature asks: a dict by name, a tuple by position, all else as one argument."""
    parameters = [
        one for one in inspect.signature(signature_of or function).parameters.values() if one.name not in EVALUATION
    ]
    names = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    if isinstance(inputs, Mapping) and set(inputs) <= names:
        return function(**inputs, **others)
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if isinstance(inputs, Sequence) and 1 < len(inputs) <= len(positional):
        return function(*inputs, **others)
    return function(inputs, **others)


def tell_evaluation_mode(layers: Sequence[str], *, with_statistics: bool = False) -> None:
    """Say that layers which behave differently in training are used as in evaluation."""
    if not layers:
        return
    kept = " Running statistics stay as they are." if with_statistics else ""
    warnings.warn(f"`model` is used in evaluation mode, which changes {', '.join(layers)}.{kept}", stacklevel=5)


def refuse_random(layer: str) -> InputError:
    """The error for a layer that is random in evaluation mode, too."""
    return InputError(
        f"`model` must be deterministic in evaluation mode, got the random layer {layer}. The posterior is of the "
        "weights alone: take the layer out or switch it off."
    )
