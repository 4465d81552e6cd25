"""Draws of many chains, in chunks, for all kernels."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.samplers.loop import run_chunk, start_loop
from vihmc.tracing import as_pytree_function
from vihmc.types import Key, LogDensity


@dataclass(frozen=True, eq=False)
class Chains:
    """Draws and their statistics, chains along the first axis and draws along the second."""

    positions: np.ndarray
    log_density: np.ndarray
    acceptance_rate: np.ndarray
    is_divergent: np.ndarray
    energy: np.ndarray
    num_gradients: np.ndarray
    seconds: float
    """Wall time of all draws together, compilation not included."""

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return self.positions.shape[0]

    def keep(self, chains: list[int]) -> "Chains":
        """Return only the given chains."""
        return replace(self, **{name: value[chains] for name, value in vars(self).items() if name != "seconds"})


def run_chains(
    logdensity_fn: LogDensity,
    kernel: Kernel,
    state: Any,
    tuning: Tuning,
    rng_key: Key,
    *,
    num_draws: int,
    thin: int = 1,
    chunk_size: int = 50,
    dtype: np.dtype | None = None,
    to_position: Callable[[Array], Array] | None = None,
    on_chunk: Callable[[int, StepInfo], None] | None = None,
) -> Chains:
    """Draw from `logdensity_fn` with every chain.

    Args:
        logdensity_fn: The target.
        kernel: The transition.
        state: State of all chains, stacked along the first axis; see :func:`init_chains`.
        tuning: Step size, metric and length, one for all chains.
        rng_key: Random key.
        num_draws: Draws per chain.
        thin: Steps per draw.
        chunk_size: Draws between two calls of `on_chunk`.
        dtype: What positions are stored in; as they are computed if not given.
        to_position: Maps what is sampled to what is stored, if they differ.
        on_chunk: Called with the draws done so far and the statistics of the last chunk, arrays (draw, chain).
    """
    loop = start_loop(kernel, state, tuning.step_size.dtype, step_size=float(tuning.step_size))
    chunk = partial(run_chunk, kernel, chunk_size, as_pytree_function(logdensity_fn))
    # Compiles, and draws nothing.
    jax.block_until_ready(chunk(loop, tuning, rng_key, start=0, count=0, thin=thin))
    pieces = []
    began = time.perf_counter()
    for start in range(0, num_draws, chunk_size):
        count = min(chunk_size, num_draws - start)
        loop, outputs = chunk(loop, tuning, rng_key, start=start, count=count, thin=thin)
        position, log_density, info = jax.tree.map(partial(_first, count), outputs)
        if to_position is not None:
            position = np.asarray(to_position(jax.numpy.asarray(outputs.position)))[:count]
        pieces.append((position.astype(dtype or position.dtype), log_density, *info))
        if on_chunk is not None:
            on_chunk(start + count, info)
    seconds = time.perf_counter() - began
    arrays = [np.swapaxes(np.concatenate(parts), 0, 1) for parts in zip(*pieces, strict=True)]
    names = [field.name for field in fields(Chains) if field.name != "seconds"]
    return Chains(**dict(zip(names, arrays, strict=True)), seconds=seconds)


def _first(count: int, leaf: Array) -> np.ndarray:
    # A slice of NumPy's, which shares the memory; one of JAX's would compile a program for every length.
    return np.asarray(leaf)[:count]


def init_chains(logdensity_fn: LogDensity, kernel: Kernel, positions: Float[Array, "chains dim"]) -> Any:
    """Make the state of all chains from their starting positions."""
    return _init(kernel, as_pytree_function(logdensity_fn), positions)


@partial(jax.jit, static_argnums=0)
def _init(kernel: Kernel, logdensity_fn: LogDensity, positions: Array) -> Any:
    return kernel.for_all_chains(lambda position: kernel.init(position, logdensity_fn))(positions)
