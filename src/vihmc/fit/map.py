r"""The MAP estimate: a mode of the posterior, where a fit can start.

.. math:: \max_\theta\ \log p(D \mid \theta) + \text{kl\_weight} \cdot \log p(\theta)

Of a large network the prior is not all that holds it back: weights also decay (Loshchilov & Hutter 2019). How much they
should depends on the data, so several rates can be tried; the one whose mode makes observations most probable that the
fit leaves out is kept.
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
from jaxtyping import Array, Float

from vihmc.checkpointing import Checkpoints, run_loop
from vihmc.config.method import VIConfig
from vihmc.errors import InputError
from vihmc.fit.evidence import hold_out, update_scales
from vihmc.fit.optimizers import for_mean
from vihmc.posterior.density import Posterior
from vihmc.types import Key, Vector

_NUM_UPDATES = 20
"""Updates of the learnt scales on the way to a mode."""
_FIRST_UPDATE = 0.2
"""Share of the steps before the first update: of weights that have not yet been fitted, the scales say nothing."""


class MapState(NamedTuple):
    """Where the optimisation is."""

    theta: Array
    optimizer: optax.OptState
    num_steps: int
    """Of all trials together."""
    records: np.ndarray
    """One row per record: steps, loss, learning rate, and errors on training and validation data."""
    best: Array
    """Where the best trial ended that has ended."""
    best_records: np.ndarray
    best_score: float


_NO_RECORDS = np.zeros((0, 5))


class Mode(NamedTuple):
    """What the optimisation found, and what was recorded on the way."""

    theta: Array
    records: np.ndarray


def maximum_a_posteriori(
    posterior: Posterior,
    theta: Vector,
    config: VIConfig,
    rng_key: Key,
    *,
    errors: Callable[[Vector], tuple[Array, Array]] | None = None,
    on_record: Callable[[int, Array], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> Mode:
    """Optimise for `map_steps` steps of the configured optimiser with a cosine learning rate.

    Learnt scales are held while the weights move, and updated by the evidence every now and then.

    Args:
        posterior: What to maximise.
        theta: Where to start.
        config: Steps, rate, optimiser and batches.
        rng_key: Draws the batches.
        errors: Finds what is recorded beside the loss.
        on_record: Called with the number of steps done and the mean loss since the last call.
        checkpoints: Where to go on from.
    """
    rates = config.weight_decays
    division = hold_out(posterior, has_choice=len(rates) > 1)
    # With nothing left out there is nothing to choose by.
    num_trials = 1 if division.held_out is None else len(rates)
    # At the end of a chunk, whose ends are the same for every run.
    update_every = config.record_every * max(1, config.map_steps // (config.record_every * _NUM_UPDATES))
    begin = (theta, for_mean(config, posterior.layout).init(theta))

    def advance(state: MapState) -> MapState:
        trial, done = divmod(state.num_steps, config.map_steps)
        count = min(config.record_every, config.map_steps - done)
        carry, records = ((state.theta, state.optimizer), state.records) if done else (begin, _NO_RECORDS)
        (theta, optimizer), loss = optimise(
            config, carry, division.fitted, rng_key, done, count, weight_decay=jnp.asarray(rates[trial], theta_dtype)
        )
        done += count
        check_loss(loss, done, config)
        if done % update_every == 0 and done >= _FIRST_UPDATE * config.map_steps:
            theta = update_scales(division, theta, jax.random.fold_in(rng_key, done))
        found = (math.nan, math.nan) if errors is None else errors(theta)
        rate = config.learning_rate * float(jnp.asarray(_decay(config)(done)))
        records = np.concatenate([records, np.array([[done, float(loss), rate, *map(float, found)]])])
        num_steps = state.num_steps + count
        if on_record is not None:
            on_record(num_steps, loss)
        best = (state.best, state.best_records, state.best_score)
        if done == config.map_steps:
            score = 0.0 if num_trials == 1 else float(_log_likelihood(division.held_out, theta))
            best = (theta, records, score) if score > state.best_score or not trial else best
        return MapState(theta, optimizer, num_steps, records, *best)

    theta_dtype, num_steps = theta.dtype, num_trials * config.map_steps
    start = MapState(*begin, 0, _NO_RECORDS, theta, _NO_RECORDS, -math.inf)
    end = run_loop(checkpoints, "mode", start, is_done=lambda state: state.num_steps >= num_steps, advance=advance)
    return Mode(end.best, end.best_records)


def start_of(posterior: Posterior, config: VIConfig, rng_key: Key, initial_mean: Vector | None) -> Float[Array, " dim"]:
    """Where a fit starts: at `initial_mean`, or at small random numbers.

    Raises:
        InputError: If the model's predictions are not finite there.
    """
    if initial_mean is None:
        noise = jax.random.normal(rng_key, (posterior.num_params,), posterior.targets.dtype)
        initial_mean = config.initial_mean_std * noise
    theta = posterior.with_initial_scales(initial_mean.astype(posterior.targets.dtype))
    _check_finite(posterior, theta)
    return theta


def _check_finite(posterior: Posterior, theta: Vector) -> None:
    if np.isfinite(_log_likelihood(posterior, theta)):
        return
    outputs = np.asarray(posterior.predict(theta, posterior.inputs))
    bad = np.argwhere(~np.isfinite(outputs))
    if len(bad):
        where = tuple(bad[0].tolist())
        raise InputError(
            f"`apply` must return finite outputs at the initial parameters, got {outputs[where]} at index {where} "
            f"({len(bad)} of {outputs.size} outputs)."
        )


@jax.jit
def _log_likelihood(posterior: Posterior, theta: Vector) -> Array:
    return posterior.log_likelihood(theta)


def _decay(config: VIConfig) -> optax.Schedule:
    return optax.cosine_decay_schedule(1.0, max(1, config.map_steps))


@partial(jax.jit, static_argnums=0)
def optimise(
    config: VIConfig,
    carry: tuple[Array, optax.OptState],
    posterior: Posterior,
    rng_key: Key,
    start: ArrayLike,
    count: ArrayLike,
    *,
    prior_mean: Vector | None = None,
    weight_decay: ArrayLike | None = None,
) -> tuple[tuple[Array, optax.OptState], Array]:
    """Take `count` steps, after `start` of them; return the new state and the mean loss on the way.

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
        gradient = gradient.at[posterior.num_params :].set(0)
        direction, moments = optimizer.update(gradient, moments)
        rate = jnp.asarray(config.learning_rate * decay(start + offset), theta.dtype)
        weights = theta.at[posterior.num_params :].set(0)
        decayed = theta if weight_decay is None else theta - rate * weight_decay * weights
        return decayed - rate * jnp.asarray(direction), moments, total + loss

    theta, moments, total = jax.lax.fori_loop(0, count, body, (*carry, jnp.zeros((), jnp.result_type(float))))
    return (theta, moments), total / count


def check_loss(loss: Array, num_steps: int, config: VIConfig) -> None:
    """Refuse to go on from a loss that is not a number."""
    if not np.isfinite(loss):
        raise InputError(
            f"`vi.learning_rate` must keep the loss finite, got {config.learning_rate}: the loss is {loss} "
            f"after {num_steps} steps."
        )
