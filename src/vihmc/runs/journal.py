"""The journal of a run on disk: finished stages, the state of the others, and draws as they are made.

A checkpoint replaces the previous one when it is complete. Of several processes all read and only the first writes,
but for draws; what it has fitted and selected the others read, so that all go on with the same bits.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vihmc.devices import in_first_process, is_first_process, wait_for_all
from vihmc.errors import InputError
from vihmc.pipeline import FIT_PARTS
from vihmc.runs import files
from vihmc.runs.disk_chains import COORDINATES, STORES, DiskChains, open_arrays, reading
from vihmc.runs.pace import Pace
from vihmc.runs.stage_files import STAGES, load_fit, load_selected
from vihmc.samplers.chains import Journal

RESULTS = ("predictions.npz", "slices.npz", "report.html")
"""What a run writes at its end."""
MANY_NAMES = 10_000


class RunJournal(Journal):
    """Writes to a run directory."""

    def __init__(self, path: Path, *, param_names: tuple[str, ...], pace: Pace | None = None) -> None:
        """Continue with what is in `path`, or start."""
        self._path, self._names, self._pace = path, param_names, pace or Pace()
        self._selected: np.ndarray | None = None
        in_first_process(partial((path / "checkpoints").mkdir, parents=True, exist_ok=True))

    def recall(self, name: str, like: Any) -> Any | None:
        """Read a checkpoint."""
        file = self._checkpoint(name)
        state = files.load_tree(file, like) if file.exists() else None
        wait_for_all()  # before any process writes the next
        return state

    def is_due(self) -> bool:
        """Whether the last checkpoint is old."""
        return self._pace.is_due()

    def keep(self, name: str, state: Any) -> None:
        """Write a checkpoint."""
        if is_first_process():
            files.save_tree(self._checkpoint(name), state)
        self._pace.on_written()

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Read a finished stage, or compute and write it."""
        file, load, save = STAGES[name]
        is_known = (self._path / file).exists()
        wait_for_all()
        if is_known:
            found = load(self._path / file)
        else:
            found = compute()
            in_first_process(partial(save, self._path / file, found))
            found = found if is_first_process() else load(self._path / file)
        if name == "fit" and is_first_process():
            for checkpoint in ("mode", "vi"):
                self._checkpoint(checkpoint).unlink(missing_ok=True)
        if name == "selected":
            # Learnt scales come after the parameters of the model, and are always sampled.
            scales = np.arange(len(found.scores.values), len(self._names))
            self._selected = np.concatenate([found.indices, scales])
        return found

    def chains(self, section: str, *, of_all: bool = False) -> "DiskChains":
        """Open the draws of "hmc" or "reference"."""
        selected = None if of_all or section == "reference" else self._selected
        indices = range(len(self._names)) if selected is None else selected.tolist()
        # Too many names for an attribute; scores.npz has the indices.
        names = [self._names[index] for index in indices] if len(indices) <= MANY_NAMES else []
        return DiskChains(self._path, section, param_names=names, pace=self._pace)

    def part(self, name: str) -> "RunJournal":
        """Open the journal of an inference within this one."""
        return RunJournal(self._path / "parts" / name, param_names=self._names, pace=self._pace)

    def _checkpoint(self, name: str) -> Path:
        return self._path / "checkpoints" / f"{name}.npz"


def check_can_be_written(path: Path) -> None:
    """Refuse a run directory in which a folder stands where the results of a run will be written.

    Raises:
        InputError: If one does.
    """
    for name in RESULTS:
        if (path / name).is_dir():
            raise InputError(f"`{path / name}` must be a file, got a folder. Remove it: the run writes it anew.")


def check_whole(path: Path) -> None:
    """Read everything that a finished run needs to be extended.

    Raises:
        InputError: If some of it is missing or damaged.
    """
    for part in sorted((path / "parts").glob(f"{FIT_PARTS}*")):
        check_whole(part)
    load_fit(path / "vi.npz")
    load_selected(path / "scores.npz")
    for file in sorted((path / "checkpoints").glob("*.npz")):
        files.load_arrays(file)
    for stage, store in STORES.items():
        if not (path / store).exists() and stage != "hmc":
            continue
        num_draws = DiskChains(path, stage).collect().num_draws
        with reading(path / store):
            arrays = open_arrays(path / store)
            if not all(np.array_equal(arrays[name][:num_draws], np.arange(num_draws)) for name in COORDINATES):
                raise InputError(f"`{path / store}` must number its draws from 0, got other numbers.")
