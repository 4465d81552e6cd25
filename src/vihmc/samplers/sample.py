"""Chains from start to end: initialise, warm up, draw."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Float

from vihmc.config.method import SamplerConfig
from vihmc.samplers.chains import ChainJournal, Chains, Finish, Watch, init_chains, run_chains
from vihmc.samplers.hmc import hmc
from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.samplers.nuts import nuts
from vihmc.samplers.warmup import Curvature, warm_up
from vihmc.types import Key, LogDensity

OnSteps = Callable[[str, int, StepInfo], None]
"""Called with the phase ("warmup" or "draws"), the steps done, those of the warm-up included, and the statistics since
the last call."""


class SampleResult(NamedTuple):
    """Draws, and what they were drawn with."""

    chains: Chains
    tuning: Tuning


def build_kernel(config: SamplerConfig, starts: Float[Array, "chains dim"]) -> Kernel:
    """Return the configured kernel, for chains that are on as many devices as `starts`."""
    kernel = hmc() if config.kernel == "hmc" else nuts(config.max_integration_steps)
    sharding = starts.sharding if isinstance(starts.sharding, NamedSharding) else None
    return kernel._replace(in_turn=config.chains_at_once != "all", sharding=sharding)


def sample(
    logdensity_fn: LogDensity,
    starts: Float[Array, "chains dim"],
    config: SamplerConfig,
    rng_key: Key,
    *,
    initial_var: Float[Array, " dim"],
    curvature: Curvature | None = None,
    chunk_size: int = 50,
    watch: Watch | None = None,
    finish: Finish | None = None,
    on_steps: OnSteps | None = None,
    journal: ChainJournal | None = None,
) -> SampleResult:
    """Sample a density with several chains.

    Args:
        logdensity_fn: The unnormalised log density of one position.
        starts: One starting position per chain.
        config: Kernel, metric, step size, trajectory rule and numbers of draws.
        rng_key: Random key.
        initial_var: First guess of the variance of each coordinate (of q, say): the metric unless it is identity.
        curvature: Mean curvature at given positions, a matrix or its diagonal: the metric 'fisher'.
        chunk_size: Draws between two progress reports; never changes the draws.
        watch: Says when there are enough draws; then, or when the budget is spent, the chains end.
        finish: Turns what is sampled into what is stored, if they differ.
        on_steps: Progress.
        journal: Where draws go, and where to go on from, if the same chains were begun before.
    """
    journal = journal or ChainJournal()
    key_warmup, key_draws = jax.random.split(rng_key)
    kernel = build_kernel(config, starts)
    warmed = warm_up(
        logdensity_fn,
        kernel,
        init_chains(logdensity_fn, kernel, starts),
        key_warmup,
        config,
        initial_var=np.asarray(initial_var),
        curvature=curvature,
        chunk_size=chunk_size,
        on_chunk=_in_phase(on_steps, "warmup"),
        checkpoints=journal,
    )
    chains = run_chains(
        logdensity_fn,
        kernel,
        warmed.state,
        warmed.tuning,
        key_draws,
        num_draws=config.num_draws,
        thin=config.thin,
        chunk_size=chunk_size,
        watch=watch if config.budget is not None else None,
        budget=config.budget,
        finish=finish,
        on_chunk=_in_phase(on_steps, "draws", before=warmed.num_steps),
        journal=journal,
    )
    return SampleResult(chains, warmed.tuning)


def _in_phase(on_steps: OnSteps | None, phase: str, before: int = 0) -> Callable[[int, StepInfo], None] | None:
    return None if on_steps is None else lambda done, info: on_steps(phase, before + done, info)
