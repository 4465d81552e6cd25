r"""A mode of the posterior, where a fit can start.

.. math:: \max_\theta\ \log p(D \mid \theta) + \text{kl\_weight} \cdot \log p(\theta)
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array

from vihmc.checkpointing import Checkpoints
from vihmc.config.method import VIConfig
from vihmc.errors import InputError
from vihmc.fit.optimizers import for_mean
from vihmc.posterior.density import Posterior
from vihmc.types import Key, Vector


class ModeState(NamedTuple):
    """Where a climb is."""

    theta: Array
    optimizer: optax.OptState
    num_steps: int
    records: np.ndarray
    """One row per record: steps, loss, learning rate, and errors on training and validation data."""


def maximum_a_posteriori(
    posterior: Posterior,
    theta: Vector,
    config: VIConfig,
    rng_key: Key,
    *,
    errors: Callable[[Vector], tuple[Array, Array]] | None = None,
    on_record: Callable[[int, Array], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> ModeState:
    """Climb to a mode with `map_steps` steps of the configured optimiser and a cosine learning rate.

    Args:
        posterior: What to climb.
        theta: Where to start.
        config: Steps, rate, optimiser and batches.
        rng_key: Draws the batches.
        errors: Finds what is recorded beside the loss.
        on_record: Called with the number of steps done and the mean loss since the last call.
        checkpoints: Where to go on from.
    """
    checkpoints = checkpoints or Checkpoints()
    state = ModeState(theta, for_mean(config, posterior.layout).init(theta), 0, np.zeros((0, 5)))
    state = checkpoints.recall("mode", state) or state
    while state.num_steps < config.map_steps:
        count = min(config.record_every, config.map_steps - state.num_steps)
        carry = (state.theta, state.optimizer)
        (theta, optimizer), loss = climb(config, carry, posterior, rng_key, state.num_steps, count)
        check_loss(loss, state.num_steps + count, config)
        num_steps, found = state.num_steps + count, (math.nan, math.nan) if errors is None else errors(theta)
        rate = config.learning_rate * float(jnp.asarray(_decay(config)(num_steps)))
        record = np.array([[num_steps, float(loss), rate, *map(float, found)]])
        state = ModeState(theta, optimizer, num_steps, np.concatenate([state.records, record]))
        if on_record is not None:
            on_record(state.num_steps, loss)
        if checkpoints.is_due():
            checkpoints.keep("mode", state)
    return state


def start_of(posterior: Posterior, config: VIConfig, rng_key: Key, initial_mean: Vector | None) -> Vector:
    """Where a fit starts: at `initial_mean`, or at small random numbers."""
    if initial_mean is None:
        noise = jax.random.normal(rng_key, (posterior.num_params,), posterior.targets.dtype)
        initial_mean = config.initial_mean_std * noise
    return initial_mean.astype(posterior.targets.dtype)


def _decay(config: VIConfig) -> optax.Schedule:
    return optax.cosine_decay_schedule(1.0, max(1, config.map_steps))


@partial(jax.jit, static_argnums=0)
def climb(
    config: VIConfig,
    carry: tuple[Array, optax.OptState],
    posterior: Posterior,
    rng_key: Key,
    start: ArrayLike,
    count: ArrayLike,
    *,
    prior_mean: Vector | None = None,
) -> tuple[tuple[Array, optax.OptState], Array]:
    """Go on with a climb for `count` steps, `start` of them done; return where it is and the mean loss on the way.

    With a `prior_mean` the prior is around that instead of zero.
    """
    optimizer = for_mean(config, posterior.layout)
    decay = _decay(config)

    def negative_log_density(theta: Array, batch: Any) -> Array:
        from_prior = theta if prior_mean is None else theta - prior_mean
        return -config.kl_weight * posterior.log_prior(from_prior) - posterior.log_likelihood(theta, batch)

    def body(offset: Array, loop: tuple[Array, optax.OptState, Array]) -> tuple[Array, optax.OptState, Array]:
        theta, moments, total = loop
        key = jax.random.fold_in(rng_key, start + offset)
        batch = posterior.minibatch(key, batch_size=config.batch_size, num_locations=config.num_locations)
        loss, gradient = jax.value_and_grad(negative_log_density)(theta, batch)
        direction, moments = optimizer.update(gradient, moments)
        rate = jnp.asarray(config.learning_rate * decay(start + offset), theta.dtype)
        return theta - rate * jnp.asarray(direction), moments, total + loss

    theta, moments, total = jax.lax.fori_loop(0, count, body, (*carry, jnp.zeros((), jnp.result_type(float))))
    return (theta, moments), total / count


def check_loss(loss: Array, num_steps: int, config: VIConfig) -> None:
    """Refuse to go on from a loss that is not a number."""
    if not np.isfinite(loss):
        raise InputError(
            f"`vi.learning_rate` must keep the loss finite, got {config.learning_rate}: the loss is {loss} "
            f"after {num_steps} steps."
        )
