"""Draws of many chains, in chunks, for all kernels."""

import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from vihmc.checkpointing import Checkpoints, run_loop
from vihmc.devices import as_in_first_process, gather
from vihmc.samplers.kernel import Kernel, StepInfo, Tuning
from vihmc.samplers.loop import LoopState, run_chunk, start_loop
from vihmc.samplers.per_chain import map_chains
from vihmc.types import Key, LogDensity, as_pytree_function

Finish = Callable[[Array, int], np.ndarray]
"""Turns a chunk of what is sampled (draw, chain, dim), whose first draw has the given number, into what is stored
(chain, draw, dim)."""


class Totals(NamedTuple):
    """Sums over all draws of each chain, also of those that are not held."""

    num_draws: int
    acceptance_rate: Float[np.ndarray, " chains"]
    num_divergent: np.ndarray
    num_gradients: np.ndarray
    num_moves: np.ndarray
    """Pairs of successive draws that differ, of `num_pairs` that were looked at."""
    num_pairs: int
    num_infinite: np.ndarray
    """Draws whose log density is not finite."""

    @classmethod
    def of(cls, *, log_density: Any, acceptance_rate: Any, is_divergent: Any, num_gradients: Any) -> "Totals":
        """Sum what is along the second axis."""
        num_draws = log_density.shape[1]
        return cls(
            num_draws,
            acceptance_rate.sum(axis=1, dtype=np.float64),
            is_divergent.sum(axis=1),
            num_gradients.sum(axis=1, dtype=np.int64),
            # A draw that has moved has another density, but for a chance of rounding.
            np.sum(log_density[:, 1:] != log_density[:, :-1], axis=1),
            max(num_draws - 1, 0),
            np.sum(~np.isfinite(log_density), axis=1),
        )

    def __add__(self, other: "Totals") -> "Totals":  # pyrefly: ignore[bad-override]
        """Add those of further draws."""
        return jax.tree.map(operator.add, self, other)

    @classmethod
    def beside(cls, groups: Sequence["Totals"]) -> "Totals":
        """Those of several groups of chains; sums are rescaled to the shortest, where lengths differ."""
        shortest = min(groups, key=lambda one: one.num_draws)
        shares = [shortest.num_draws / max(1, one.num_draws) for one in groups]
        columns = {
            name: np.concatenate([
                getattr(one, name) if share == 1 else getattr(one, name) * share
                for one, share in zip(groups, shares, strict=True)
            ])
            for name in ("acceptance_rate", "num_divergent", "num_gradients", "num_moves", "num_infinite")
        }  # fmt: skip
        return cls(num_draws=shortest.num_draws, num_pairs=shortest.num_pairs, **columns)

    def keep(self, chains: list[int]) -> "Totals":
        """Return those of the given chains."""
        return jax.tree.map(lambda value: value[chains] if isinstance(value, np.ndarray) else value, self)


@dataclass(frozen=True, eq=False)
class Chains:
    """Draws and their statistics, chains along the first axis and draws along the second.

    Of very long chains only one of `every` draws is held; `totals` are of all of them.
    """

    positions: np.ndarray
    log_density: np.ndarray
    acceptance_rate: np.ndarray
    is_divergent: np.ndarray
    energy: np.ndarray
    num_gradients: np.ndarray
    seconds: float
    """Wall time of all draws together, compilation not included."""
    every: int = 1
    totals: Totals = None  # pyrefly: ignore[bad-assignment]

    def __post_init__(self) -> None:
        """Sum over the draws that are held, if no sums are given."""
        if self.totals is None:
            names = ("log_density", "acceptance_rate", "is_divergent", "num_gradients")
            object.__setattr__(self, "totals", Totals.of(**{name: getattr(self, name) for name in names}))

    def __repr__(self) -> str:
        """Sizes, acceptance and divergences."""
        num_values = max(1, self.num_chains * self.num_draws)
        acceptance, divergent = self.totals.acceptance_rate.sum() / num_values, int(self.totals.num_divergent.sum())
        sizes = f"{self.num_chains} chains of {self.num_draws:,} draws of {self.positions.shape[-1]:,} numbers"
        return f"Chains: {sizes}, acceptance {acceptance:.2f}, {divergent:,} divergent"

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return self.positions.shape[0]

    @property
    def num_draws(self) -> int:
        """Draws of each chain, whether they are held or not."""
        return self.totals.num_draws

    def keep(self, chains: list[int]) -> "Chains":
        """Return only the given chains."""
        arrays: dict[str, Any] = {name: getattr(self, name)[chains] for name in PER_DRAW}
        return replace(self, **arrays, totals=self.totals.keep(chains))

    def spread(self, num_draws: int) -> "Chains":
        """Return `num_draws` of the draws that are held, evenly spread; totals stay those of all draws."""
        length = self.positions.shape[1]
        if num_draws == length:
            return self
        index = np.linspace(0, length - 1, num_draws).round().astype(int)
        arrays: dict[str, Any] = {name: getattr(self, name)[:, index] for name in PER_DRAW}
        return replace(self, **arrays)

    @classmethod
    def beside(cls, groups: Sequence["Chains"]) -> "Chains":
        """Put chains of equal length side by side."""
        arrays: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in groups]) for name in PER_DRAW}
        seconds, every = sum(one.seconds for one in groups), max(one.every for one in groups)
        return cls(**arrays, seconds=seconds, every=every, totals=Totals.beside([one.totals for one in groups]))

    @classmethod
    def join(cls, pieces: Sequence["Chains"]) -> "Chains":
        """Put chains end to end."""
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(piece, name) for piece in pieces], axis=1) for name in PER_DRAW
        }
        return cls(**arrays, seconds=sum(piece.seconds for piece in pieces))


