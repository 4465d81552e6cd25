r"""Gaussian noise, known or learnt: one std for all outputs, one per output, or one per group of outputs.

.. math:: y_{jo} \sim N(f_{jo},\ \text{noise\_std}_{g(o)}^2)

Outputs of an operator are its locations. A group without noise of its own would lend its error to the others: where a
field is harder to predict in one region, one noise for all is too small there and too large everywhere else.
"""

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
        per_output: Whether every entry of the last axis has a learnt noise of its own; if not given, in a table but
            not in fields, whose targets have more than two axes.
        noise_groups: Number of the group of each output, 0, 1, …: outputs of one group share a learnt noise. Instead of
            `per_output`.
        medians: Of the hyperprior of each learnt noise; the std of the targets of its outputs if not given.
    """

    noise_std: Any = None
    per_output: bool | None = None
    noise_groups: Any = None
    medians: Any = None

    arrays: ClassVar[tuple[str, ...]] = ("noise_std", "noise_groups", "medians")

    @property
    def scale_names(self) -> tuple[str, ...]:
        """One noise, or one per group of outputs."""
        if self.noise_std is not None:
            return ()
        count = 1 if self.medians is None else len(self.medians)
        return ("noise_std",) if count == 1 else tuple(f"noise_std[{group}]" for group in range(count))

    @property
    def has_one_precision(self) -> bool:
        """Whether one noise is that of all outputs."""
        return self.num_scales == 1 if self.noise_std is None else jnp.ndim(self.noise_std) == 0

    @property
    def noise_median(self) -> Array | None:
        """Median of the hyperprior, where one noise is that of all outputs."""
        return self.medians[0] if self.num_scales == 1 else None

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "Gaussian":
        """Check the noise, or take the median of its hyperprior from the targets."""
        check_shapes(targets, outputs)
        if self.noise_std is not None:
            if self.noise_groups is not None:
                raise InputError(
                    "`noise_groups` must be left out where `noise_std` is given: they say which noises are learnt."
                )
            return replace(self, noise_std=_check_noise(self.noise_std, targets))
        groups = _check_groups(self.noise_groups, targets)
        is_asked = targets.ndim == 2 if self.per_output is None else self.per_output
        if groups is None and is_asked and targets.ndim > 1 and targets.shape[-1] > 1:
            groups = np.arange(targets.shape[-1])
        medians = spread_of(targets, groups) if self.medians is None else np.atleast_1d(self.medians)
        indices = None if groups is None or len(medians) == 1 else jnp.asarray(groups)
        return replace(self, noise_groups=indices, medians=jnp.asarray(medians, targets.dtype))

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
        return jnp.exp(log_scales[0] if self.noise_groups is None else log_scales[self.noise_groups])

    def given(self, log_scales: Float[Array, " scales"]) -> "Gaussian":
        """The noise known."""
        if not self.num_scales:
            return self
        return replace(self, noise_std=self.std(log_scales), noise_groups=None, medians=None)

    def rows(self, index: Array) -> "Gaussian":
        """Some observations, each with its own noise if they differ."""
        if not self.is_per_observation:
            return self
        if self.noise_std is None:
            return replace(self, noise_groups=self.noise_groups[index])
        return replace(self, noise_std=self.noise_std[index])

    def transposed(self) -> "Gaussian":
        """What differs from output to output differs from row to row."""
        column = {
            name: value[:, None]
            for name, value in (("noise_std", self.noise_std), ("noise_groups", self.noise_groups))
            if np.ndim(value) == 1
        }
        return replace(self, **column)

    def at_new_inputs(self) -> "Gaussian":
        """A noise that was given for every observation is not known elsewhere: its root mean square is used."""
        if not self.is_per_observation:
            return self
        return replace(self, noise_std=jnp.sqrt(jnp.mean(self.noise_std**2, axis=0)))

    @property
    def is_per_observation(self) -> bool:
        """Whether every observation has a noise of its own."""
        return np.ndim(self.noise_std if self.noise_groups is None else self.noise_groups) > 1

    def fit_scales(
        self, targets: Array, outputs: Array, log_scales: Array, *, num_fitted: Array, weights: Array | None = None
    ) -> Array:
        """Residual variance with the fitted degrees of freedom taken off (MacKay 1992)."""
        if not self.num_scales:
            return log_scales
        squares = jnp.square(targets - outputs) * (1 if weights is None else weights)
        total = self.scale_counts(targets, weights).astype(log_scales.dtype)
        # One number is shared by all observations alike.
        fitted = self._sums(num_fitted) if jnp.ndim(num_fitted) else num_fitted * total / jnp.sum(total)
        free = jnp.maximum(total - fitted, LEAST_SHARE * total)
        return jnp.log(most_probable_scale(self._sums(squares), free, self.medians)).astype(log_scales.dtype)

    def scale_counts(self, targets: Array, weights: Array | None = None) -> Float[Array, " scales"]:
        """Observations of each group of outputs."""
        return self._sums(jnp.ones_like(targets) if weights is None else weights) if self.num_scales else jnp.zeros(0)

    def _sums(self, values: Array) -> Float[Array, " scales"]:
        """Sums over the observations of each learnt noise."""
        if self.noise_groups is None:
            return jnp.sum(values)[None]
        of_outputs = jnp.sum(values, axis=tuple(range(values.ndim - 1)))
        return jax.ops.segment_sum(of_outputs, self.noise_groups, num_segments=self.num_scales)

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


def _check_groups(noise_groups: Any, targets: Array) -> np.ndarray | None:
    if noise_groups is None:
        return None
    groups, expected = np.asarray(noise_groups), targets.shape[-1:] if targets.ndim > 1 else ()
    if groups.shape != expected or groups.dtype.kind not in "iu":
        raise InputError(
            f"`noise_groups` must be a whole number for each output, shape {expected}, got {groups.dtype} of shape "
            f"{groups.shape}."
        )
    if not np.array_equal(np.unique(groups), np.arange(np.max(groups) + 1)):
        missing = np.setdiff1d(np.arange(np.max(groups) + 1), groups)
        got = f"none for group {missing[0]}" if len(missing) else f"{np.min(groups)}"
        raise InputError(f"`noise_groups` must be numbered 0, 1, 2, … without gaps, got {got}.")
    return groups
