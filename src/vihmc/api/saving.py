"""A result in memory as a run directory, and as a page."""

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vihmc.data.saved import FILE, describe_problem
from vihmc.errors import InputError
from vihmc.report.finished import read_run
from vihmc.report.pictures import save_pictures
from vihmc.report.report import build_page, build_report
from vihmc.report.summary import summarise
from vihmc.runs.config import RunConfig
from vihmc.runs.directory import begin, create_run_directory
from vihmc.runs.evaluation import RunResult
from vihmc.runs.files import save_arrays, write_atomically
from vihmc.runs.journal import RunJournal
from vihmc.runs.run import Run
from vihmc.runs.storage import save_predictions, save_summary

PROBE = "outputs"
"""Name of the model's outputs for the first observation, by which a model that is given again is recognised."""


def save_fresh(run: Run, evaluated: RunResult, path: Path) -> Path:
    """Write a run in memory to a new directory; the summary is written last, as the command does."""
    problem, config = run.problem, _with_own_file(run.config)
    with run.precision():
        path = create_run_directory(path, config)
        try:
            if config.problem.name == "python":
                save_arrays(path / FILE, describe_problem(problem) | {PROBE: probe(run.posterior, run.fit.q.mean)})
            begin(path, config, problem)
            run.journal.copy_to(RunJournal(path, param_names=problem.param_names), of_all=run.is_per_chain)
            save_predictions(path, evaluated)
            save_summary(path, summarise(evaluated))
        except OSError as error:
            raise InputError(f"`path` must be a writable directory, got {path}: {error.strerror or error}.") from None
    return path


def probe(posterior: Any, mean: Any) -> np.ndarray:
    """The model's outputs for the first observation."""
    row = jax.tree.map(lambda leaf: leaf[:1], posterior.inputs)
    return np.asarray(posterior.predict(jnp.asarray(mean), row))


def write_page(run: Run, evaluated: RunResult, path: Path) -> Path:
    """Write the report of a run in memory to a file of its own."""
    with tempfile.TemporaryDirectory() as folder, run.precision():
        save_pictures(Path(folder), evaluated)
        return _write(build_page(summarise(evaluated), _with_own_file(run.config), Path(folder)), path)


def write_stored_page(directory: Path, path: Path) -> Path:
    """Write the report of a run directory to a file of its own."""
    return _write(build_report(read_run(directory)), path)


def check_page(path: Path) -> Path:
    """Refuse a file that is no page, before anything is computed."""
    if path.suffix != ".html":
        raise InputError(f"`path` must end in .html, got {path}.")
    return path


def _write(page: str, path: Path) -> Path:
    try:
        write_atomically(path, page)
    except OSError as error:
        raise InputError(f"`path` must be a writable file, got {path}: {error.strerror}.") from None
    return path


def _with_own_file(config: RunConfig) -> RunConfig:
    """Settings of a run that was made in Python name the file that holds its posterior."""
    if config.problem.name != "python":
        return config
    return config.model_copy(update={"problem": config.problem.model_copy(update={"data_file": FILE})})
