"""Gaussian noise that the model itself predicts."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.scipy import special
from jaxtyping import Array

from vihmc.errors import InputError
from vihmc.posterior.likelihoods.base import Likelihood
from vihmc.posterior.normal import LOG_2PI
from vihmc.types import Key


@dataclass(frozen=True, eq=False)
class GaussianWithScale(Likelihood):
    r""":math:`y \sim N(f_1, e^{2 f_2})`: the second half of the model's outputs are logarithms of the noise std."""

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "GaussianWithScale":
        """Check that there are two outputs for every target."""
        expected = (*targets.shape[:-1], 2 * targets.shape[-1])
        if targets.ndim < 2 or outputs.shape != expected:
            raise InputError(
                "`apply(params, inputs)` must return a mean and a log std for every target, shape "
                f"{expected}, got {outputs.shape}."
            )
        return self

    def log_prob(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Normal log density."""
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return -0.5 * jnp.square((targets - mean) * jnp.exp(-log_std)) - log_std - 0.5 * LOG_2PI

    def precision(self, outputs: Array, log_scales: Array) -> Array:
        """One over the variance for the mean, two for the log std."""
        _, log_std = jnp.split(outputs, 2, axis=-1)
        return jnp.concatenate([jnp.exp(-2 * log_std), jnp.full_like(log_std, 2.0)], axis=-1)

    def sample(self, rng_key: Key, outputs: Array, log_scales: Array) -> Array:
        """Add noise."""
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return mean + jnp.exp(log_std) * jax.random.normal(rng_key, mean.shape, mean.dtype)

    def mean(self, outputs: Array, log_scales: Array) -> Array:
        """The first half of the outputs."""
        return jnp.split(outputs, 2, axis=-1)[0]

    def variance(self, outputs: Array, log_scales: Array) -> Array:
        """From the second half."""
        return jnp.exp(2 * jnp.split(outputs, 2, axis=-1)[1])

    def cdf(self, values: Array, outputs: Array, log_scales: Array) -> Array:
        """Normal distribution function."""
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return special.ndtr((values - mean) * jnp.exp(-log_std))
