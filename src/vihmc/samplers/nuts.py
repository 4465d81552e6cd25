"""The No-U-Turn Sampler: HMC that finds its own trajectory length (Hoffman & Gelman 2014). BlackJAX's transition."""

from functools import lru_cache

import blackjax
from jaxtyping import Array

from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.samplers.metrics import metric_of
from vihmc.types import Key, LogDensity


@lru_cache
def nuts(max_integration_steps: int) -> Kernel:
    """Build the kernel; trees stop doubling before they need more than `max_integration_steps` gradients."""
    transition = blackjax.nuts.build_kernel()
    max_num_doublings = (max_integration_steps + 1).bit_length() - 1

    def step(
        rng_key: Key, state: blackjax.mcmc.hmc.HMCState, logdensity_fn: LogDensity, tuning: Tuning
    ) -> tuple[blackjax.mcmc.hmc.HMCState, StepInfo]:
        state, info = transition(rng_key, state, logdensity_fn, tuning.step_size, metric_of(tuning), max_num_doublings)
        return state, StepInfo(info.acceptance_rate, info.is_divergent, info.energy, info.num_integration_steps)

    def init(position: Array, logdensity_fn: LogDensity) -> blackjax.mcmc.hmc.HMCState:
        return blackjax.nuts.init(position, logdensity_fn)

    return Kernel(init, step)
