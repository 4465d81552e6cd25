r"""Generalised HMC: one leapfrog step at a time, with a momentum that is forgotten bit by bit (Horowitz 1991).

.. math:: p \leftarrow \sqrt{1 - \alpha}\, p + \sqrt{\alpha}\, M^{1/2} \xi, \qquad \alpha = 1 - e^{-2/n}

After `num_integration_steps` steps n a share :math:`1/e` of it is left. A rejected step turns the momentum round, so
rejections have to be rare: aim at an acceptance of 0.95 or more. The uniform number that decides on acceptance moves on
slowly, too (Neal 2020), which bunches the rejections. Every draw costs one gradient and is close to the last one: many
draws are needed, or `thin`. The transition is BlackJAX's.
"""

from functools import lru_cache
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
from blackjax.mcmc.ghmc import GHMCState
from blackjax.mcmc.metrics import default_metric
from jaxtyping import Array

from vihmc.samplers.hmc import kept_energy
from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.samplers.step_size import by_acceptance
from vihmc.types import Key, LogDensity


@lru_cache
def ghmc() -> Kernel:
    """Build the kernel. Its state holds the momentum in units of the metric, so that a new metric leaves it valid."""
    transition = blackjax.ghmc.build_kernel()

    def step(rng_key: Key, state: GHMCState, logdensity_fn: LogDensity, tuning: Tuning) -> tuple[GHMCState, StepInfo]:
        metric = default_metric(tuning.inverse_mass_matrix)
        refreshed = -jnp.expm1(-2 / tuning.num_integration_steps).astype(tuning.step_size.dtype)
        drift = refreshed / 2
        momentum: Any = metric.scale(state.position, state.momentum, inv=False, trans=False)
        before = state._replace(momentum=momentum)
        after, info = transition(rng_key, before, logdensity_fn, tuning.step_size, metric, refreshed, drift)
        # BlackJAX writes 0 · ∞ where the energy is not finite. The compiler happens to make that 0, but a chain whose
        # uniform number were lost would never move again.
        uniform = jnp.where(jnp.isfinite(after.slice), after.slice, (state.slice + 1 + drift) % 2 - 1)
        momentum = metric.scale(after.position, after.momentum, inv=True, trans=True)
        after = after._replace(momentum=momentum, slice=uniform)
        energy = kept_energy(info, state.logdensity, tuning)
        return after, StepInfo(info.acceptance_rate, info.is_divergent, energy, jnp.asarray(1))

    def init(position: Array, logdensity_fn: LogDensity) -> GHMCState:
        # One momentum is as good as another: it is forgotten long before the draws.
        return blackjax.ghmc.init(position, logdensity_fn, jax.random.key(0))

    return Kernel(init, step, by_acceptance)
