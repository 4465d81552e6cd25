r"""Whole trajectories: from a position and a momentum to the end of `num_steps` steps.

The decision to accept needs the energy at the two ends only, while the steps need nothing but the force. An integrator
here therefore asks for the gradient at every step and for the density once, at the end; where the two have programs of
their own (:mod:`vihmc.posterior.pairs`), the expensive one runs once per draw.

- ``leapfrog``: half a kick, a drift, half a kick.
- ``vectorised``: the same on all chains at once, with the chains along the last axis (:mod:`vihmc.models.vectorised`);
  arrays are transposed once per trajectory instead of once per step. For a diagonal mass matrix.
- ``split`` (Cobb & Jalaian 2021): the data are cut into M shards and every step kicks with one shard after the other,
  :math:`\tfrac12 F_1, D, \tfrac12 F_2, D, \dots, F_M, \dots, D, \tfrac12 F_2, D, \tfrac12 F_1` with drifts of
  :math:`\epsilon/(2(M-1))`. Every force and every energy has one shard in use at a time; the composition is symmetric,
  hence reversible.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.mcmc.integrators import IntegratorState
from jaxtyping import Array

from vihmc.models.vectorised import VectorisedDensity, call_with_all_chains
from vihmc.posterior.shards import ShardedDensity
from vihmc.types import LogDensity

OneTrajectory = Callable[[IntegratorState, Any], IntegratorState]
Integrator = Callable[[Any, Callable, Any], OneTrajectory]
"""``integrator(logdensity_fn, kinetic_energy_fn, num_steps)`` gives ``trajectory(state, step_size)``."""


def leapfrog(logdensity_fn: LogDensity, kinetic_energy_fn: Callable, num_steps: Array | int) -> OneTrajectory:
    """Velocity Verlet with one force a step."""
    force, velocity = jax.grad(logdensity_fn), jax.grad(kinetic_energy_fn)

    def trajectory(state: IntegratorState, step_size: Array | float) -> IntegratorState:
        def step(_: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            position, momentum, gradient = carry
            momentum = momentum + 0.5 * step_size * gradient
            position = position + step_size * velocity(momentum)
            gradient = force(position)
            return position, momentum + 0.5 * step_size * gradient, gradient

        start = (state.position, state.momentum, state.logdensity_grad)
        position, momentum, gradient = jax.lax.fori_loop(0, num_steps, step, start)
        return _end(state, position, momentum, logdensity_fn(position), gradient)

    return trajectory


def leapfrog_vectorised(
    logdensity_fn: VectorisedDensity, kinetic_energy_fn: Callable, num_steps: Array | int
) -> OneTrajectory:
    """Velocity Verlet for a vectorised density and a kinetic energy that is a sum over coordinates."""

    def trajectory(state: IntegratorState, step_size: Array | float) -> IntegratorState:
        # The gradient of a quadratic form is the form's diagonal at a vector of ones.
        start: tuple[Any, ...] = (state.position, state.momentum, state.logdensity_grad)
        inverse_mass = jax.grad(kinetic_energy_fn)(jnp.ones_like(start[0]))
        settings = _Settings(logdensity_fn, inverse_mass, jnp.asarray(step_size), jnp.asarray(num_steps))
        position, momentum, gradient = call_with_all_chains(_steps_of_one, _steps_of_all, settings, *start)
        return _end(state, position, momentum, logdensity_fn(position), gradient)

    return trajectory


class _Settings(NamedTuple):
    density: VectorisedDensity
    inverse_mass: Array
    step_size: Array
    num_steps: Array


def _steps_of_one(settings: _Settings, *start: Array) -> tuple[Array, ...]:
    return tuple(end[:, 0] for end in _steps_vectorised(settings, *(vector[:, None] for vector in start)))


def _steps_of_all(settings: _Settings, *start: Array) -> tuple[Array, ...]:
    return tuple(end.T for end in _steps_vectorised(settings, *(vectors.T for vectors in start)))


def _steps_vectorised(
    settings: _Settings, position: Array, momentum: Array, gradient: Array
) -> tuple[Array, Array, Array]:
    density, inverse_mass, step_size, num_steps = settings
    drift = (step_size * inverse_mass)[:, None]

    def step(_: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        position, momentum, gradient = carry
        momentum = momentum + 0.5 * step_size * gradient
        position = position + drift * momentum
        gradient = density.gradients(position)
        return position, momentum + 0.5 * step_size * gradient, gradient

    return jax.lax.fori_loop(0, num_steps, step, (position, momentum, gradient))


def split(logdensity_fn: ShardedDensity, kinetic_energy_fn: Callable, num_steps: Array | int) -> OneTrajectory:
    """Symmetric splitting over the shards of a :class:`vihmc.posterior.shards.ShardedDensity`."""
    num_shards = logdensity_fn.num_shards
    force, velocity = jax.grad(logdensity_fn.shard), jax.grad(kinetic_energy_fn)

    def trajectory(state: IntegratorState, step_size: Array | float) -> IntegratorState:
        drift_size = step_size / (2 * (num_shards - 1))

        def forth(index: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            position, momentum = carry
            momentum = momentum + 0.5 * step_size * force(position, index)
            return position + drift_size * velocity(momentum), momentum

        def back(count: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            position, momentum = carry
            position = position + drift_size * velocity(momentum)
            return position, momentum + 0.5 * step_size * force(position, num_shards - 2 - count)

        def step(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            position, momentum = jax.lax.fori_loop(0, num_shards - 1, forth, carry)
            momentum = momentum + step_size * force(position, jnp.asarray(num_shards - 1))
            return jax.lax.fori_loop(0, num_shards - 1, back, (position, momentum))

        position, momentum = jax.lax.fori_loop(0, num_steps, step, (state.position, state.momentum))
        # The gradient of all data is never needed here, and never computed.
        return _end(state, position, momentum, logdensity_fn(position), jnp.zeros_like(position))

    return trajectory


def _end(
    state: IntegratorState, position: Array, momentum: Array, log_density: Any, gradient: Array
) -> IntegratorState:
    return state._replace(position=position, momentum=momentum, logdensity=log_density, logdensity_grad=gradient)


def integrator_for(logdensity_fn: LogDensity) -> Integrator:
    """The integrator that suits a density: over its shards, vectorised over chains, or plain leapfrog."""
    if isinstance(logdensity_fn, ShardedDensity):
        return split
    return leapfrog_vectorised if isinstance(logdensity_fn, VectorisedDensity) else leapfrog
