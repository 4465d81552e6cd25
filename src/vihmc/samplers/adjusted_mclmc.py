r"""Microcanonical dynamics with a Metropolis test at the end of each trajectory: exact.

The velocity keeps its length and the force only turns it, :math:`\dot u = (I - u u^\top) \nabla \log p / (d - 1)`. On
positions and the sphere of directions the steps do not preserve volume; they count what they gain as kinetic energy,
and the end is accepted with probability :math:`\min(1, e^{-\Delta U - \Delta K})` (Robnik, Cohn-Gordon & Seljak 2025).
Every trajectory starts in a new direction. A step costs two gradients; the energy is the potential one. The transition
is BlackJAX's.
"""

from functools import lru_cache

import blackjax
from blackjax.mcmc.hmc import HMCState
from jaxtyping import Array

from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.samplers.mclmc import GRADIENTS_PER_STEP
from vihmc.samplers.step_size import by_acceptance
from vihmc.types import Key, LogDensity


@lru_cache
def adjusted_mclmc() -> Kernel:
    """Build the kernel."""
    transition = blackjax.adjusted_mclmc.build_kernel()

    def step(rng_key: Key, state: HMCState, logdensity_fn: LogDensity, tuning: Tuning) -> tuple[HMCState, StepInfo]:
        num_steps = tuning.num_integration_steps
        state, info = transition(
            rng_key, state, logdensity_fn, tuning.step_size, (num_steps,), tuning.inverse_mass_matrix
        )
        return state, StepInfo(
            info.acceptance_rate, info.is_divergent, -state.logdensity, GRADIENTS_PER_STEP * num_steps
        )

    def init(position: Array, logdensity_fn: LogDensity) -> HMCState:
        return blackjax.adjusted_mclmc.init(position, logdensity_fn)

    return Kernel(init, step, by_acceptance, has_unit_speed=True)