PER_DRAW = tuple(field.name for field in fields(Chains) if field.name not in ("seconds", "every", "totals"))
"""Names of the arrays that have a value for each draw."""


class DrawsState(NamedTuple):
    """Where chains are, after the draws that were appended to their journal."""

    loop: LoopState
    num_draws: int
    seconds: float
    is_enough: bool = False
    """Whether a watch said so."""


class ChainJournal(Checkpoints):
    """Takes draws as they come, and remembers where the chains were. This one holds all in memory, and forgets."""

    def __init__(self) -> None:
        """Begin with no draws."""
        self._pieces: list[Chains] = []

    def append(self, piece: Chains) -> None:
        """Take the next draws of all chains; they count once the state after them is kept."""
        self._pieces.append(piece)

    def collect(self) -> Chains:
        """Return all draws."""
        return Chains.join(self._pieces)


class Watch:
    """Looks at draws as they come, and says when there are enough. This one never does."""

    def see(self, piece: Chains) -> None:
        """Take note of the next draws."""

    def next_look(self, num_draws: int) -> int | None:
        """After how many draws to look next, if there are `num_draws`; the same on every machine."""

    def is_enough(self, num_draws: int) -> bool:
        """Whether the first `num_draws` draws, all of which were seen, are enough."""
        return False


class Journal(Checkpoints):
    """What a whole run remembers. This one keeps nothing, and holds draws in memory.

    One that writes to a run directory is in :mod:`vihmc.runs.journal`.
    """

    def chains(self, section: str, *, of_all: bool = False) -> ChainJournal:
        """Return the journal of the chains of "hmc" or "reference", whose draws may be of all parameters."""
        return ChainJournal()

    def part(self, name: str) -> "Journal":
        """Return the journal of an inference within this one: a fold, say."""
        return Journal()


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
    watch: Watch | None = None,
    budget: float | None = None,
    finish: Finish | None = None,
    on_chunk: Callable[[int, StepInfo], None] | None = None,
    journal: ChainJournal | None = None,
) -> Chains:
    """Draw from `logdensity_fn` with every chain.

    Args:
        logdensity_fn: The target.
        kernel: The transition.
        state: State of all chains, stacked along the first axis; see :func:`init_chains`.
        tuning: Step size, metric and length, one for all chains.
        rng_key: Random key.
        num_draws: Draws per chain, at most.
        thin: Steps per draw.
        watch: Says when there are enough.
        budget: Seconds after which no further draws are begun. It decides how many draws there are, never which.
        chunk_size: Draws between two calls of `on_chunk`.
        finish: Turns what is sampled into what is stored, if they differ.
        on_chunk: Called with the draws done so far and the statistics of the last chunk, arrays (draw, chain).
        journal: Where draws go, and where to go on from, if the same chains were begun before.
    """
    journal, watch = journal or ChainJournal(), watch or Watch()
    chunk = partial(run_chunk, kernel, chunk_size, as_pytree_function(logdensity_fn))
    is_compiled = False

    def advance(now: DrawsState) -> DrawsState:
        nonlocal is_compiled
        if not is_compiled:
            # Compiles, and draws nothing.
            jax.block_until_ready(chunk(now.loop, tuning, rng_key, start=0, count=0, thin=thin))
            is_compiled = True
        began = time.perf_counter()
        start, look = now.num_draws, watch.next_look(now.num_draws)
        count = min(chunk_size, num_draws - start, num_draws if look is None else look - start)
        loop, outputs = chunk(now.loop, tuning, rng_key, start=start, count=count, thin=thin)
        log_density, info = gather((outputs.log_density, outputs.info))
        # All of the chunk, though its end may be empty: it is compiled for one length.
        stored = np.swapaxes(gather(outputs.position), 0, 1) if finish is None else finish(outputs.position, start)
        statistics = [np.swapaxes(values[:count], 0, 1) for values in (log_density, *info)]
        (seconds,) = as_in_first_process(time.perf_counter() - began)
        piece = Chains(stored[:, :count], *statistics, seconds=seconds)
        watch.see(piece)
        journal.append(piece)
        if on_chunk is not None:
            on_chunk(start + count, StepInfo(*(values[:count] for values in info)))
        return DrawsState(loop, start + count, now.seconds + seconds, watch.is_enough(start + count))

    begin = DrawsState(start_loop(state, tuning.step_size.dtype, step_size=float(tuning.step_size)), 0, 0.0)
    before = journal.recall("draws", begin) if budget is not None else None
    if before is not None and before.num_draws and not before.is_enough:
        watch.see(journal.collect())

    def is_done(now: DrawsState) -> bool:
        is_over = budget is not None and (now.seconds >= budget or now.is_enough)
        return now.num_draws >= num_draws or is_over

    run_loop(journal, "draws", begin, is_done=is_done, advance=advance)
    return journal.collect()


def init_chains(logdensity_fn: LogDensity, kernel: Kernel, positions: Float[Array, "chains dim"]) -> Any:
    """Make the state of all chains from their starting positions."""
    return _init(kernel, as_pytree_function(logdensity_fn), positions)


@partial(jax.jit, static_argnums=0)
def _init(kernel: Kernel, logdensity_fn: LogDensity, positions: Array) -> Any:
    return map_chains(
        kernel.for_all_chains, lambda density, position: kernel.init(position, density), logdensity_fn, positions
    )
