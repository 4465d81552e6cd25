r"""A density of selected weights that leaves the scales where the fit found them: a cut (Plummer 2015).

Training residuals of a network that can fit every function say nothing about its error at new ones. So the noise was
found where functions were left out, and keeps that distribution whatever the selected weights are.

Predictions are linear in the weights of an output layer, and then the density of these is a quadratic form,

.. math:: \log p(w) = \log p(w_0) + g^\top (w - w_0) - \tfrac12 (w - w_0)^\top \Lambda\, (w - w_0)

with one gradient g at the fit and the precision :math:`\Lambda` of data and prior. No draw passes through the data
again.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from vihmc.types import LogDensity, as_pytree_function, register_pytree

_MANY_PARAMS = 4096
LEAST_TO_DIVIDE = 40
LEFT_OUT = 0.05
"""Share of the observations that a fit leaves out."""


def num_left_out(*, num_scales: int, num_params: int, num_observations: int) -> int:
    """Observations that fits leave out to find the noise from: some, if a large model learns it."""
    is_found_apart = num_scales > 0 and num_params > _MANY_PARAMS and num_observations >= LEAST_TO_DIVIDE
    return round(LEFT_OUT * num_observations) if is_found_apart else 0


@dataclass(frozen=True, eq=False)
class QuadraticForm:
    """A density that is quadratic around a point. Build it with :meth:`around`."""

    point: Float[Array, " selected"]
    value: Float[Array, ""]
    gradient: Float[Array, " selected"]
    precision: Float[Array, "selected selected"]

    @classmethod
    def around(
        cls, density: LogDensity, point: Float[Array, " selected"], precision: Float[Array, "selected selected"]
    ) -> "QuadraticForm":
        """The one that has the value and gradient of `density` at a point, and this precision."""
        value, gradient = _value_and_gradient(as_pytree_function(density), point)
        return cls(point, value, gradient, precision)

    def log_density(self, position: Float[Array, " selected"]) -> Array:
        """Value at a position."""
        step = position - self.point
        return self.value + step @ (self.gradient - 0.5 * (self.precision @ step))


register_pytree(QuadraticForm, data_fields=["point", "value", "gradient", "precision"], meta_fields=[])


def cut_scales(density: LogDensity, *, scales: Float[Array, " scales"], counts: Float[Array, " scales"]) -> LogDensity:
    """The density of weights at known scales, with the distribution of the scales themselves beside it.

    Args:
        density: Of selected weights and, last, log scales.
        scales: Logarithms of the scales, as the fit found them.
        counts: How many independent values each was found from.
    """
    return Partial(_density_beside_scales, as_pytree_function(density), scales, counts)


@jax.jit
def _value_and_gradient(density: Partial, point: Array) -> tuple[Array, Array]:
    return jax.value_and_grad(density)(point)


def _density_beside_scales(density: Partial, scales: Array, counts: Array, position: Array) -> Array:
    begin = position.shape[0] - scales.shape[0]
    held = position.at[begin:].set(scales.astype(position.dtype))
    # The std of the logarithm of a scale of n values is (2 n)^(-1/2).
    return density(held) - jnp.sum(counts * (position - held)[begin:] ** 2)
