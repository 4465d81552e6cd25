"""Warm-up: find the step size, the metric and the trajectory length, then leave them alone.

The step size follows Nesterov's dual averaging (Hoffman & Gelman 2014, algorithm 5), one for all chains, driven by
their mean acceptance. The metric is learnt in windows that double in length, as Stan does; a new metric begins a fresh
step-size search. Draws that count are taken only after all of this has ended.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.step_size import DualAveragingAdaptationState, dual_averaging_adaptation
from jaxtyping import Array

from vihmc.config import SamplerConfig
from vihmc.samplers.chains import step_chains
from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.samplers.trajectory import LengthRule, num_steps_for, slowest_direction_std, trajectory_time
from vihmc.tracing import as_pytree_function
from vihmc.types import Key, LogDensity

_SHRINKAGE_DRAWS = 5
"""The previous metric counts as this many draws in the next one."""


class WarmupResult(NamedTuple):
    """State of all chains at the end, and what the draws will use."""

    state: Any
    tuning: Tuning


class _Rules(NamedTuple):
    """How a step is chosen; traced, so that other settings compile nothing."""

    fixed_step_size: float
    """Zero if dual averaging finds it."""
    target_acceptance: float
    length: LengthRule


class _Carry(NamedTuple):
    state: Any
    averaging: DualAveragingAdaptationState


def warm_up(
    logdensity_fn: LogDensity,
    kernel: Kernel,
    state: Any,
    rng_key: Key,
    config: SamplerConfig,
    *,
    initial_var: np.ndarray,
    on_chunk: Callable[[int, StepInfo], None] | None = None,
) -> WarmupResult:
    """Run `num_warmup` steps with every chain and tune the kernel.

    Args:
        logdensity_fn: The target.
        kernel: The transition to tune.
        state: State of all chains.
        rng_key: Random key.
        config: Settings.
        initial_var: First guess of the variance of each coordinate.
        on_chunk: Called with the steps done so far and the statistics of the last chunk.
    """
    initial_var = np.asarray(initial_var)
    inverse_mass = np.ones_like(initial_var) if config.metric == "identity" else initial_var
    largest_var = float(initial_var.max())
    slowest_std = float(np.sqrt((initial_var / inverse_mass).max()))
    step_size = config.step_size or _first_step_size(initial_var, inverse_mass)
    start_averaging, _, final_step_size = dual_averaging_adaptation(config.target_acceptance)

    rules = _Rules(config.step_size or 0.0, config.target_acceptance, LengthRule.of(config))
    chunk = partial(_run_chunk, kernel, config.chunk_size, as_pytree_function(logdensity_fn), rules)
    carry = _Carry(state, start_averaging(jnp.asarray(step_size, initial_var.dtype)))
    done = 0
    for length, is_slow in windows(config.num_warmup):
        time = trajectory_time(config, slowest_std=slowest_std, largest_var=largest_var)
        positions = []
        end = done + length
        while done < end:
            count = min(config.chunk_size, end - done)
            carry, (chunk_positions, info) = chunk(carry, jnp.asarray(inverse_mass), time, rng_key, done, count)
            positions.append(np.asarray(chunk_positions[:count]))
            done += count
            if on_chunk is not None:
                on_chunk(done, jax.tree.map(lambda leaf: np.asarray(leaf[:count]), info))  # noqa: B023
        if config.step_size is None:
            step_size = float(final_step_size(carry.averaging))
        if not is_slow:
            continue
        draws = np.concatenate(positions)
        if config.metric == "adapted":
            inverse_mass = _pooled_variance(draws, previous=inverse_mass)
            # The averages of the old metric mean nothing in the new one.
            carry = carry._replace(averaging=start_averaging(jnp.asarray(step_size, initial_var.dtype)))
        slowest_std = slowest_direction_std(draws, inverse_mass)

    time = trajectory_time(config, slowest_std=slowest_std, largest_var=largest_var)
    num_steps = num_steps_for(rules.length, step_size, time)
    tuning = Tuning(jnp.asarray(step_size, initial_var.dtype), jnp.asarray(inverse_mass), num_steps)
    return WarmupResult(carry.state, tuning)


def windows(num_warmup: int) -> list[tuple[int, bool]]:
    """Lengths of the warm-up windows; the slow ones (True) are where metric and length are learnt.

    15 % to find the typical set, 75 % in windows that double from 25 steps, 10 % to settle the step size.
    """
    if num_warmup < 20:
        return [(num_warmup, False)] if num_warmup else []
    first, last = int(0.15 * num_warmup), max(1, int(0.1 * num_warmup))
    left = num_warmup - first - last
    lengths, length = [], 25
    while left >= 3 * length:
        lengths.append(length)
        left -= length
        length *= 2
    return [(first, False), *((n, True) for n in [*lengths, left]), (last, False)]


@partial(jax.jit, static_argnums=(0, 1))
def _run_chunk(
    kernel: Kernel,
    chunk_size: int,
    logdensity_fn: LogDensity,
    rules: _Rules,
    carry: _Carry,
    inverse_mass: Array,
    time: Array,
    rng_key: Key,
    start: Array,
    count: Array,
) -> tuple[_Carry, tuple[Array, StepInfo]]:
    _, update_averaging, _ = dual_averaging_adaptation(rules.target_acceptance)

    def step(index: Array, carry: _Carry) -> tuple[_Carry, StepInfo]:
        searched = jnp.exp(carry.averaging.log_step_size)
        step_size = jnp.where(rules.fixed_step_size > 0, rules.fixed_step_size, searched).astype(inverse_mass.dtype)
        tuning = Tuning(step_size, inverse_mass, num_steps_for(rules.length, step_size, time))
        state, info = step_chains(kernel, logdensity_fn, carry.state, tuning, rng_key, index)
        return _Carry(state, update_averaging(carry.averaging, jnp.mean(info.acceptance_rate))), info

    def body(offset: Array, loop: tuple[_Carry, Any]) -> tuple[_Carry, Any]:
        carry, outputs = loop
        carry, info = step(start + offset, carry)
        values = (carry.state.position, info)
        return carry, jax.tree.map(lambda out, value: out.at[offset].set(value), outputs, values)

    shapes = jax.eval_shape(lambda c: (c.state.position, step(start, c)[1]), carry)
    outputs = jax.tree.map(lambda leaf: jnp.zeros((chunk_size, *leaf.shape), leaf.dtype), shapes)
    return jax.lax.fori_loop(0, count, body, (carry, outputs))


def _first_step_size(variances: np.ndarray, inverse_mass: np.ndarray) -> float:
    """A tenth of the stable step of independent Gaussians of these variances; dual averaging takes it from there."""
    return float(0.1 * np.sqrt((variances / inverse_mass).min()) * variances.size**-0.25)


def _pooled_variance(draws: np.ndarray, *, previous: np.ndarray) -> np.ndarray:
    """Variance within chains, from draws (step, chain, dim), shrunk a little towards the previous metric."""
    num_draws = draws.shape[0] * draws.shape[1]
    within = draws.var(axis=0, ddof=1).mean(axis=0) if len(draws) > 1 else previous
    return ((num_draws * within + _SHRINKAGE_DRAWS * previous) / (num_draws + _SHRINKAGE_DRAWS)).astype(previous.dtype)
