r"""Stage 1: mean-field Gaussian variational inference on all parameters.

.. math::
    q(\theta) = \prod_i N(\theta_i; \mu_i, \sigma_i^2), \qquad
    \text{elbo} = E_q[\log p(D \mid \theta)] - KL(q \,\|\, \text{prior})

The expectation is a Monte Carlo mean over :math:`\theta = \mu + \sigma \epsilon`, the divergence is exact, and
Adam or Muon minimises the negative elbo in :math:`(\mu, \rho)` with :math:`\sigma = \mathrm{softplus}(\rho)`.

The objective ``"published"`` has :math:`KL(\text{prior} \,\|\, q)` instead, which is what the paper's published
code computes and what its tables were made with (docs/evidence/decisions/kl-direction.md).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array

from vihmc.checkpointing import Checkpoints, run_loop
from vihmc.config.method import VIConfig
from vihmc.errors import InputError
from vihmc.fit.convergence import has_converged
from vihmc.fit.evidence import with_spread_of_scales
from vihmc.fit.map import check_loss, maximum_a_posteriori, start_of
from vihmc.fit.optimizers import for_mean, for_spread
from vihmc.fit.result import FitHistory, FitInfo, FitResult, find_bounds, find_errors, split_keys
from vihmc.posterior.checks import Validation
from vihmc.posterior.density import Posterior
from vihmc.posterior.layout import ParamLayout
from vihmc.posterior.mean_field import MeanField, divergence_to_prior
from vihmc.types import Key, Vector


class VIState(NamedTuple):
    """What the next step needs."""

    mean: Array
    raw_std: Array
    optimizer: tuple[optax.OptState, optax.OptState]
    num_steps: Array


class VICheckpoint(NamedTuple):
    """All that a fit needs to go on from where it was, but its settings and its data."""

    state: VIState
    mode: Array
    """Where the mean started."""
    records: np.ndarray
    """One row per record, columns as in :class:`FitHistory`."""


def _as_mean_field(mean: Array, raw_std: Array) -> MeanField:
    return MeanField(mean, jax.nn.softplus(raw_std))


def init(initial_mean: Vector, initial_std: Array | float, layout: ParamLayout, config: VIConfig) -> VIState:
    """Start at `initial_mean` with the given spread."""
    std = jnp.broadcast_to(jnp.asarray(initial_std, initial_mean.dtype), initial_mean.shape)
    raw_std = std + jnp.log(-jnp.expm1(-std))  # the inverse of softplus, in a form that does not overflow
    moments = (for_mean(config, layout).init(initial_mean), for_spread(config).init(raw_std))
    return VIState(initial_mean, raw_std, moments, jnp.asarray(0))


def step(
    rng_key: Key,
    state: VIState,
    posterior: Posterior,
    config: VIConfig,
    *,
    learning_rate: Array | float,
    std_learning_rate: Array | float,
) -> tuple[VIState, FitInfo]:
    """Take one step along the reparametrised gradient, the mean and the spread each at its own rate."""
    key_noise, key_batch = jax.random.split(rng_key)
    noise = jax.random.normal(key_noise, (config.num_samples, state.mean.shape[0]), state.mean.dtype)
    batch = posterior.minibatch(key_batch, batch_size=config.batch_size, num_locations=config.num_locations)

    def loss_fn(variational: tuple[Array, Array]) -> Array:
        q = _as_mean_field(*variational)

        def loss_of(eps: Array) -> Array:
            theta = q.mean + q.std * eps
            divergence = divergence_to_prior(posterior, q, theta, objective=config.objective)
            return config.kl_weight * divergence - posterior.log_likelihood(theta, batch)

        return jnp.mean(jax.vmap(loss_of)(noise))

    loss, (mean_gradient, std_gradient) = jax.value_and_grad(loss_fn)((state.mean, state.raw_std))
    mean_direction, mean_moments = for_mean(config, posterior.layout).update(mean_gradient, state.optimizer[0])
    std_direction, std_moments = for_spread(config).update(std_gradient, state.optimizer[1])
    dtype = state.mean.dtype
    mean = state.mean - jnp.asarray(learning_rate, dtype) * jnp.asarray(mean_direction)
    raw_std = state.raw_std - jnp.asarray(std_learning_rate, dtype) * jnp.asarray(std_direction)
    return VIState(mean, raw_std, (mean_moments, std_moments), state.num_steps + 1), FitInfo(loss)


def fit(
    posterior: Posterior,
    config: VIConfig,
    rng_key: Key,
    *,
    initial_mean: Vector | None = None,
    validation: Validation | tuple | None = None,
    on_record: Callable[[int, FitInfo], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> FitResult:
    """Fit q to the posterior.

    Args:
        posterior: What to approximate.
        config: Settings of the fit.
        rng_key: Random key; the same key gives the same fit.
        initial_mean: Where the mean starts; small random numbers if not given.
        validation: Inputs, targets and, if they differ, weights, whose error is recorded beside the training error.
        on_record: Called with the number of steps done, those of the search for a mode included, and the mean loss
            since the last call.
        checkpoints: Where to go on from, if the same fit was begun before; the result is that of one never interrupted.
    """
    _check_sizes(posterior, config)
    if config.objective == "published" and posterior.num_scales:
        raise InputError("`vi.objective` must be 'elbo' where scales are learnt, got 'published'.")
    checkpoints = checkpoints or Checkpoints()
    key_start, key_steps, key_bound = split_keys(rng_key)
    checked = None if validation is None else posterior.check_validation(validation)
    nowhere = jnp.zeros(posterior.dim, posterior.targets.dtype)
    no_records = np.zeros((0, len(FitHistory._fields)))
    start = VICheckpoint(init(nowhere, 1.0, posterior.layout, config), nowhere, no_records)
    if checkpoints.recall("vi", start) is None:
        mean = start_of(posterior, config, key_start, initial_mean)
        if config.map_steps:
            on_loss = None if on_record is None else lambda done, loss: on_record(done, FitInfo(loss))
            key_mode = jax.random.fold_in(key_start, 1)
            mode = maximum_a_posteriori(posterior, mean, config, key_mode, on_record=on_loss, checkpoints=checkpoints)
            mean = mode.theta
        std = config.initial_std
        if std == "curvature":
            std = with_spread_of_scales(posterior, mean, kl_weight=config.kl_weight)
        start = VICheckpoint(init(mean, std, posterior.layout, config), mean, no_records)

    def advance(now: VICheckpoint) -> VICheckpoint:
        count = min(config.record_every, config.num_steps - int(now.state.num_steps))
        state, loss = _run_chunk(config, now.state, posterior, key_steps, count)
        num_steps = int(state.num_steps)
        check_loss(loss, num_steps, config)
        errors = find_errors(posterior, state.mean, checked)
        rate = config.learning_rate * float(_decay(config, state.num_steps))
        record = np.array([[num_steps, float(loss), rate, *map(float, errors)]])
        if on_record is not None:
            on_record(config.map_steps + num_steps, FitInfo(loss))
        return now._replace(state=state, records=np.concatenate([now.records, record]))

    end = run_loop(
        checkpoints, "vi", start, is_done=lambda now: int(now.state.num_steps) >= config.num_steps, advance=advance
    )
    q = _as_mean_field(end.state.mean, end.state.raw_std)
    history = FitHistory(*end.records.T)
    elbo, elbo_of_prior = find_bounds(posterior, q, config, key_bound)
    return FitResult(
        q=q,
        mode=end.mode,
        history=history._replace(step=history.step.astype(int)),
        elbo=elbo,
        elbo_of_prior=elbo_of_prior,
        converged=has_converged(
            history.loss, history.step, num_steps=config.num_steps, record_every=config.record_every
        ),
        kl_weight=config.kl_weight,
    )


def _check_sizes(posterior: Posterior, config: VIConfig) -> None:
    names = (("batch_size", "observations"), ("num_locations", "locations"))
    for axis, (name, what) in enumerate(names):
        size = getattr(config, name)
        if size is not None and axis < posterior.targets.ndim and size > posterior.targets.shape[axis]:
            raise InputError(
                f"`vi.{name}` must be at most the number of {what}, {posterior.targets.shape[axis]}, got {size}."
            )


@partial(jax.jit, static_argnums=0)
def _run_chunk(
    config: VIConfig, state: VIState, posterior: Posterior, rng_key: Key, count: ArrayLike
) -> tuple[VIState, Array]:
    """Take `count` steps; each has a key of its own, so the length of a chunk never changes the fit."""

    def body(_: Array, carry: tuple[VIState, Array]) -> tuple[VIState, Array]:
        state, total = carry
        key = jax.random.fold_in(rng_key, state.num_steps)
        share = _decay(config, state.num_steps)
        state, info = step(
            key,
            state,
            posterior,
            config,
            learning_rate=config.learning_rate * share,
            std_learning_rate=(config.std_learning_rate or config.learning_rate) * share,
        )
        return state, total + info.loss

    state, total = jax.lax.fori_loop(0, count, body, (state, jnp.zeros((), jnp.result_type(float))))
    return state, total / count


def _decay(config: VIConfig, num_steps: Array) -> Array:
    """The cosine schedule of the learning rate."""
    return 0.5 * (1 + jnp.cos(jnp.pi * num_steps / config.num_steps))
