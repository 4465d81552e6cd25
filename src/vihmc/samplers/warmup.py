"""Warm-up: find the step size, the metric and the trajectory length, then leave them alone.

The step size, one for all chains, follows the rule of the kernel. The metric is learnt in windows that double in
length, as Stan does; a new metric begins a fresh step-size search. A length that is learnt is so in every window but
the last, in which the step size settles on it. Draws that count are taken only after all of this has ended.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vihmc.checkpointing import Checkpoints
from vihmc.config.method import SamplerConfig
from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.samplers.loop import LoopState, Search, run_chunk, start_loop
from vihmc.samplers.metrics import LEARNT, WITH_DIRECTIONS, diagonal_of, first_metric, learn_metric
from vihmc.samplers.trajectory import LengthRule, num_steps_for, slowest_direction_std, trajectory_time
from vihmc.tracing import as_pytree_function
from vihmc.types import Key, LogDensity


class WarmupResult(NamedTuple):
    """State of all chains at the end, and what the draws will use."""

    state: Any
    tuning: Tuning


class WarmupState(NamedTuple):
    """Where a warm-up is."""

    loop: LoopState
    inverse_mass: Any
    step_size: float
    time: float
    done: int
    positions: np.ndarray
    """Of the window that is under way, as far as anything is learnt from them."""


def warm_up(
    logdensity_fn: LogDensity,
    kernel: Kernel,
    state: Any,
    rng_key: Key,
    config: SamplerConfig,
    *,
    initial_var: np.ndarray,
    on_chunk: Callable[[int, StepInfo], None] | None = None,
    checkpoints: Checkpoints | None = None,
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
        checkpoints: Where to go on from, if the same warm-up was begun before.
    """
    checkpoints = checkpoints or Checkpoints()
    initial_var = np.asarray(initial_var)
    dtype = initial_var.dtype
    inverse_mass = first_metric(config, initial_var)
    # A Gaussian momentum is as long as the square root of the dimension.
    slowness = math.sqrt(initial_var.size) if kernel.has_unit_speed else 1.0
    relative_var = initial_var / diagonal_of(inverse_mass)
    slowest_std, largest_var = float(np.sqrt(relative_var.max())), float(initial_var.max())
    step_size = config.step_size or slowness * _first_step_size(relative_var)
    rule, searches, learns_length = LengthRule.of(config), config.step_size is None, config.trajectory == "chees"
    learns_metric = config.metric in LEARNT
    # Otherwise nothing depends on the positions, and a long warm-up need not hold them.
    holds = learns_metric or (config.kernel != "nuts" and config.trajectory == "quarter_period")
    time = slowness * trajectory_time(config, slowest_std=slowest_std, largest_var=largest_var)

    def tuned() -> Tuning:
        inverse_mass_matrix = jax.tree.map(jnp.asarray, inverse_mass)
        num_steps = num_steps_for(rule, step_size, time)
        return Tuning(
            jnp.asarray(step_size, dtype), inverse_mass_matrix, num_steps, jnp.asarray(config.length_jitter, dtype)
        )

    chunk = partial(run_chunk, kernel, config.chunk_size, as_pytree_function(logdensity_fn))
    loop = start_loop(kernel, state, dtype, step_size=step_size, time=time)
    done, end, positions = 0, 0, []
    none_yet = np.zeros((0, *np.shape(loop.chains.position)), dtype)
    begun = checkpoints.recall("warmup", WarmupState(loop, inverse_mass, step_size, time, done, none_yet))
    if begun is not None:
        loop, inverse_mass, step_size, time, done, held = begun
        positions = [held] if len(held) else []

    def keep() -> None:
        if done == config.num_warmup or checkpoints.is_due():
            held = np.concatenate(positions) if positions else none_yet
            checkpoints.keep("warmup", WarmupState(loop, inverse_mass, step_size, time, done, held))

    for length, is_slow in windows(config.num_warmup):
        end += length
        if done >= end:
            continue
        learns_length_now = learns_length and end < config.num_warmup
        while done < end:
            count = min(config.chunk_size, end - done)
            search = Search(searches, learns_length_now, config.target_acceptance, rule, time)
            loop, outputs = chunk(loop, tuned(), rng_key, start=done, count=count, search=search)
            if is_slow and holds:
                positions.append(np.asarray(outputs.position)[:count])
            done += count
            if on_chunk is not None:
                on_chunk(done, jax.tree.map(lambda leaf: np.asarray(leaf)[:count], outputs.info))  # noqa: B023
            if done < end:
                keep()
        if searches:
            step_size = float(kernel.step_size_rule.final(loop.step_size))
        if learns_length_now:
            time = float(jnp.exp(loop.length.log_time_average))
        if is_slow and holds:
            draws, positions = np.concatenate(positions), []
            slowest_before = slowest_direction_std(draws, inverse_mass) if learns_length else 1.0
            if learns_metric:
                inverse_mass = learn_metric(config, draws, diagonal_of(inverse_mass))
            slowest_std = slowest_direction_std(draws, inverse_mass)
            if config.metric in WITH_DIRECTIONS:
                # These draws have made the metric, and look rounder in it than others will.
                slowest_std = max(slowest_std, 1.0)
            if learns_length:
                # What was learnt counts in units of the slowest direction.
                time *= slowest_std / slowest_before
            else:
                time = slowness * trajectory_time(config, slowest_std=slowest_std, largest_var=largest_var)
            if learns_metric:
                # The averages of the old metric mean nothing in the new one.
                loop = start_loop(kernel, loop.chains, dtype, step_size=step_size, time=time)
        keep()
    return WarmupResult(loop.chains, tuned())


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


def _first_step_size(relative_var: np.ndarray) -> float:
    """A tenth of the stable step of independent Gaussians of these variances; the search takes it from there."""
    return float(0.1 * np.sqrt(relative_var.min()) * relative_var.size**-0.25)
