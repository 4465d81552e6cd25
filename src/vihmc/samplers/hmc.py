r"""Hamiltonian Monte Carlo with a given number of steps.

.. math:: H(\theta, p) = -\log p(\theta \mid D) + \tfrac12 p^\top M^{-1} p

The end of each trajectory is accepted with probability :math:`\min(1, e^{-\Delta H})`; a rejected draw repeats the
last one. The transition is BlackJAX's, which sees a whole trajectory of ours as one step of its integrator.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import blackjax
import jax.numpy as jnp
from blackjax.mcmc.hmc import HMCInfo
from blackjax.mcmc.metrics import default_metric
from jaxtyping import Array

from vihmc.samplers.integrators import INTEGRATORS, OneTrajectory, choose_integrator
from vihmc.samplers.kernel import Kernel, StepInfo, TrajectoryEnd, Tuning
from vihmc.samplers.step_size import by_acceptance
from vihmc.types import Key, LogDensity


class HMCState(NamedTuple):
    """What the next step needs, and what the length is learnt from, if it is."""

    position: Any
    logdensity: Any
    logdensity_grad: Any
    end: TrajectoryEnd | None = None


@lru_cache
def hmc(integrator: str = "leapfrog", *, keeps_end: bool = False) -> Kernel:
    """Build the kernel; the same object every time, so compiled programs are found again."""

    def step(rng_key: Key, state: HMCState, logdensity_fn: LogDensity, tuning: Tuning) -> tuple[HMCState, StepInfo]:
        def whole_trajectory(logdensity_fn: LogDensity, kinetic_energy_fn: Callable) -> OneTrajectory:
            build = INTEGRATORS[choose_integrator(integrator, logdensity_fn, tuning.inverse_mass_matrix)]
            return build(logdensity_fn, kinetic_energy_fn, tuning.num_integration_steps)

        transition = blackjax.hmc.build_kernel(whole_trajectory)
        before = blackjax.mcmc.hmc.HMCState(*state[:3])
        after, info = transition(rng_key, before, logdensity_fn, tuning.step_size, tuning.inverse_mass_matrix, 1)
        # BlackJAX has turned the momentum round.
        end = TrajectoryEnd(info.proposal.position, -info.proposal.momentum) if keeps_end else None
        energy = kept_energy(info, state.logdensity, tuning)
        after = HMCState(after.position, after.logdensity, after.logdensity_grad, end)
        return after, StepInfo(info.acceptance_rate, info.is_divergent, energy, tuning.num_integration_steps)

    def init(position: Array, logdensity_fn: LogDensity) -> HMCState:
        end = TrajectoryEnd(position, jnp.zeros_like(position)) if keeps_end else None
        state = HMCState(*blackjax.hmc.init(position, logdensity_fn))._replace(end=end)
        # The split integrator never has the gradient of all data; one that nobody asks for is not computed either.
        return state._replace(logdensity_grad=jnp.zeros_like(position)) if integrator == "split" else state

    return Kernel(init, step, by_acceptance, keeps_end=keeps_end)


def kept_energy(info: HMCInfo, log_density: Any, tuning: Tuning) -> Array:
    """Energy of the draw; BlackJAX's is that of the proposal, which may have been rejected, for being infinite say."""
    kinetic_energy = default_metric(tuning.inverse_mass_matrix).kinetic_energy(info.momentum)
    return jnp.where(info.is_accepted, info.energy, kinetic_energy - log_density)
