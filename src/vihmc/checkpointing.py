"""Where long computations say what they would need to go on from, and ask whether there is something to go on from."""

from typing import Any


class Checkpoints:
    """Remembers nothing. One that writes to a run directory is in :mod:`vihmc.runs.run_journal`.

    A stage asks `recall` once, before it begins, and offers its state by `keep` whenever `is_due` says so. A state is a
    tree of arrays and numbers; what a stage computes from it must not depend on how often it was asked.
    """

    def recall(self, name: str, like: Any) -> Any | None:
        """Return the last state that was kept under `name`, as a tree like `like`, or None if there is none."""

    def is_due(self) -> bool:
        """Whether a state is wanted now; making one may cost a copy."""
        return False

    def keep(self, name: str, state: Any) -> None:
        """Keep a state in place of the last one of that name."""
