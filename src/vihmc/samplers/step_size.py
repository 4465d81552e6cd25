"""Nesterov's dual averaging of the step size (Hoffman & Gelman 2014, algorithm 5), one for all chains.

It is driven by the mean acceptance rate of all chains.
"""

from typing import Any

import jax.numpy as jnp
from blackjax.adaptation.step_size import DualAveragingAdaptationState, dual_averaging_adaptation
from jaxtyping import Array

from vihmc.samplers.kernel import StepInfo


def start_search(step_size: Array) -> DualAveragingAdaptationState:
    """Begin at `step_size`."""
    start, _, _ = dual_averaging_adaptation(0.8)  # the target comes with the updates
    return start(step_size)


def update_search(
    state: DualAveragingAdaptationState, info: StepInfo, target_acceptance: Any
) -> DualAveragingAdaptationState:
    """Take note of a step of all chains."""
    _, update, _ = dual_averaging_adaptation(target_acceptance)
    return update(state, jnp.mean(info.acceptance_rate))


def trial_step_size(state: DualAveragingAdaptationState) -> Array:
    """The step size to try next."""
    return jnp.exp(state.log_step_size)


def final_step_size(state: DualAveragingAdaptationState) -> Array:
    """The step size to use from now on: an average over the search."""
    return jnp.exp(state.log_step_size_avg)
