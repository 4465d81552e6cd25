"""Gaussian noise, known or learnt."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special
from jaxtyping import Array, Float

from vihmc.errors import InputError
from vihmc.posterior.checks import as_positive
from vihmc.posterior.likelihoods.base import FIRST_SHARE, LEAST_SHARE, Likelihood, check_shapes, spread_of
from vihmc.posterior.normal import LOG_2PI, log_normal
from vihmc.posterior.scales import log_half_cauchy, most_probable_scale
from vihmc.types import Key


@dataclass(frozen=True, eq=False)
class Gaussian(Likelihood):
    r""":math:`y \sim N(f, \text{noise\_std}^2)`.

    Attributes:
        noise_std: Known standard deviation: one number, one per output, or one per observation (of the shape of the
            targets). None to learn it.
        per_output: Whether every output has a learnt noise of its own.
        medians: Of the hyperprior of each learnt noise; the std of the targets if not given.
    """

    noise_std: Any = None
    per_output: bool = True
    medians: Any = None

    arrays: ClassVar[tuple[str, ...]] = ("noise_std", "medians")

    @property
    def scale_names(self) -> tuple[str, ...]:
        """One noise, or one per output."""
        if self.noise_std is not None:
            return ()
        count = 1 if self.medians is None else len(self.medians)
        return ("noise_std",) if count == 1 else tuple(f"noise_std[{output}]" for output in range(count))

    @property
    def has_one_precision(self) -> bool:
        """Whether one noise is that of all outputs."""
        return self.num_scales == 1 if self.noise_std is None else jnp.ndim(self.noise_std) == 0

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "Gaussian":
        """Check the noise, or take the median of its hyperprior from the targets."""
        check_shapes(targets, outputs)
        if self.noise_std is not None:
            return replace(self, noise_std=_check_noise(self.noise_std, targets))
        many = self.per_output and targets.ndim > 1 and targets.shape[-1] > 1
        medians = spread_of(targets, per_output=many) if self.medians is None else np.atleast_1d(self.medians)
        return replace(self, medians=jnp.asarray(medians, targets.dtype))

    def initial_log_scales(self, targets: Array) -> Float[Array, " scales"]:
        """A share of the std of the targets."""
        return jnp.log(FIRST_SHARE * self.medians) if self.num_scales else jnp.zeros(0, targets.dtype)

    def log_hyperprior(self, log_scales: Float[Array, "scales *chains"]) -> Float[Array, "*chains"]:
        """Half-Cauchy with its median at the std of the targets: a noise far above it would leave nothing to learn."""
        if not self.num_scales:
            return jnp.zeros(log_scales.shape[1:], log_scales.dtype)
        return log_half_cauchy(log_scales, self.medians)

    def std(self, log_scales: Float[Array, "scales *chains"]) -> Array:
        """Noise that broadcasts against the outputs (and behind them, chains)."""
        if not self.num_scales:
            return self.noise_std
        return jnp.exp(log_scales[0] if self.num_scales == 1 else log_scales)

    def given(self, log_scales: Float[Array, " scales"]) -> "Gaussian":
        """The noise known."""
        return replace(self, noise_std=self.std(log_scales), medians=None) if self.num_scales else self

    def rows(self, index: Array) -> "Gaussian":
        """Some observations, each with its own noise if they differ."""
        return replace(self, noise_std=self.noise_std[index]) if self.is_per_observation else self

    def at_new_inputs(self) -> "Gaussian":
        """A noise that was given for every observation is not known elsewhere: its root mean square is used."""
        if not self.is_per_observation:
            return self
        return replace(self, noise_std=jnp.sqrt(jnp.mean(self.noise_std**2, axis=0)))

    @property
    def is_per_observation(self) -> bool:
        """Whether a noise was given for every observation."""
        return self.noise_std is not None and jnp.ndim(self.noise_std) > 1

    def fit_scales(
        self, targets: Array, outputs: Array, log_scales: Array, *, num_fitted: Array, weights: Array | None = None
    ) -> Array:
        """Residual variance with the fitted degrees of freedom taken off (MacKay 1992), shared by all outputs."""
        if not self.num_scales:
            return log_scales
        squares = jnp.square(targets - outputs) * (1 if weights is None else weights)
        axes = tuple(range(targets.ndim - 1)) if self.num_scales > 1 else None
        total = jnp.asarray(targets.size if weights is None else jnp.sum(weights), log_scales.dtype) / self.num_scales
        free = jnp.maximum(total - num_fitted / self.num_scales, LEAST_SHARE * total)
        found = most_probable_scale(
            jnp.atleast_1d(jnp.sum(squares, axis=axes)), jnp.full(self.num_scales, free), self.medians
        )
        return jnp.log(found).astype(log_scales.dtype)

    def log_prob(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Normal log density."""
        std = self.std(log_scales)
        return -0.5 * ((targets - outputs) / std) ** 2 - jnp.log(std) - 0.5 * LOG_2PI

    def log_likelihood(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Constants are added once, not to every term: in float32 that matters."""
        return log_normal(targets - outputs, std=self.std(log_scales))

    def precision(self, outputs: Array, log_scales: Array) -> Array:
        """One over the noise variance."""
        return jnp.broadcast_to(1 / self.std(log_scales) ** 2, outputs.shape)

    def sample(self, rng_key: Key, outputs: Array, log_scales: Array) -> Array:
        """Add noise."""
        return outputs + self.std(log_scales) * jax.random.normal(rng_key, outputs.shape, outputs.dtype)

    def variance(self, outputs: Array, log_scales: Array) -> Array:
        """The noise variance."""
        return jnp.broadcast_to(self.std(log_scales) ** 2, outputs.shape)

    def cdf(self, values: Array, outputs: Array, log_scales: Array) -> Array:
        """Normal distribution function."""
        return special.ndtr((values - outputs) / self.std(log_scales))

    def perturb(self, rng_key: Key, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """The noise does not depend on the outputs."""
        return targets + self.std(log_scales) * jax.random.normal(rng_key, targets.shape, targets.dtype)


def _check_noise(noise_std: Any, targets: Array) -> Array:
    checked = as_positive("noise_std", noise_std, "the standard deviation of the observation noise", targets.dtype)
    per_output = targets.shape[-1:] if targets.ndim > 1 else ()
    if checked.ndim and checked.shape not in (per_output, targets.shape):
        one = f"one number, one per output, shape {per_output}, or" if per_output else "one number or"
        raise InputError(
            f"`noise_std` must be {one} one per observation, shape {targets.shape}, got shape {checked.shape}."
        )
    return checked
