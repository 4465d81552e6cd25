r"""Hamiltonian Monte Carlo with a given number of leapfrog steps.

.. math:: H(\theta, p) = -\log p(\theta \mid D) + \tfrac12 p^\top M^{-1} p

The end of each trajectory is accepted with probability :math:`\min(1, e^{-\Delta H})`; a rejected draw repeats the
last one. The transition is BlackJAX's.
"""

from functools import lru_cache

import blackjax
from jaxtyping import Array

from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.types import Key, LogDensity


@lru_cache
def hmc() -> Kernel:
    """Build the kernel; the same object every time, so compiled programs are found again."""
    transition = blackjax.hmc.build_kernel()

    def step(
        rng_key: Key, state: blackjax.mcmc.hmc.HMCState, logdensity_fn: LogDensity, tuning: Tuning
    ) -> tuple[blackjax.mcmc.hmc.HMCState, StepInfo]:
        state, info = transition(
            rng_key,
            state,
            logdensity_fn,
            tuning.step_size,
            tuning.inverse_mass_matrix,
            tuning.num_integration_steps,
        )
        return state, StepInfo(info.acceptance_rate, info.is_divergent, info.energy, tuning.num_integration_steps)

    def init(position: Array, logdensity_fn: LogDensity) -> blackjax.mcmc.hmc.HMCState:
        return blackjax.hmc.init(position, logdensity_fn)

    return Kernel(init, step)
