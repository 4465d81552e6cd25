"""Noise with outliers."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from vihmc.posterior.checks import as_positive
from vihmc.posterior.likelihoods.base import FIRST_SHARE, LEAST_SHARE, Likelihood, check_shapes, spread_of
from vihmc.posterior.scales import log_half_cauchy
from vihmc.types import Key

_LEAST_DEGREES = 2.0
_MEDIAN_DEGREES = 10.0


@dataclass(frozen=True, eq=False)
class StudentT(Likelihood):
    r""":math:`(y - f)/\text{noise\_scale} \sim t_\nu`, for outliers: a scale, not the std, which is larger.

    Learnt degrees of freedom are above two, where the variance exists; what exceeds two is half-Cauchy with median 10.

    Attributes:
        noise_scale: Known scale, or None to learn it.
        degrees: Known degrees of freedom, or None to learn them.
        medians: Of the hyperpriors of what is learnt; of the scale it is the std of the targets.
    """

    noise_scale: Any = None
    degrees: Any = None
    medians: Any = None

    arrays: ClassVar[tuple[str, ...]] = ("noise_scale", "degrees", "medians")

    @property
    def scale_names(self) -> tuple[str, ...]:
        """The scale and what the degrees of freedom exceed two by, as far as they are learnt."""
        names = (("noise_scale", self.noise_scale), ("degrees - 2", self.degrees))
        return tuple(name for name, known in names if known is None)

    @property
    def has_one_precision(self) -> bool:
        """All outputs have one scale."""
        return True

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "StudentT":
        """Check what is known; take medians from the targets."""
        check_shapes(targets, outputs)
        known = {}
        if self.noise_scale is not None:
            known["noise_scale"] = as_positive("noise_scale", self.noise_scale, "the scale of the noise", targets.dtype)
        if self.degrees is not None:
            known["degrees"] = as_positive("degrees", self.degrees, "the degrees of freedom", targets.dtype)
        medians = [] if self.noise_scale is not None else [float(spread_of(targets)[0])]
        medians += [] if self.degrees is not None else [_MEDIAN_DEGREES]
        return replace(self, **known, medians=jnp.asarray(medians, targets.dtype))

    def initial_log_scales(self, targets: Array) -> Float[Array, " scales"]:
        """A share of the std of the targets, and ten degrees of freedom."""
        return jnp.log(self.medians) + jnp.asarray(
            [np.log(FIRST_SHARE) if name == "noise_scale" else 0.0 for name in self.scale_names], targets.dtype
        )

    def log_hyperprior(self, log_scales: Float[Array, "scales *chains"]) -> Float[Array, "*chains"]:
        """Half-Cauchy each."""
        return log_half_cauchy(log_scales, self.medians)

    def _values(self, log_scales: Array) -> tuple[Array, Array]:
        """Scale and degrees of freedom."""
        learnt = iter(log_scales)
        scale = jnp.exp(next(learnt)) if self.noise_scale is None else self.noise_scale
        return scale, _LEAST_DEGREES + jnp.exp(next(learnt)) if self.degrees is None else self.degrees

    def given(self, log_scales: Float[Array, " scales"]) -> "StudentT":
        """Both known."""
        scale, degrees = self._values(log_scales)
        return replace(self, noise_scale=scale, degrees=degrees, medians=jnp.zeros(0, jnp.result_type(scale)))

    def fit_scales(
        self, targets: Array, outputs: Array, log_scales: Array, *, num_fitted: Array, weights: Array | None = None
    ) -> Array:
        """The scale from the median absolute residual, which outliers leave alone."""
        if self.noise_scale is not None:
            return log_scales
        _, degrees = self._values(log_scales)
        middle = jnp.median(jnp.abs(targets - outputs)) / 0.6745
        free = jnp.maximum(1 - jnp.sum(num_fitted) / targets.size, LEAST_SHARE)
        return log_scales.at[0].set(jnp.log(middle / jnp.sqrt(free) * jnp.sqrt(1 - 1 / (degrees + 1))))

    def log_prob(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Student's t log density."""
        scale, degrees = self._values(log_scales)
        constant = gammaln((degrees + 1) / 2) - gammaln(degrees / 2) - 0.5 * jnp.log(jnp.pi * degrees) - jnp.log(scale)
        return constant - 0.5 * (degrees + 1) * jnp.log1p(((targets - outputs) / scale) ** 2 / degrees)

    def precision(self, outputs: Array, log_scales: Array) -> Array:
        """Fisher information of a location."""
        scale, degrees = self._values(log_scales)
        return jnp.broadcast_to((degrees + 1) / (degrees + 3) / scale**2, outputs.shape)

    def variance(self, outputs: Array, log_scales: Array) -> Array:
        """Infinite at two degrees of freedom and below."""
        scale, degrees = self._values(log_scales)
        variance = jnp.where(degrees > _LEAST_DEGREES, scale**2 * degrees / (degrees - 2), jnp.inf)
        return jnp.broadcast_to(variance, outputs.shape)

    def sample(self, rng_key: Key, outputs: Array, log_scales: Array) -> Array:
        """Add noise."""
        scale, degrees = self._values(log_scales)
        return outputs + scale * jax.random.t(rng_key, degrees, outputs.shape, outputs.dtype)

    def cdf(self, values: Array, outputs: Array, log_scales: Array) -> Array:
        """Student's t distribution function."""
        scale, degrees = self._values(log_scales)
        z = (values - outputs) / scale
        tail = 0.5 * special.betainc(degrees / 2, 0.5, degrees / (degrees + z**2))
        return jnp.where(z < 0, tail, 1 - tail)
