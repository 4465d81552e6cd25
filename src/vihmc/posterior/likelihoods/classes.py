"""Labels: two classes, or several."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from vihmc.errors import InputError
from vihmc.posterior.likelihoods.base import Likelihood, check_shapes
from vihmc.types import Key


@dataclass(frozen=True, eq=False)
class Bernoulli(Likelihood):
    """Two classes, 0 and 1; the model's output is the logarithm of the odds of a 1."""

    is_discrete: ClassVar[bool] = True

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "Bernoulli":
        """Check the labels."""
        check_shapes(targets, outputs)
        _check_labels(targets, 2)
        return self

    def log_prob(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Log probability of the label."""
        return targets * outputs - jax.nn.softplus(outputs)

    def precision(self, outputs: Array, log_scales: Array) -> Array:
        """Variance of the label."""
        return jax.nn.sigmoid(outputs) * jax.nn.sigmoid(-outputs)

    def mean(self, outputs: Array, log_scales: Array) -> Array:
        """Probability of a 1."""
        return jax.nn.sigmoid(outputs)

    def variance(self, outputs: Array, log_scales: Array) -> Array:
        """Variance of the label."""
        return self.precision(outputs, log_scales)

    def sample(self, rng_key: Key, outputs: Array, log_scales: Array) -> Array:
        """Draw labels."""
        return jax.random.bernoulli(rng_key, jax.nn.sigmoid(outputs)).astype(outputs.dtype)


@dataclass(frozen=True, eq=False)
class Categorical(Likelihood):
    """Classes 0, 1, …; the model returns one unnormalised log probability for each, targets are class numbers."""

    is_discrete: ClassVar[bool] = True

    def bind(self, targets: Array, outputs: jax.ShapeDtypeStruct) -> "Categorical":
        """Check the labels."""
        if outputs.shape[:-1] != targets.shape or outputs.shape[-1] < 2:
            raise InputError(
                "`targets` must be one class number for each row of outputs, shape "
                f"{outputs.shape[:-1]} with at least two classes, got {targets.shape} and outputs {outputs.shape}."
            )
        _check_labels(targets, outputs.shape[-1])
        return self

    def log_prob(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Log probability of the label."""
        log_probabilities = jax.nn.log_softmax(outputs, axis=-1)
        return jnp.take_along_axis(log_probabilities, targets[..., None].astype(int), axis=-1)[..., 0]

    def precision(self, outputs: Array, log_scales: Array) -> Array:
        """Diagonal of the Fisher information."""
        probabilities = jax.nn.softmax(outputs, axis=-1)
        return probabilities * (1 - probabilities)

    def precision_product(self, outputs: Array, log_scales: Array, tangent: Array) -> Array:
        """The Fisher information is diag(p) - p pᵀ."""
        probabilities = jax.nn.softmax(outputs, axis=-1)
        weighted = probabilities * tangent
        return weighted - probabilities * jnp.sum(weighted, axis=-1, keepdims=True)

    def mean(self, outputs: Array, log_scales: Array) -> Array:
        """Probability of every class."""
        return jax.nn.softmax(outputs, axis=-1)

    def residual(self, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Difference of the indicator of every class from its probability."""
        return jax.nn.one_hot(targets.astype(int), outputs.shape[-1], dtype=outputs.dtype) - self.mean(
            outputs, log_scales
        )

    def variance(self, outputs: Array, log_scales: Array) -> Array:
        """Variance of the indicator of every class."""
        return self.precision(outputs, log_scales)

    def sample(self, rng_key: Key, outputs: Array, log_scales: Array) -> Array:
        """Draw class numbers."""
        return jax.random.categorical(rng_key, outputs, axis=-1).astype(outputs.dtype)

    def perturb(self, rng_key: Key, targets: Array, outputs: Array, log_scales: Array) -> Array:
        """Refuse: class numbers cannot be moved."""
        raise InputError("`hmc.frozen` must be 'mean' for classes, got 'perturbed_map'.")


def _check_labels(targets: Array, num_classes: int) -> None:
    labels = np.asarray(targets)
    bad = np.argwhere((labels < 0) | (labels >= num_classes) | (labels != np.round(labels)))
    if len(bad):
        where = tuple(bad[0].tolist())
        raise InputError(
            f"`targets` must be class numbers from 0 to {num_classes - 1}, got {labels[where]:g} at index {where}."
        )
