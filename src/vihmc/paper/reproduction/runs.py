"""The runs of a study: read where they are finished, resumed where they were interrupted, made where missing."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from vihmc.cli.runs import choose_run, resolve_config, resume_run, start_run
from vihmc.errors import InputError, Interrupted
from vihmc.fit.result import FitResult
from vihmc.paper.reproduction.study import PAPERS_RULE, StudyRun
from vihmc.runs.config import RunConfig, build_config, load_preset
from vihmc.runs.directory import read_config
from vihmc.runs.files import load_arrays, load_json
from vihmc.runs.runtime import configure_jax
from vihmc.runs.stage_files import load_fit, load_selected
from vihmc.selection.second_stage import Selected

RUNS = "runs"
"""Folder of the runs, below that of a preset."""


class FinishedRun:
    """A finished run on disk; nothing is read before it is asked for."""

    def __init__(self, path: Path) -> None:
        """Look at the run in `path`."""
        self.path = path

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Its ``summary.json``."""
        return load_json(self.path / "summary.json")

    @property
    def fit(self) -> FitResult:
        """Its first stage."""
        return load_fit(self.path / "vi.npz")

    @property
    def selected(self) -> Selected:
        """Its second stage."""
        return load_selected(self.path / "scores.npz")

    def predictions(self, *names: str) -> dict[str, np.ndarray]:
        """Some arrays of its predictions; only these are read."""
        return load_arrays(self.path / "predictions.npz", names)

    def figure(self, name: str) -> Path:
        """The file of one of its figures."""
        return self.path / "figures" / f"{name}.png"


class RunFolder:
    """The runs of all studies of one preset."""

    def __init__(self, folder: Path, *, data_dir: Path | None = None, console: Console | None = None) -> None:
        """Use the runs in ``folder/runs``; the cone's files are in `data_dir`."""
        self.path = folder / RUNS
        self._data_dir = data_dir
        self._console = console or Console(quiet=True)
        self._silent = Console(quiet=True)

    def finish(self, runs: Sequence[StudyRun]) -> dict[str, FinishedRun]:
        """Return all of these runs, finished; each is made once, however many studies ask for it."""
        unique = {run.name: run for run in runs}
        missing = [run for run in unique.values() if not self._is_finished(run)]
        if len(missing) < len(unique):
            self._console.print(f"{len(unique) - len(missing)} of {len(unique)} runs are finished already.")
        for number, run in enumerate(missing, 1):
            self._console.print(f"Run {number} of {len(missing)}: {run.name}", style="bold", highlight=False)
            began = time.perf_counter()
            with _naming_the_same_command():
                if self._finish(run):
                    raise KeyboardInterrupt
            if number < len(missing) and missing[number].problem != run.problem:
                jax.clear_caches()  # programs of one problem are of no use to another, and take memory
            self._console.print(f"{run.name}: {time.perf_counter() - began:.0f} s", highlight=False)
        return {name: FinishedRun(self.path / name) for name in unique}

    def config_of(self, run: StudyRun) -> RunConfig:
        """All settings of a run."""
        data = {} if self._data_dir is None or run.problem != "cone" else {"data_dir": str(self._data_dir)}
        layers = ({"selection": PAPERS_RULE}, load_preset(run.problem, run.preset), {"problem": data})
        return resolve_config(build_config(*layers, overrides=run.settings), self._silent)

    def _is_finished(self, run: StudyRun) -> bool:
        path = self.path / run.name
        last = "scores.npz" if run.ends_after_selection else "summary.json"
        if not (path / "config.toml").exists():
            return False
        if differences := _differences(read_config(path), self.config_of(run)):
            raise InputError(
                f"`{path}` must hold a run with the settings of this study, got others: {', '.join(differences)}. Move "
                "it away, or give another --out."
            )
        return (path / last).exists()

    def _finish(self, run: StudyRun) -> bool:
        """Begin or resume a run; whether it was asked to stop meanwhile."""
        path, config = self.path / run.name, self.config_of(run)
        configure_jax(config)
        console = self._console if run.with_figures else self._silent
        if run.ends_after_selection:
            return choose_run(config, out=path, console=console)
        if (path / "config.toml").exists():
            return resume_run(path, any_version=False, console=console, brief=not run.with_figures)
        fit_from = None if run.fit_from is None else self.path / run.fit_from
        return start_run(config, out=path, fit_from=fit_from, console=console, brief=not run.with_figures)


@contextmanager
def _naming_the_same_command() -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted("interrupted; finished parts are stored, and the same command resumes.") from None


def _differences(found: RunConfig, asked: RunConfig) -> list[str]:
    """Names of the settings that are not the same, of stages that are run."""
    one, other = (_flat(config) for config in (found, asked))
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _flat(config: RunConfig) -> dict[str, Any]:
    skipped = {"reference": not config.reference.enabled, "leave_out": not config.leave_out.num_folds}
    flat = {}
    for name, value in config.model_dump().items():
        if not skipped.get(name):
            flat |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return flat
