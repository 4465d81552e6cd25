"""What a run keeps of itself while it goes on, so that one that was interrupted can be finished."""

from typing import NamedTuple

import numpy as np

from vihmc.checkpointing import Checkpoints
from vihmc.fit.result import VIResult
from vihmc.selection.linear_model import Captured
from vihmc.samplers.chains import ChainJournal
from vihmc.selection.sensitivity import Scores


class Selected(NamedTuple):
    """The outcome of the second stage: scores, indices of the kept parameters, and what of the variance these keep."""

    scores: Scores
    kept: np.ndarray
    captured: Captured


class Journal(Checkpoints):
    """Keeps nothing, and holds draws in memory. One that writes to a run directory is in :mod:`vihmc.runs.run_journal`."""

    def recall_fit(self) -> VIResult | None:
        """Return the first stage, if it has ended."""

    def keep_fit(self, fitted: VIResult) -> None:
        """Hear that the first stage has ended."""

    def recall_selected(self) -> Selected | None:
        """Return the second stage, if it has ended."""

    def keep_selected(self, selected: Selected) -> None:
        """Hear that the second stage has ended."""

    def chains(self, stage: str, *, of_all: bool = False) -> ChainJournal:
        """Return the journal of the chains of a stage, "hmc" or "reference", whose draws may be of all parameters."""
        return ChainJournal()

    def part(self, name: str) -> "Journal":
        """Return the journal of an inference within this one: a further fit, a fold."""
        return Journal()
