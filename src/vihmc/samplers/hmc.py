r"""Hamiltonian Monte Carlo with a given number of steps.

.. math:: H(\theta, p) = -\log p(\theta \mid D) + \tfrac12 p^\top M^{-1} p

The end of each trajectory is accepted with probability :math:`\min(1, e^{-\Delta H})`; a rejected draw repeats the
last one. The transition is BlackJAX's, which sees a whole trajectory of ours as one step of its integrator.
"""

from collections.abc import Callable
from functools import lru_cache

import blackjax
import jax.numpy as jnp
from blackjax.mcmc.hmc import HMCState
from jaxtyping import Array

from vihmc.samplers.integrators import INTEGRATORS, OneTrajectory
from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.types import Key, LogDensity


@lru_cache
def hmc(integrator: str = "leapfrog") -> Kernel:
    """Build the kernel; the same object every time, so compiled programs are found again."""

    def step(rng_key: Key, state: HMCState, logdensity_fn: LogDensity, tuning: Tuning) -> tuple[HMCState, StepInfo]:
        def whole_trajectory(logdensity_fn: LogDensity, kinetic_energy_fn: Callable) -> OneTrajectory:
            return INTEGRATORS[integrator](logdensity_fn, kinetic_energy_fn, tuning.num_integration_steps)

        transition = blackjax.hmc.build_kernel(whole_trajectory)
        state, info = transition(rng_key, state, logdensity_fn, tuning.step_size, tuning.inverse_mass_matrix, 1)
        return state, StepInfo(info.acceptance_rate, info.is_divergent, info.energy, tuning.num_integration_steps)

    def init(position: Array, logdensity_fn: LogDensity) -> HMCState:
        state = blackjax.hmc.init(position, logdensity_fn)
        # The split integrator never has the gradient of all data; one that nobody asks for is not computed either.
        return state._replace(logdensity_grad=jnp.zeros_like(position)) if integrator == "split" else state

    return Kernel(init, step)
