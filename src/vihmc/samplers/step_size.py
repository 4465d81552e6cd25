r"""Two rules for the step size, each one for all chains.

- ``by_acceptance``: Nesterov's dual averaging (Hoffman & Gelman 2014, algorithm 5), driven by the mean acceptance.
- ``by_energy_error``: for kernels that reject nothing. The energy that a step of size :math:`\epsilon` gains or loses
  by mistake has a variance that grows as :math:`\epsilon^6`, so every step tells which size would have had the wanted
  one, :math:`5 \cdot 10^{-4}` per dimension (Robnik et al. 2023). Averages over chains and steps count what is close to
  it most, and forget.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from blackjax.adaptation.step_size import DualAveragingAdaptationState, dual_averaging_adaptation
from jaxtyping import Array

from vihmc.samplers.kernel import StepInfo, StepSizeRule

ENERGY_VAR_PER_DIMENSION = 5e-4
_TRUST = 1.5
"""Width, in logarithms of the step size, of the weight of a step that was too small or too large."""
_MEMORY_STEPS = 50
_SHORTENING = 0.2
"""What the logarithm of the step size loses by a step in which all chains diverge."""


def _start_averaging(step_size: Array) -> DualAveragingAdaptationState:
    start, _, _ = dual_averaging_adaptation(0.8)  # the target comes with the updates
    return start(step_size)


def _update_averaging(
    state: DualAveragingAdaptationState, chains: Any, info: StepInfo, target_acceptance: Any
) -> DualAveragingAdaptationState:
    _, update, _ = dual_averaging_adaptation(target_acceptance)
    return update(state, jnp.mean(info.acceptance_rate))


by_acceptance = StepSizeRule(
    start=_start_averaging,
    update=_update_averaging,
    trial=lambda state: jnp.exp(state.log_step_size),
    final=lambda state: jnp.exp(state.log_step_size_avg),
)


class EnergyErrorState(NamedTuple):
    """The step size at which the remembered steps would have had the wanted energy error, and their weight."""

    log_step_size: Array
    weight: Array


def _update_energy_error(state: EnergyErrorState, chains: Any, info: StepInfo, _: Any) -> EnergyErrorState:
    energy_error = chains.energy_error.astype(state.weight.dtype)
    tiny = jnp.finfo(energy_error.dtype).tiny
    ratio = jnp.maximum(jnp.where(info.is_divergent, 0, energy_error**2) / _wanted_var(chains), tiny)
    weights = jnp.where(info.is_divergent, 0, jnp.exp(-0.5 * (jnp.log(ratio) / (6 * _TRUST)) ** 2))
    remembered = state.weight * (_MEMORY_STEPS - 1) / (_MEMORY_STEPS + 1)
    weight = remembered + jnp.mean(weights)
    # In units of the present step size, the remembered ratios have the average one.
    average = jnp.where(weight > 0, (remembered + jnp.mean(weights * ratio)) / jnp.maximum(weight, tiny), 1)
    # What diverges tells no size, only that this one was too large.
    log_step_size = state.log_step_size - jnp.log(average) / 6 - _SHORTENING * jnp.mean(info.is_divergent)
    return EnergyErrorState(log_step_size, weight)


def _wanted_var(chains: Any) -> float:
    return chains.position.shape[-1] * ENERGY_VAR_PER_DIMENSION


by_energy_error = StepSizeRule(
    start=lambda step_size: EnergyErrorState(jnp.log(step_size), jnp.zeros_like(step_size)),
    update=_update_energy_error,
    trial=lambda state: jnp.exp(state.log_step_size),
    final=lambda state: jnp.exp(state.log_step_size),
)
