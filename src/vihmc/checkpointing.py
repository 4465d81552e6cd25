"""Long computations that can be interrupted: one loop for all of them, what is remembered, and who is told.

A stage is a loop over a state that is a tree of arrays and numbers. It asks once what to go on from, and offers its
state when that is due. What it computes must not depend on how often it was asked; then a resumed run equals the
uninterrupted one.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from vihmc.devices import peak_memory_gb

State = TypeVar("State")
Value = TypeVar("Value")


class Checkpoints:
    """Remembers nothing. One that writes to a run directory is in :mod:`vihmc.runs.journal`."""

    def recall(self, name: str, like: Any) -> Any | None:
        """Return the last state that was kept under `name`, as a tree like `like`, or None if there is none."""

    def is_due(self) -> bool:
        """Whether a state is wanted now; making one may cost a copy."""
        return False

    def keep(self, name: str, state: Any) -> None:
        """Keep a state in place of the last one of that name."""

    def once(self, name: str, compute: Callable[[], Value]) -> Value:
        """Return what a whole stage found, computed only if it is not known from before."""
        return compute()


def run_loop(
    checkpoints: Checkpoints | None,
    name: str,
    state: State,
    *,
    is_done: Callable[[State], bool],
    advance: Callable[[State], State],
) -> State:
    """Advance a state until it is done, from where an earlier run of the same loop was interrupted.

    Args:
        checkpoints: Where the state is kept when that is due, and at the end.
        name: Of the state.
        state: Where to begin.
        is_done: Whether there is nothing left to do.
        advance: Does the next part.
    """
    checkpoints = checkpoints or Checkpoints()
    recalled = checkpoints.recall(name, state)
    state = state if recalled is None else recalled
    while not is_done(state):
        state = advance(state)
        if is_done(state) or checkpoints.is_due():
            checkpoints.keep(name, state)
    return state


class Observer:
    """Is told how a run goes. This one listens to nothing; the command line has one that draws progress bars."""

    def __init__(self) -> None:
        """Start with no time spent."""
        self.seconds: dict[str, float] = {}
        self.peak_memory_gb: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[None]:
        """Surround a stage of `total` steps; measures its wall time, and the memory taken by its end."""
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
        self.peak_memory_gb[name] = peak_memory_gb()

    def on_fit(self, done: int, info: Any) -> None:
        """Hear about the fit: steps done, mean loss since the last call."""

    def on_direction(self, done: int, total: int) -> None:
        """Hear how many Gauss–Newton products of the second stage have been computed."""

    def on_chain(self, done: int) -> None:
        """Hear for how many chains the values of the frozen parameters are known."""

    def on_fold(self, done: int) -> None:
        """Hear how many groups of functions have been left out and predicted."""

    def on_budget(self, seconds: float) -> None:
        """Hear for how many seconds the chains may draw, if they end when their predictions have converged."""

    def on_look(self, look: Any) -> None:
        """Hear how far the predictions of the chains have converged."""

    def on_steps(self, phase: str, done: int, info: Any) -> None:
        """Hear about the chains: phase, steps done, those of the warm-up included, statistics since the last call."""
