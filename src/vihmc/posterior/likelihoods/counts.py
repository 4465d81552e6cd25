"""Counts."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array

from vihmc.errors import InputError
from vihmc.posterior.likelihoods.base import Likelihood, check_shapes
from vihmc.types import Key


@dataclass(frozen=True, eq=False)
class Poisson(Likelihood):
    """Counts; the model's output is the logarithm of the rate."""

    is_discrete: ClassVar[bool] = True

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "Poisson":
        """Check the counts."""
        check_shapes(targets, outputs)
        counts = np.asarray(targets)
        bad = np.argwhere((counts < 0) | (counts != np.round(counts)))
        if len(bad):
            where = tuple(bad[0].tolist())
            raise InputError(f"`targets` must be counts, 0, 1, 2, …, got {counts[where]:g} at index {where}.")
        return self

    def log_prob(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Log probability of the count."""
        return targets * outputs - jnp.exp(outputs) - gammaln(targets + 1)

    def precision(self, outputs: Array, log_scales: Array) -> Array:
        """The rate."""
        return jnp.exp(outputs)

    def mean(self, outputs: Array, log_scales: Array) -> Array:
        """The rate."""
        return jnp.exp(outputs)

    def variance(self, outputs: Array, log_scales: Array) -> Array:
        """The rate."""
        return jnp.exp(outputs)

    def sample(self, rng_key: Key, outputs: Array, log_scales: Array) -> Array:
        """Draw counts."""
        return jax.random.poisson(rng_key, jnp.exp(outputs)).astype(outputs.dtype)
