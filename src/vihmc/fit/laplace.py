r"""Stage 1 without a fit of the spread: a mode of the posterior, and the curvature of the data there.

.. math::
    \mu = \arg\max_\theta\ \log p(D \mid \theta) + \log p(\theta), \qquad
    \sigma_i^{-2} = \text{prior\_std}_i^{-2} + \sum_j w_j J_{ji}^2 / \text{noise\_std}_j^2

The diagonal of the Gauss-Newton matrix is the sum of squares that the sensitivities are made of. Nothing is drawn at
random but the start of the climb and its batches, and there is nothing that could collapse: the spread of a parameter
that the data say nothing about is that of the prior, and its mean stays where the others leave it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from vihmc.checkpointing import Checkpoints
from vihmc.config.method import VIConfig
from vihmc.errors import InputError
from vihmc.fit.convergence import Plateau
from vihmc.fit.map import maximum_a_posteriori, start_of
from vihmc.fit.result import VIHistory, VIInfo, VIResult, find_bounds, find_errors, split_keys
from vihmc.posterior.density import Posterior, Validation, check_validation
from vihmc.posterior.mean_field import MeanField
from vihmc.selection.sensitivity import exact_sum_of_squares
from vihmc.types import Key, Vector


def fit(
    posterior: Posterior,
    config: VIConfig,
    rng_key: Key,
    *,
    initial_mean: Vector | None = None,
    validation: Validation | tuple | None = None,
    on_record: Callable[[int, VIInfo], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> VIResult:
    """Climb to a mode in `map_steps` steps, take the curvature there. Arguments are those of :func:`vihmc.fit.vi.fit`."""
    if config.map_steps == 0:
        raise InputError("`vi.map_steps` must be positive for the first stage 'laplace', got 0: it is the whole fit.")
    key_start, _, key_bound = split_keys(rng_key)
    checked = None if validation is None else check_validation(posterior, validation)
    climbed = maximum_a_posteriori(
        posterior,
        start_of(posterior, config, key_start, initial_mean),
        config,
        jax.random.fold_in(key_start, 1),
        errors=lambda theta: find_errors(posterior, theta, checked),
        on_record=None if on_record is None else lambda done, loss: on_record(done, VIInfo(loss)),
        checkpoints=checkpoints,
    )
    q = MeanField(climbed.theta, curvature_std(posterior, climbed.theta, kl_weight=config.kl_weight))
    elbo, elbo_of_prior = find_bounds(posterior, q, config, key_bound)
    plateau = Plateau(config.model_copy(update={"num_steps": config.map_steps, "schedule": "cosine"}))
    history = VIHistory(*climbed.records.T)
    for step, loss in zip(history.step.tolist(), history.loss.tolist(), strict=True):
        plateau.update(loss, int(step))
    return VIResult(
        q=q,
        history=history._replace(step=history.step.astype(int)),
        elbo=elbo,
        elbo_of_prior=elbo_of_prior,
        converged=plateau.is_flat,
        kl_weight=config.kl_weight,
        is_laplace=True,
    )


def curvature_std(posterior: Posterior, theta: Vector, *, kl_weight: float = 1.0, memory_mb: float = 256.0) -> Vector:
    r"""Spread of a Gaussian whose precision is the Gauss-Newton diagonal; the data count 1/`kl_weight` times.

    It is where the std of q would be if the model were linear, so a fit of it that starts there has little to find.
    """
    precision = 1 / posterior.prior_std**2 + _known_by_data(posterior, theta, memory_mb=memory_mb) / kl_weight
    return (precision**-0.5).astype(theta.dtype)


def _known_by_data(posterior: Posterior, theta: Vector, *, memory_mb: float) -> Array:
    """Squared derivatives of the training predictions in units of the noise of each, summed."""
    weights, noise = posterior.weights, posterior.noise_std
    if noise.ndim:
        precision = jnp.broadcast_to(1 / noise**2, posterior.targets.shape)
        weights, noise = precision if weights is None else weights * precision, jnp.ones((), noise.dtype)
    squares = exact_sum_of_squares(posterior, theta, posterior.inputs, memory_mb=memory_mb, weights=weights)
    return squares / noise**2
