"""Warm-up: find the step size, the metric and the trajectory length, then leave them alone.

The step size, one for all chains, follows dual averaging. The metric is learnt in windows that double in length, as
Stan does; a new metric begins a fresh step-size search. Retained draws are taken only after all of this has ended.

A warm-up may go on until it has arrived (`max_warmup`): as long as the chains drift, further windows follow, each twice
as long, and each learns the metric anew. Learnt scales need it: a network can fit closer and closer for hundreds of
trajectories, and a step size that was found on the way is too long where they end.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vihmc.checkpointing import Checkpoints, run_loop
from vihmc.config.method import SamplerConfig
from vihmc.devices import gather
from vihmc.samplers.drift import is_drifting, traces_of
from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.samplers.loop import LoopState, Search, run_chunk, start_loop
from vihmc.samplers.metrics import Mass, pooled_variance
from vihmc.samplers.step_size import final_step_size
from vihmc.samplers.trajectory import LengthRule, num_steps_for, slowest_direction_std, trajectory_time
from vihmc.types import Key, LogDensity, as_pytree_function

Curvature = Callable[[np.ndarray], np.ndarray]
"""Maps positions (positions, dim) to the mean curvature there, a matrix or its diagonal."""
_FIRST_MAXIMUM = 127
"""Most leapfrog steps of a trajectory of the first window, doubled with every window: chains that are not yet where the
posterior is need not cross it."""
_NUM_CURVATURES = 32
"""Draws of a window whose curvature is averaged."""


class WarmupResult(NamedTuple):
    """State of all chains at the end, and what the draws will use."""

    state: Any
    tuning: Tuning
    num_steps: int


class WarmupState(NamedTuple):
    """Where a warm-up is."""

    loop: LoopState
    mass: Mass
    step_size: float
    time: float
    done: int
    positions: np.ndarray
    """Of the window that is under way, as far as anything is learnt from them."""
    traces: np.ndarray
    """What must not drift, since the last metric was begun to be learnt: (step, chain, quantity)."""


class Window(NamedTuple):
    """Some steps of a warm-up: whether metric and length are learnt from them, and whether it may end with them."""

    length: int
    learns: bool
    may_end: bool = False


def warm_up(
    logdensity_fn: LogDensity,
    kernel: Kernel,
    state: Any,
    rng_key: Key,
    config: SamplerConfig,
    *,
    initial_var: np.ndarray,
    curvature: Curvature | None = None,
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
        curvature: Mean curvature at given positions, for the metric 'fisher'.
        chunk_size: Steps between two calls of `on_chunk`; never changes the draws.
        on_chunk: Called with the steps done so far and the statistics of the last chunk.
        checkpoints: Where to go on from, if the same warm-up was begun before.
    """
    initial_var = np.asarray(initial_var)
    dtype = initial_var.dtype
    if config.metric == "fisher":
        assert curvature is not None
        mass, relative_var = Mass.of_curvature(curvature(gather(state.position))), np.ones_like(initial_var)
    else:
        mass = Mass(np.ones_like(initial_var) if config.metric in ("identity", "curvature") else initial_var)
        relative_var = initial_var / mass.inverse
    step_size = config.step_size or _first_step_size(relative_var)
    rule, searches = LengthRule.of(config), config.step_size is None
    learns_metric = config.metric in ("adapted", "fisher")
    # Otherwise nothing depends on the positions, and a long warm-up need not hold them.
    holds = learns_metric or (config.kernel != "nuts" and config.posterior_var is None)
    chunk = partial(run_chunk, kernel, chunk_size, as_pytree_function(logdensity_fn))
    planned = windows(config.num_warmup, config.max_warmup)
    ends = np.cumsum([window.length for window in planned])
    most = sum(window.length for window in planned)
    looks = {int(end) for end, window in zip(ends, planned, strict=True) if window.may_end}

    def tuned(now: WarmupState) -> Tuning:
        num_steps = num_steps_for(rule, now.step_size, now.time)
        jitter = jnp.asarray(config.length_jitter, dtype)
        root = None if now.mass.root is None else jnp.asarray(now.mass.root)
        return Tuning(jnp.asarray(now.step_size, dtype), jnp.asarray(now.mass.inverse), num_steps, jitter, root)

    def advance(now: WarmupState) -> WarmupState:
        window = int(np.searchsorted(ends, now.done, side="right"))
        end, learns = int(ends[window]), planned[window].learns and holds
        count = min(chunk_size, end - now.done)
        # The last window finds the step size for trajectories as long as those of the draws.
        longest = rule.maximum if planned[window].may_end else min(rule.maximum, _FIRST_MAXIMUM * 2**window)
        search = Search(searches, config.target_acceptance, rule._replace(maximum=longest), now.time)
        loop, outputs = chunk(now.loop, tuned(now), rng_key, start=now.done, count=count, search=search)
        if on_chunk is not None:
            on_chunk(now.done + count, jax.tree.map(lambda leaf: leaf[:count], gather(outputs.info)))
        positions = np.concatenate([now.positions, gather(outputs.position)[:count]]) if learns else now.positions
        traces = now.traces
        if config.max_warmup is not None:
            begins = planned[window].learns and now.done == end - planned[window].length
            added = traces_of(gather(outputs.position), gather(outputs.log_density))[:count]
            traces = np.concatenate([traces[:0] if begins else traces, added])
        now = now._replace(loop=loop, done=now.done + count, positions=positions, traces=traces)
        return end_window(now, learns=learns) if now.done == end else now

    def end_window(now: WarmupState, *, learns: bool) -> WarmupState:
        if searches:
            now = now._replace(step_size=float(final_step_size(now.loop.step_size)))
        if not learns:
            return now
        mass = now.mass
        if learns_metric:
            mass = learn(now)
            # The averages of the old metric mean nothing in the new one.
            now = now._replace(loop=start_loop(now.loop.chains, dtype, step_size=now.step_size))
        time = trajectory_time(config, slowest_std=slowest_direction_std(now.positions, mass))
        return now._replace(mass=mass, time=time, positions=none_yet)

    def learn(now: WarmupState) -> Mass:
        if curvature is None or config.metric == "adapted":
            return Mass(pooled_variance(now.positions, previous=now.mass.inverse))
        rows = now.positions.reshape(-1, now.positions.shape[-1])
        chosen = np.linspace(len(rows) // 2, len(rows) - 1, min(_NUM_CURVATURES, len(rows))).astype(int)
        return Mass.of_curvature(curvature(rows[chosen]))

    loop = start_loop(state, dtype, step_size=step_size)
    time = trajectory_time(config, slowest_std=float(np.sqrt(relative_var.max())))
    none_yet = np.zeros((0, *np.shape(loop.chains.position)), dtype)
    no_traces = traces_of(none_yet, none_yet[..., 0])

    def is_done(now: WarmupState) -> bool:
        return now.done == most or (now.done in looks and not is_drifting(now.traces))

    begin = WarmupState(loop, mass, step_size, time, 0, none_yet, no_traces)
    end = run_loop(checkpoints, "warmup", begin, is_done=is_done, advance=advance)
    return WarmupResult(end.loop.chains, tuned(end), end.done)


def windows(num_warmup: int, max_warmup: int | None = None) -> list[Window]:
    """Windows of a warm-up of `num_warmup` steps, and those that follow while it drifts, up to `max_warmup` steps.

    15 % to find the typical set, then windows that double from 25 steps, and 10 %, but 50 steps if they are there, to
    settle the step size.
    """
    if num_warmup < 20:
        return [Window(num_warmup, learns=False, may_end=True)] if num_warmup else []
    first, last = int(0.15 * num_warmup), max(1, int(0.1 * num_warmup), min(50, num_warmup // 4))
    left = num_warmup - first - last
    lengths, length = [], 25
    while left >= 3 * length:
        lengths.append(length)
        left -= length
        length *= 2
    planned = [Window(first, learns=False), *(Window(n, learns=True) for n in [*lengths, left])]
    planned.append(Window(last, learns=False, may_end=True))
    length, left = left, (max_warmup or 0) - num_warmup
    while left > last:
        length = min(2 * length, left - last)
        planned += [Window(length, learns=True), Window(last, learns=False, may_end=True)]
        left -= length + last
    return planned


def _first_step_size(relative_var: np.ndarray) -> float:
    """A tenth of the stable step of independent Gaussians of these variances; the search takes it from there."""
    return float(0.1 * np.sqrt(relative_var.min()) * relative_var.size**-0.25)
