"""The loop over draws that all kernels share: many chains at once, compiled once, in chunks.

Step `t` of chain `c` has the key ``fold_in(fold_in(rng_key, c), t)``. Draws therefore depend neither on the length of
a chunk nor on how often a person looked.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
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
        on_chunk: Called with the draws done so far and the statistics of the last chunk, arrays (draw, chain).
    """
    chunk = partial(_run_chunk, kernel, chunk_size, thin, as_pytree_function(logdensity_fn))
    jax.block_until_ready(chunk(state, tuning, rng_key, 0, 0))  # compiles, and draws nothing
    pieces = []
    began = time.perf_counter()
    for start in range(0, num_draws, chunk_size):
        count = min(chunk_size, num_draws - start)
        state, outputs = chunk(state, tuning, rng_key, start, count)
        position, log_density, info = jax.tree.map(partial(_first, count), outputs)
        pieces.append((position.astype(dtype or position.dtype), log_density, *info))
        if on_chunk is not None:
            on_chunk(start + count, info)
    seconds = time.perf_counter() - began
    arrays = [np.swapaxes(np.concatenate(parts), 0, 1) for parts in zip(*pieces, strict=True)]
    names = [field.name for field in fields(Chains) if field.name != "seconds"]
    return Chains(**dict(zip(names, arrays, strict=True)), seconds=seconds)


def _first(count: int, leaf: Array) -> np.ndarray:
    return np.asarray(leaf[:count])


def init_chains(logdensity_fn: LogDensity, kernel: Kernel, positions: Float[Array, "chains dim"]) -> Any:
    """Make the state of all chains from their starting positions."""
    return _init(kernel, as_pytree_function(logdensity_fn), positions)


@partial(jax.jit, static_argnums=0)
def _init(kernel: Kernel, logdensity_fn: LogDensity, positions: Array) -> Any:
    return kernel.for_all_chains(lambda position: kernel.init(position, logdensity_fn))(positions)


def step_chains(
    kernel: Kernel, logdensity_fn: LogDensity, state: Any, tuning: Tuning, rng_key: Key, index: Array
) -> tuple[Any, StepInfo]:
    """Take step number `index` with every chain, each with a key of its own."""
    num_chains = jax.tree.leaves(state)[0].shape[0]
    keys = jax.vmap(lambda chain: jax.random.fold_in(jax.random.fold_in(rng_key, chain), index))(jnp.arange(num_chains))
    return kernel.for_all_chains(lambda key, one: kernel.step(key, one, logdensity_fn, tuning))(keys, state)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _run_chunk(
    kernel: Kernel,
    chunk_size: int,
    thin: int,
    logdensity_fn: LogDensity,
    state: Any,
    tuning: Tuning,
    rng_key: Key,
    start: Array,
    count: Array,
) -> tuple[Any, tuple[Array, Array, StepInfo]]:
    """Take `count` draws, at most `chunk_size`: the count is traced, so a short last chunk compiles nothing."""

    def draw(index: Array, state: Any) -> tuple[Any, StepInfo]:
        def one(offset: Array, carry: tuple[Any, StepInfo]) -> tuple[Any, StepInfo]:
            state, total = carry
            state, info = step_chains(kernel, logdensity_fn, state, tuning, rng_key, index * thin + offset)
            return state, StepInfo(
                total.acceptance_rate + info.acceptance_rate / thin,
                total.is_divergent | info.is_divergent,
                info.energy,
                total.num_gradients + info.num_gradients,
            )

        shapes = jax.eval_shape(lambda s: step_chains(kernel, logdensity_fn, s, tuning, rng_key, index)[1], state)
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.fori_loop(0, thin, one, (state, zero))

    def body(offset: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        state, outputs = carry
        state, info = draw(start + offset, state)
        values = (state.position, state.logdensity, info)
        return state, jax.tree.map(lambda out, value: out.at[offset].set(value), outputs, values)

    shapes = jax.eval_shape(lambda s: (s.position, s.logdensity, draw(start, s)[1]), state)
    outputs = jax.tree.map(lambda leaf: jnp.zeros((chunk_size, *leaf.shape), leaf.dtype), shapes)
    return jax.lax.fori_loop(0, count, body, (state, outputs))
