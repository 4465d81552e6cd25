"""The result of a first stage, VI or Laplace: Gaussians for all parameters, and how the fit went."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from vihmc.config.method import VIConfig
from vihmc.posterior.checks import Validation
from vihmc.posterior.density import Posterior
from vihmc.posterior.mean_field import Bound, MeanField, estimate_elbo, prior_of
from vihmc.posterior.row_blocks import MANY_ROWS
from vihmc.types import Key, Vector, readable

_BOUND_OPERATIONS = 1.3e11
"""Rows times parameters times samples of a bound: some seconds."""
_LEAST_BOUND_SAMPLES = 16


class FitInfo(NamedTuple):
    """What a person looks at."""

    loss: Array
    """Negative objective: lower is better."""


@readable
class FitHistory(NamedTuple):
    """One record per `record_every` steps."""

    step: np.ndarray
    loss: np.ndarray
    learning_rate: np.ndarray
    training_mse: np.ndarray
    validation_mse: np.ndarray


@dataclass(frozen=True, eq=False)
class FitResult:
    """A fit and how it went.

    Attributes:
        q: The fitted Gaussians.
        mode: The MAP estimate, where the mean of q started; with Laplace, that mean.
        history: Loss and errors along the way.
        elbo: The bound at the end, whatever the objective was.
        elbo_of_prior: The same bound for q = prior; a fit below it has learnt nothing.
        converged: Whether the loss had stopped falling; None if the fit was too short to tell.
        kl_weight: Weight of the KL term; below one, q approximates a tempered posterior.
        is_laplace: Whether q is a mode and the curvature there, and no fit of the bound.
    """

    q: MeanField
    mode: Vector
    history: FitHistory
    elbo: Bound
    elbo_of_prior: Bound
    converged: bool | None
    kl_weight: float = 1.0
    is_laplace: bool = False

    def __repr__(self) -> str:
        """The outcome in words."""
        return (
            f"FitResult of {self.q.mean.size:,} parameters ({'Laplace' if self.is_laplace else 'VI'})\n  {self.message}"
        )

    @property
    def collapsed(self) -> bool:
        """Whether the bound, if it was what was maximised, is below the prior's by more than the noise of both."""
        return self.kl_weight == 1 and not self.is_laplace and self._is_below_prior

    @property
    def _is_below_prior(self) -> bool:
        noise = math.hypot(self.elbo.standard_error, self.elbo_of_prior.standard_error)
        return self.elbo.value < self.elbo_of_prior.value - 2 * noise

    @property
    def message(self) -> str:
        """The outcome in words, and what to change if it is not good."""
        steps, steps_name = int(self.history.step[-1]), "map_steps" if self.is_laplace else "num_steps"
        bound = f"ELBO {self.elbo.value:.2f} ± {self.elbo.standard_error:.2f} nats"
        message = f"{'Mode found' if self.is_laplace else bound} after {steps} steps"
        if self.converged is None:
            message += ", too few to judge convergence."
        else:
            message += ", converged." if self.converged else f", not converged: increase vi.{steps_name}."
        if self.is_laplace:
            message += f" The Gaussian approximation around it has an {bound}; it was not optimised for that."
        if self.kl_weight < 1:
            message += f" KL weight {self.kl_weight:g}: q approximates a tempered posterior"
            if self._is_below_prior:
                message += f", and its ELBO is below that of q = prior, {self.elbo_of_prior.value:.2f} nats"
            message += "."
        if self.collapsed:
            message += (
                f" This is worse than q = prior ({self.elbo_of_prior.value:.2f} nats): the fit has collapsed. Start"
                " from a MAP (vi.map_steps), or reconsider the prior and the noise."
            )
        return message


def reassess(fitted: FitResult, posterior: Posterior, config: VIConfig, rng_key: Key) -> FitResult:
    """Re-evaluate the bounds of an earlier fit, for a posterior that may have another prior or noise."""
    *_, key_bound = split_keys(rng_key)
    elbo, elbo_of_prior = find_bounds(posterior, fitted.q, config, key_bound)
    return replace(fitted, elbo=elbo, elbo_of_prior=elbo_of_prior, kl_weight=config.kl_weight)


def split_keys(rng_key: Key) -> tuple[Key, Key, Key]:
    """Keys of the start, of the steps and of the bounds."""
    key_start, key_steps, key_bound = jax.random.split(rng_key, 3)
    return key_start, key_steps, key_bound


def find_bounds(posterior: Posterior, q: MeanField, config: VIConfig, rng_key: Key) -> tuple[Bound, Bound]:
    """Bounds of q and of the prior; from fewer samples where one of them takes long."""
    key_q, key_prior = jax.random.split(rng_key)
    affordable = int(_BOUND_OPERATIONS / (posterior.num_network_rows * posterior.num_params))
    num_samples = min(config.num_bound_samples, max(_LEAST_BOUND_SAMPLES, affordable))
    return (
        estimate_elbo(posterior, q, key_q, num_samples),
        estimate_elbo(posterior, prior_of(posterior, like=q), key_prior, num_samples),
    )


@jax.jit
def find_errors(posterior: Posterior, mean: Array, validation: Validation | None) -> tuple[Array, Array]:
    """Mean square error of the prediction at the mean of q, on training and on validation data.

    Of very many rows some are looked at, evenly spread: the error is found every few steps.
    """

    def error(data: Validation) -> Array:
        every = -(-len(jnp.asarray(data.targets)) // MANY_ROWS)
        data = jax.tree.map(lambda leaf: leaf[::every], data) if every > 1 else data
        outputs, log_scales = posterior.predict(mean, data.inputs), posterior.scales(mean).likelihood
        return jnp.average(
            posterior.likelihood.residual(jnp.asarray(data.targets), outputs, log_scales) ** 2, weights=data.weights
        )

    training = error(Validation(posterior.inputs, posterior.targets, posterior.weights))
    return training, jnp.full_like(training, jnp.nan) if validation is None else error(validation)
