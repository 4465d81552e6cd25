"""Warm-up: find the step size, the metric and the trajectory length, then leave them alone.

The step size, one for all chains, follows dual averaging. The metric is learnt in windows that double in length, as
Stan does; a new metric begins a fresh step-size search. Retained draws are taken only after all of this has ended.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vihmc.checkpointing import Checkpoints, run_loop
from vihmc.config.method import SamplerConfig
from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.samplers.loop import LoopState, Search, run_chunk, start_loop
from vihmc.samplers.metrics import pooled_variance
from vihmc.samplers.step_size import final_step_size
from vihmc.samplers.trajectory import LengthRule, num_steps_for, slowest_direction_std, trajectory_time
from vihmc.types import Key, LogDensity, as_pytree_function


class WarmupResult(NamedTuple):
    """State of all chains at the end, and what the draws will use."""

    state: Any
    tuning: Tuning


class WarmupState(NamedTuple):
    """Where a warm-up is."""

    loop: LoopState
    inverse_mass: np.ndarray
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
    chunk_size: int = 50,
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
        chunk_size: Steps between two calls of `on_chunk`; never changes the draws.
        on_chunk: Called with the steps done so far and the statistics of the last chunk.
        checkpoints: Where to go on from, if the same warm-up was begun before.
    """
    initial_var = np.asarray(initial_var)
    dtype = initial_var.dtype
    inverse_mass = np.ones_like(initial_var) if config.metric in ("identity", "curvature") else initial_var
    relative_var = initial_var / inverse_mass
    step_size = config.step_size or _first_step_size(relative_var)
    rule, searches, learns_metric = LengthRule.of(config), config.step_size is None, config.metric == "adapted"
    # Otherwise nothing depends on the positions, and a long warm-up need not hold them.
    holds = learns_metric or (config.kernel != "nuts" and config.posterior_var is None)
    chunk = partial(run_chunk, kernel, chunk_size, as_pytree_function(logdensity_fn))
    ends = np.cumsum([length for length, _ in windows(config.num_warmup)])
    slow = [is_slow for _, is_slow in windows(config.num_warmup)]

    def tuned(now: WarmupState) -> Tuning:
        num_steps = num_steps_for(rule, now.step_size, now.time)
        jitter = jnp.asarray(config.length_jitter, dtype)
        return Tuning(jnp.asarray(now.step_size, dtype), jnp.asarray(now.inverse_mass), num_steps, jitter)

    def advance(now: WarmupState) -> WarmupState:
        window = int(np.searchsorted(ends, now.done, side="right"))
        end, learns = int(ends[window]), slow[window] and holds
        count = min(chunk_size, end - now.done)
        search = Search(searches, config.target_acceptance, rule, now.time)
        loop, outputs = chunk(now.loop, tuned(now), rng_key, start=now.done, count=count, search=search)
        if on_chunk is not None:
            on_chunk(now.done + count, jax.tree.map(lambda leaf: np.asarray(leaf)[:count], outputs.info))
        positions = np.concatenate([now.positions, np.asarray(outputs.position)[:count]]) if learns else now.positions
        now = now._replace(loop=loop, done=now.done + count, positions=positions)
        return end_window(now, learns=learns) if now.done == end else now

    def end_window(now: WarmupState, *, learns: bool) -> WarmupState:
        if searches:
            now = now._replace(step_size=float(final_step_size(now.loop.step_size)))
        if not learns:
            return now
        inverse_mass = now.inverse_mass
        if learns_metric:
            inverse_mass = pooled_variance(now.positions, previous=inverse_mass)
            # The averages of the old metric mean nothing in the new one.
            now = now._replace(loop=start_loop(now.loop.chains, dtype, step_size=now.step_size))
        slowest_std = slowest_direction_std(now.positions, inverse_mass)
        time = trajectory_time(config, slowest_std=slowest_std)
        return now._replace(inverse_mass=inverse_mass, time=time, positions=none_yet)

    loop = start_loop(state, dtype, step_size=step_size)
    time = trajectory_time(config, slowest_std=float(np.sqrt(relative_var.max())))
    none_yet = np.zeros((0, *np.shape(loop.chains.position)), dtype)
    begin = WarmupState(loop, inverse_mass, step_size, time, 0, none_yet)
    end = run_loop(checkpoints, "warmup", begin, is_done=lambda now: now.done >= config.num_warmup, advance=advance)
    return WarmupResult(end.loop.chains, tuned(end))


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
