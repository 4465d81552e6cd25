"""The compiled loop that warm-up and draws share: many chains at once, one program for both unless draws are thinned.

Step `t` of chain `c` has the key ``fold_in(fold_in(rng_key, c), t)``, and what all chains share is drawn with the key
of a chain that never is. Draws therefore depend neither on the length of a chunk nor on how often a person looked.
Everything that may change between two chunks is traced: the number of draws, the tuning, and whether a step size is
being searched for.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.samplers.per_chain import map_chains
from vihmc.samplers.step_size import start_search, trial_step_size, update_search
from vihmc.samplers.trajectory import LengthRule, jittered, num_steps_for
from vihmc.types import Key, LogDensity

_NO_CHAIN = np.uint32(2**32 - 1)


class Search(NamedTuple):
    """Whether a step size is being searched for, and the trajectory length that goes with each one tried."""

    is_on: bool
    target_acceptance: float
    length: LengthRule
    time: float
    """Integration time of a trajectory."""


NO_SEARCH = Search(is_on=False, target_acceptance=0.8, length=LengthRule(1, 1), time=1.0)


class LoopState(NamedTuple):
    """State of all chains, stacked along the first axis, and of the search for a step size."""

    chains: Any
    step_size: Any


class Step(NamedTuple):
    """One draw of every chain, or a chunk of them along the first axis."""

    position: Array
    log_density: Array
    info: StepInfo


def start_loop(chains: Any, dtype: Any, *, step_size: float) -> LoopState:
    """Begin the search at `step_size`."""
    return LoopState(chains, strong(start_search(jnp.asarray(step_size, dtype)), dtype))


def strong(tree: Any, dtype: Any) -> Any:
    """Give every number a type of its own, floats that of `dtype`, so that no two calls differ in type alone."""

    def convert(leaf: Any) -> Array:
        array = np.asarray(leaf)
        return jnp.asarray(array.astype(dtype) if np.issubdtype(array.dtype, np.floating) else array)

    return jax.tree.map(convert, tree)


def run_chunk(
    kernel: Kernel,
    chunk_size: int,
    logdensity_fn: LogDensity,
    state: LoopState,
    tuning: Tuning,
    rng_key: Key,
    *,
    start: int,
    count: int,
    thin: int = 1,
    search: Search = NO_SEARCH,
) -> tuple[LoopState, Step]:
    """Take draws number `start` to `start + count - 1`, at most `chunk_size`, of `thin` steps each."""
    dtype = tuning.step_size.dtype
    numbers = strong((tuning, search, start, count), dtype)
    return _run_chunk(kernel, chunk_size, thin, logdensity_fn, state, rng_key, *numbers)


def step_chains(
    kernel: Kernel, logdensity_fn: LogDensity, state: Any, tuning: Tuning, rng_key: Key, index: Array
) -> tuple[Any, StepInfo]:
    """Take step number `index` with every chain, each with a key of its own."""
    num_chains = jax.tree.leaves(state)[0].shape[0]
    keys = jax.vmap(lambda chain: jax.random.fold_in(jax.random.fold_in(rng_key, chain), index))(jnp.arange(num_chains))
    return map_chains(
        kernel.for_all_chains,
        lambda density, key, one: kernel.step(key, one, density, tuning),
        logdensity_fn,
        keys,
        state,
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _run_chunk(
    kernel: Kernel,
    chunk_size: int,
    thin: int,
    logdensity_fn: LogDensity,
    state: LoopState,
    rng_key: Key,
    given: Tuning,
    search: Search,
    start: Array,
    count: Array,
) -> tuple[LoopState, Step]:
    shapes = jax.eval_shape(
        lambda chains: step_chains(kernel, logdensity_fn, chains, given, rng_key, start)[1], state.chains
    )
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def tune(state: LoopState, index: Array) -> Tuning:
        step_size = jnp.where(search.is_on, trial_step_size(state.step_size), given.step_size)
        step_size = step_size.astype(given.step_size.dtype)
        searched = num_steps_for(search.length, step_size, search.time)
        num_steps = jnp.where(search.is_on, searched, given.num_integration_steps)
        key = jax.random.fold_in(jax.random.fold_in(rng_key, _NO_CHAIN), index)
        return given._replace(
            step_size=step_size, num_integration_steps=jittered(num_steps, jnp.asarray(given.jitter), key)
        )

    def step(index: Array, state: LoopState) -> tuple[LoopState, StepInfo]:
        tuning = tune(state, index)
        chains, info = step_chains(kernel, logdensity_fn, state.chains, tuning, rng_key, index)
        return LoopState(chains, update_search(state.step_size, info, search.target_acceptance)), info

    def draw(index: Array, state: LoopState) -> tuple[LoopState, StepInfo]:
        def add(offset: Array, carry: tuple[LoopState, StepInfo]) -> tuple[LoopState, StepInfo]:
            state, total = carry
            state, info = step(index * thin + offset, state)
            return state, StepInfo(
                total.acceptance_rate + info.acceptance_rate / thin,
                total.is_divergent | info.is_divergent,
                info.energy,
                total.num_gradients + info.num_gradients,
            )

        return jax.lax.fori_loop(0, thin, add, (state, nothing))

    def body(offset: Array, carry: tuple[LoopState, Step]) -> tuple[LoopState, Step]:
        state, outputs = carry
        state, info = draw(start + offset, state)
        values = Step(state.chains.position, state.chains.logdensity, info)
        return state, jax.tree.map(lambda out, value: out.at[offset].set(value), outputs, values)

    example = Step(state.chains.position, state.chains.logdensity, nothing)
    outputs = jax.tree.map(lambda leaf: jnp.zeros((chunk_size, *leaf.shape), leaf.dtype), example)
    return jax.lax.fori_loop(0, count, body, (state, outputs))
