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
from blackjax.adaptation.step_size import dual_averaging_adaptation

from vihmc.config import SamplerConfig
from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.samplers.loop import Search, run_chunk, start_loop
from vihmc.samplers.trajectory import LengthRule, num_steps_for, slowest_direction_std, trajectory_time
from vihmc.tracing import as_pytree_function
from vihmc.types import Key, LogDensity

_SHRINKAGE_DRAWS = 5
"""The previous metric counts as this many draws in the next one."""


class WarmupResult(NamedTuple):
    """State of all chains at the end, and what the draws will use."""

    state: Any
    tuning: Tuning


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
    inverse_mass = np.ones_like(initial_var) if config.metric in ("identity", "curvature") else initial_var
    largest_var = float(initial_var.max())
    slowest_std = float(np.sqrt((initial_var / inverse_mass).max()))
    step_size = config.step_size or _first_step_size(initial_var, inverse_mass)
    _, _, final_step_size = dual_averaging_adaptation(config.target_acceptance)
    rule, searches = LengthRule.of(config), config.step_size is None
    # Otherwise nothing depends on the positions, and a long warm-up need not hold them.
    learns = config.metric == "adapted" or (config.kernel == "hmc" and config.trajectory == "quarter_period")

    def tuned() -> Tuning:
        return Tuning(
            jnp.asarray(step_size, initial_var.dtype), jnp.asarray(inverse_mass), num_steps_for(rule, step_size, time)
        )

    chunk = partial(run_chunk, kernel, config.chunk_size, as_pytree_function(logdensity_fn))
    loop = start_loop(state, step_size, initial_var.dtype)
    done = 0
    for length, is_slow in windows(config.num_warmup):
        time = trajectory_time(config, slowest_std=slowest_std, largest_var=largest_var)
        positions = []
        end = done + length
        while done < end:
            count = min(config.chunk_size, end - done)
            search = Search(searches, config.target_acceptance, rule, time)
            loop, outputs = chunk(loop, tuned(), rng_key, start=done, count=count, search=search)
            if is_slow and learns:
                positions.append(np.asarray(outputs.position)[:count])
            done += count
            if on_chunk is not None:
                on_chunk(done, jax.tree.map(lambda leaf: np.asarray(leaf)[:count], outputs.info))  # noqa: B023
        if searches:
            step_size = float(final_step_size(loop.averaging))
        if not (is_slow and learns):
            continue
        draws = np.concatenate(positions)
        if config.metric == "adapted":
            inverse_mass = _pooled_variance(draws, previous=inverse_mass)
            # The averages of the old metric mean nothing in the new one.
            loop = start_loop(loop.chains, step_size, initial_var.dtype)
        slowest_std = slowest_direction_std(draws, inverse_mass)

    time = trajectory_time(config, slowest_std=slowest_std, largest_var=largest_var)
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


def _first_step_size(variances: np.ndarray, inverse_mass: np.ndarray) -> float:
    """A tenth of the stable step of independent Gaussians of these variances; dual averaging takes it from there."""
    return float(0.1 * np.sqrt((variances / inverse_mass).min()) * variances.size**-0.25)


def _pooled_variance(draws: np.ndarray, *, previous: np.ndarray) -> np.ndarray:
    """Variance within chains, from draws (step, chain, dim), shrunk a little towards the previous metric."""
    num_draws = draws.shape[0] * draws.shape[1]
    within = draws.var(axis=0, ddof=1).mean(axis=0) if len(draws) > 1 else previous
    return ((num_draws * within + _SHRINKAGE_DRAWS * previous) / (num_draws + _SHRINKAGE_DRAWS)).astype(previous.dtype)
