r"""Hamiltonian Monte Carlo with a given number of leapfrog steps.

.. math:: H(\theta, p) = -\log p(\theta \mid D) + \tfrac12 p^\top M^{-1} p

The end of each trajectory is accepted with probability :math:`\min(1, e^{-\Delta H})`; a rejected draw repeats the
last one. The transition is BlackJAX's, which sees a whole trajectory of ours as one step of its integrator.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import blackjax
import jax.numpy as jnp
from blackjax.mcmc.hmc import HMCInfo, HMCState
from jaxtyping import Array

from vihmc.posterior.shards import ShardedDensity
from vihmc.samplers.integrators import OneTrajectory, integrator_for
from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.samplers.metrics import metric_of
from vihmc.types import Key, LogDensity


@lru_cache
def hmc() -> Kernel:
    """Build the kernel; the same object every time, so compiled programs are found again."""

    def step(rng_key: Key, state: HMCState, logdensity_fn: LogDensity, tuning: Tuning) -> tuple[HMCState, StepInfo]:
        def whole_trajectory(logdensity_fn: LogDensity, kinetic_energy_fn: Callable) -> OneTrajectory:
            return integrator_for(logdensity_fn)(logdensity_fn, kinetic_energy_fn, tuning.num_integration_steps)

        transition = blackjax.hmc.build_kernel(whole_trajectory)
        after, info = transition(rng_key, state, logdensity_fn, tuning.step_size, metric_of(tuning), 1)
        energy = retained_energy(info, state.logdensity, tuning)
        return after, StepInfo(info.acceptance_rate, info.is_divergent, energy, tuning.num_integration_steps)

    def init(position: Array, logdensity_fn: LogDensity) -> HMCState:
        state = blackjax.hmc.init(position, logdensity_fn)
        # The split integrator never has the gradient of all data; one that nobody asks for is not computed either.
        is_split = isinstance(logdensity_fn, ShardedDensity)
        return state._replace(logdensity_grad=jnp.zeros_like(position)) if is_split else state

    return Kernel(init, step)


def retained_energy(info: HMCInfo, log_density: Any, tuning: Tuning) -> Array:
    """Energy of the draw; BlackJAX's is that of the proposal, which may have been rejected, for being infinite say."""
    kinetic_energy = metric_of(tuning).kinetic_energy(info.momentum)
    return jnp.where(info.is_accepted, info.energy, kinetic_energy - log_density)
