r"""Learning the trajectory length from all chains together (Hoffman, Radul & Sountsov 2021).

The change in the estimator of the expected square,

.. math:: \text{ChEES} = \tfrac14 E\left[(\|\theta' - E\theta'\|^2 - \|\theta - E\theta\|^2)^2\right]

is large where a trajectory of time t decorrelates the slow squares. Its derivative by the time follows from the
velocity at the ends, since :math:`\partial_t \|\theta' - c\|_M^2 = 2 (\theta' - c)^\top p'` with norms in the metric M:

.. math:: \frac{\partial\,\text{ChEES}}{\partial t}
    \propto \left(\|\theta' - E\theta'\|_M^2 - \|\theta - E\theta\|_M^2\right) (\theta' - E\theta')^\top p'

Expectations are means over chains, weighted by their acceptance. Adam, without momentum, climbs in the logarithm of the
time. The number of steps has to be jittered: on a Gaussian one fixed time can be a whole period of some direction.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.mcmc.metrics import default_metric
from jaxtyping import Array, Float

from vihmc.samplers.kernel import TrajectoryEnd, Tuning

_LEARNING_RATE = 0.025
_SECOND_MOMENT_DECAY = 0.95


class LengthState(NamedTuple):
    """The time being tried, its average over the steps, and Adam's memory."""

    log_time: Array
    log_time_average: Array
    second_moment: Array
    num_updates: Array


def start_length(time: Array) -> LengthState:
    """Begin at `time`."""
    log_time = jnp.log(time)
    return LengthState(log_time, log_time, jnp.zeros_like(log_time), jnp.zeros_like(log_time))


def update_length(
    state: LengthState,
    before: Float[Array, "chains dim"],
    end: TrajectoryEnd,
    acceptance_rate: Float[Array, " chains"],
    tuning: Tuning,
    *,
    longest: Any,
) -> LengthState:
    """Climb by one step, after a trajectory of every chain from `before` to `end` with `tuning`."""
    gradient = length_gradient(before, end, acceptance_rate, tuning).astype(state.log_time.dtype)
    num_updates = state.num_updates + 1
    second_moment = _SECOND_MOMENT_DECAY * state.second_moment + (1 - _SECOND_MOMENT_DECAY) * gradient**2
    unbiased = second_moment / (1 - _SECOND_MOMENT_DECAY**num_updates)
    step = _LEARNING_RATE * gradient / (jnp.sqrt(unbiased) + jnp.finfo(gradient.dtype).tiny)
    log_time = jnp.clip(state.log_time + step, jnp.log(tuning.step_size), jnp.log(longest))
    weight = num_updates**-0.5
    average = (1 - weight) * state.log_time_average + weight * log_time
    return LengthState(log_time, average, second_moment, num_updates)


def length_gradient(
    before: Float[Array, "chains dim"], end: TrajectoryEnd, acceptance_rate: Float[Array, " chains"], tuning: Tuning
) -> Float[Array, ""]:
    """Derivative of the criterion by the logarithm of the time, up to a constant."""
    finite = jnp.all(jnp.isfinite(end.position) & jnp.isfinite(end.momentum), axis=-1)
    weights = jnp.where(finite, acceptance_rate, 0)
    weights = weights / (jnp.sum(weights) + jnp.finfo(weights.dtype).tiny)
    position = jnp.where(weights[:, None] > 0, end.position, before)
    momentum = jnp.where(weights[:, None] > 0, end.momentum, 0)
    from_mean = position - weights @ position
    metric = default_metric(tuning.inverse_mass_matrix)

    def squared_norms(vectors: Array) -> Array:
        whitened: Any = jax.vmap(lambda one: metric.scale(one, one, inv=False, trans=True))(vectors)
        return jnp.sum(whitened**2, axis=-1)

    change = squared_norms(from_mean) - squared_norms(before - jnp.mean(before, axis=0))
    time = tuning.num_integration_steps * tuning.step_size
    return time * jnp.sum(weights * change * jnp.sum(from_mean * momentum, axis=-1))
