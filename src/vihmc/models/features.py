r"""Fixed maps of the inputs that go before a network.

.. math:: (t, x) \mapsto (t, \sin kx, \sin 2kx, \dots, \cos kx, \cos 2kx, \dots), \qquad k = 2\pi / \text{period}
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from vihmc.errors import InputError


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
