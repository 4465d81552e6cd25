"""What a run in memory remembers, so that its chains can go on later without a new warm-up.

Stages ask it what they would ask a run directory (:mod:`vihmc.runs.journal`). A run that has ended is extended by the
method itself, called again with more draws: all that was done before is recalled.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vihmc.errors import InputError
from vihmc.pipeline import FIT_PARTS
from vihmc.runs import files
from vihmc.runs.disk_chains import STORES, DiskChains
from vihmc.runs.stage_files import STAGES
from vihmc.samplers.chains import ChainJournal, Chains, Journal


class MemoryChains(ChainJournal):
    """Holds draws, and where the chains were after the last of them."""

    def __init__(self, states: dict[str, Any] | None = None, pieces: list[Chains] | None = None) -> None:
        """Begin with what is known."""
        super().__init__()
        self.states, self._pieces = dict(states or {}), list(pieces or [])

    def recall(self, name: str, like: Any) -> Any | None:
        """Return the last state of a name."""
        return self.states.get(name)

    def keep(self, name: str, state: Any) -> None:
        """Hold a state."""
        self.states[name] = state

    def copy(self) -> "MemoryChains":
        """One that goes on from here by itself."""
        return MemoryChains(self.states, self._pieces)

    def copy_to(self, other: ChainJournal) -> None:
        """Write all of it to another journal: draws count once the state after them is kept."""
        for piece in self._pieces:
            other.append(piece)
        for name, state in self.states.items():
            other.keep(name, state)


class MemoryJournal(Journal):
    """Holds finished stages, the end of each loop, and the chains."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.stages: dict[str, Any] = {}
        self.states: dict[str, Any] = {}
        self._chains: dict[str, MemoryChains] = {}
        self._parts: dict[str, MemoryJournal] = {}

    def recall(self, name: str, like: Any) -> Any | None:
        """Return the last state of a name."""
        return self.states.get(name)

    def keep(self, name: str, state: Any) -> None:
        """Hold a state."""
        self.states[name] = state

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return a finished stage, computed only if it is not known."""
        if name not in self.stages:
            self.stages[name] = compute()
        if name == "fit":
            # The fit itself is known: its optimiser is not needed any more.
            for state in ("mode", "vi"):
                self.states.pop(state, None)
        return self.stages[name]

    def chains(self, section: str, *, of_all: bool = False) -> MemoryChains:
        """Return the chains of a section."""
        return self._chains.setdefault(section, MemoryChains())

    def part(self, name: str) -> "MemoryJournal":
        """Return the journal of an inference within this one."""
        return self._parts.setdefault(name, MemoryJournal())

    def copy(self) -> "MemoryJournal":
        """One that goes on from here by itself, so that a result never changes after it was made."""
        other = MemoryJournal()
        other.stages, other.states = dict(self.stages), dict(self.states)
        other._chains = {name: chains.copy() for name, chains in self._chains.items()}
        other._parts = {name: part.copy() for name, part in self._parts.items()}
        return other

    def copy_to(self, other: Journal, *, of_all: bool) -> None:
        """Write all of it to another journal: one that writes to a directory, say."""
        for name, stage in self.stages.items():
            other.once(name, lambda stage=stage: stage)
        for name, state in self.states.items():
            other.keep(name, state)
        for section, chains in self._chains.items():
            chains.copy_to(other.chains(section, of_all=of_all))
        for name, part in self._parts.items():
            part.copy_to(other.part(name), of_all=of_all)


class StoredChains(MemoryChains):
    """Goes on from the chains of a run directory, without changing it."""

    def __init__(self, path: Path, section: str) -> None:
        """Read the draws."""
        collected = DiskChains(path, section).collect()
        if collected.every > 1:
            raise InputError(
                f"`draws` can be added in memory to {collected.num_draws} draws of {collected.num_chains} chains no "
                f"more, got {path}. Extend it on disk with: vihmc extend {path} --draws N"
            )
        super().__init__(pieces=[collected])
        self._checkpoints, self._section = path / "checkpoints", section

    def recall(self, name: str, like: Any) -> Any | None:
        """Read the last state of a name, once."""
        file = self._checkpoints / f"{self._section}_{name}.npz"
        if name not in self.states and file.exists():
            self.states[name] = files.load_tree(file, like)
        return self.states.get(name)


class StoredJournal(MemoryJournal):
    """Goes on from a run directory, without changing it."""

    def __init__(self, path: Path) -> None:
        """Go on from the finished run in `path`."""
        super().__init__()
        self._path = path
        self.stages = {name: load(path / file) for name, (file, load, _) in STAGES.items()}
        self._chains = {section: StoredChains(path, section) for section in STORES if section == "hmc"}
        # Leave-out runs are parts too, but need not go on.
        self._parts = {part.name: StoredJournal(part) for part in sorted((path / "parts").glob(f"{FIT_PARTS}*"))}

    def recall(self, name: str, like: Any) -> Any | None:
        """Read the last state of a name, once."""
        file = self._path / "checkpoints" / f"{name}.npz"
        if name not in self.states and file.exists():
            self.states[name] = files.load_tree(file, like)
        return self.states.get(name)
