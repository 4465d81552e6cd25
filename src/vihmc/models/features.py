r"""Fixed maps of the inputs that go before a network.

.. math::
    (t, x) \mapsto (t, \sin kx, \sin 2kx, \dots, \cos kx, \cos 2kx, \dots), \qquad k = 2\pi / \text{period}

.. math:: x \mapsto (x - \text{mean}) / \text{std}
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from vihmc.errors import InputError
from vihmc.types import readable

_LOST_SHARE = 1e-3
"""Largest rounding error of a column, as a share of its std."""


@dataclass(frozen=True)
class PeriodicFeatures:
    """Replaces one column by sines and cosines of it, so that a network of them is periodic by construction.

    Attributes:
        column: The periodic coordinate; the others stay, in front.
        num_waves: Number of harmonics.
        period: Length of one period, in units of the coordinate.
    """

    column: int
    num_waves: int = 2
    period: float = 1.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.column < 0:
            raise InputError(f"`column` must be the index of a coordinate, from 0, got {self.column}.")
        if self.num_waves < 1:
            raise InputError(f"`num_waves` must be at least 1, got {self.num_waves}.")
        if not self.period > 0:
            raise InputError(f"`period` must be positive, got {self.period}.")

    def __call__(self, inputs: Float[Array, "n inputs"]) -> Float[Array, "n features"]:
        """Map a batch."""
        if self.column >= inputs.shape[1]:
            raise InputError(f"`column` must be below the number of coordinates, {inputs.shape[1]}, got {self.column}.")
        others = jnp.delete(inputs, self.column, axis=1)
        angles = 2 * jnp.pi / self.period * inputs[:, self.column, None] * jnp.arange(1, self.num_waves + 1)
        return jnp.concatenate([others, jnp.sin(angles), jnp.cos(angles)], axis=1).astype(inputs.dtype)


def is_constant(values: Float[np.ndarray, "n columns"]) -> Bool[np.ndarray, " columns"]:
    """Whether each column is one number, but for the rounding of its own values or of larger ones beside it."""
    sizes = np.abs(values).max(axis=0)
    return values.std(axis=0, dtype=np.float64) <= np.maximum(1e-12 * sizes, 1e-15 * sizes.max())


@readable
@dataclass(frozen=True)
class Scaling:
    """Takes the mean of every column off, and divides by its std; hashable like the networks. Build it with :meth:`of`.

    Attributes:
        means: One per column.
        stds: One per column, all positive.
    """

    means: tuple[float, ...]
    stds: tuple[float, ...]

    @classmethod
    def of(cls, values: Float[np.ndarray, "n columns"]) -> "Scaling":
        """The scaling that gives every column mean 0 and std 1; one that is constant keeps its unit."""
        means, stds = values.mean(axis=0, dtype=np.float64), values.std(axis=0, dtype=np.float64)
        return cls(tuple(means.tolist()), tuple(np.where(is_constant(values), 1.0, stds).tolist()))

    def __call__(self, values: Float[Array, "n columns"]) -> Float[Array, "n columns"]:
        """Standardise."""
        return (values - jnp.asarray(self.means, values.dtype)) / jnp.asarray(self.stds, values.dtype)

    def undo(self, values: Float[Array, "n columns"]) -> Float[Array, "n columns"]:
        """Go back to the units of the data."""
        return jnp.asarray(self.means, values.dtype) + jnp.asarray(self.stds, values.dtype) * values


def check_digits(names: tuple[str, ...], scaling: Scaling, dtype: Any, remedy: str, *, hint: str = "") -> None:
    """Refuse columns whose variation is lost in rounding.

    Raises:
        InputError: If a column has too few significant digits left; the message names the setting to change.
    """
    epsilon = float(np.finfo(dtype).eps)
    for name, mean, std in zip(names, scaling.means, scaling.stds, strict=True):
        if abs(mean) * epsilon > _LOST_SHARE * std:
            raise InputError(
                f"`{remedy}` must be 'float64' for '{name}', whose mean of {mean:g} leaves a std of {std:g} too few "
                f"digits, got '{np.dtype(dtype).name}'.{hint}"
            )


@dataclass(frozen=True)
class Chained:
    """One map after the other.

    Attributes:
        maps: The first comes first.
    """

    maps: tuple[Callable[[Array], Array], ...]

    def __call__(self, inputs: Float[Array, "n inputs"]) -> Float[Array, "n features"]:
        """Map a batch."""
        for one in self.maps:
            inputs = one(inputs)
        return inputs
