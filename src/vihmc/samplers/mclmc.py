r"""Microcanonical Langevin, which is biased: a velocity of constant length that the force turns and noise scatters.

.. math:: \dot\theta = u, \qquad \dot u = (I - u u^\top) \left(\nabla \log p(\theta)/(d - 1) + \text{noise}\right)

Nothing is accepted or rejected (Robnik et al. 2023): what the finite step gets wrong stays in the draws. The step size
is chosen for an energy error with a variance of 5e-4 per dimension, at which second moments are wrong by a few per cent
of their own spread; no number of draws makes that smaller. `adjusted_mclmc` is the exact relative. The acceptance rate
is reported as 1, the energy is the potential one, and a step is divergent if its energy is not finite (it is then
undone) or off by more than 1000. A step costs two gradients, and the direction is forgotten over
`num_integration_steps` of them.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
from blackjax.mcmc.integrators import IntegratorState
from jaxtyping import Array

from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.samplers.step_size import by_energy_error
from vihmc.types import Key, LogDensity

GRADIENTS_PER_STEP = 2
_DIVERGENT_ENERGY = 1000.0


class MCLMCState(NamedTuple):
    """What the next step needs, and what the step size is judged by."""

    dynamics: IntegratorState
    """BlackJAX's; its momentum is the velocity in units of the metric, of length one."""
    energy_error: Array

    @property
    def position(self) -> Any:
        """Where the chain is."""
        return self.dynamics.position

    @property
    def logdensity(self) -> Any:
        """The log density there."""
        return self.dynamics.logdensity


@lru_cache
def mclmc() -> Kernel:
    """Build the kernel."""
    transition = blackjax.mclmc.build_kernel()

    def step(rng_key: Key, state: MCLMCState, logdensity_fn: LogDensity, tuning: Tuning) -> tuple[MCLMCState, StepInfo]:
        length = tuning.num_integration_steps * tuning.step_size
        after, info = transition(
            rng_key, state.dynamics, logdensity_fn, tuning.inverse_mass_matrix, length, tuning.step_size
        )
        energy_error = jnp.where(info.nonans, info.energy_change, jnp.inf)
        is_divergent = jnp.abs(energy_error) > _DIVERGENT_ENERGY
        energy = -jnp.asarray(after.logdensity)
        info = StepInfo(jnp.ones_like(energy), is_divergent, energy, jnp.asarray(GRADIENTS_PER_STEP))
        return MCLMCState(after, energy_error), info

    def init(position: Array, logdensity_fn: LogDensity) -> MCLMCState:
        # One direction is as good as another: it is forgotten long before the draws.
        state = blackjax.mclmc.init(position, logdensity_fn, jax.random.key(0))
        return MCLMCState(state, jnp.zeros_like(state.logdensity))

    return Kernel(init, step, by_energy_error, has_unit_speed=True)
