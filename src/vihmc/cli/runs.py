"""A run in its directory, from the first file to the last: begin one, go on with one, add draws to one."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from vihmc.cli.console import print_outcome, print_verdicts, table_of_parameters
from vihmc.cli.progress import RunObserver
from vihmc.data import Problem, build_problem, resolve_problem
from vihmc.errors import InputError, Interrupted
from vihmc.fit.result import FitResult
from vihmc.paper.cone import NO_FILES, STAND_IN
from vihmc.report.plots import run_figures
from vihmc.report.report import write_report
from vihmc.report.summary import summarise
from vihmc.runs.config import RunConfig
from vihmc.runs.directory import (
    allow_config,
    begin,
    check_unchanged,
    create_run_directory,
    discard_run_directory,
    locked,
    next_run_directory,
    read_begun,
    read_config,
)
from vihmc.runs.evaluation import check_run, fit_and_select_for, run_problem
from vihmc.runs.journal import RunJournal, check_whole
from vihmc.runs.pace import Pace
from vihmc.runs.storage import load_fit_of, save_figures, save_predictions, save_summary

COMMIT_SECONDS = "VIHMC_COMMIT_SECONDS"
"""Environment variable: seconds between two checkpoints."""


def start_run(
    config: RunConfig, *, out: Path | None, fit_from: Path | None, console: Console, brief: bool = False
) -> bool:
    """Begin a run in a new directory and bring it to its end; a brief one has no figures, no page and no last words.

    Returns:
        Whether it was asked to stop, too late for a checkpoint: it is at its end, and nothing should follow it.
    """
    config = resolve_config(config, console)
    problem = build_problem(config.problem)
    check_run(problem, config)
    fitted = None if fit_from is None else load_fit_of(fit_from, problem.posterior, config)
    path = create_run_directory(out or next_run_directory(problem.name, config.preset), config)
    with locked(path), _in_one_sentence(path):
        begin(path, config, problem, fit_from=fit_from)
        try:
            return _go_on(path, config, problem, fitted, console, brief=brief)
        except InputError:
            discard_run_directory(path)
            raise


def resolve_config(config: RunConfig, console: Console) -> RunConfig:
    """Put what depends on the place into the settings, and say so if the stand-in is used for missing data."""
    resolved = resolve_problem(config.problem)
    if resolved.name != config.problem.name:
        console.print(NO_FILES, STAND_IN, "Growth rates are computed once, in half a minute.")
    path, selection = config.selection.target_inputs_file, config.selection
    if path is not None:
        selection = selection.model_copy(update={"target_inputs": str(Path(path).absolute())})
    return config.model_copy(update={"problem": resolved, "selection": selection})


def choose_run(config: RunConfig, *, out: Path, console: Console) -> bool:
    """Only fit, score and select, or go on with that; the directory then has no chains and is no finished run.

    Returns:
        As :func:`start_run`.
    """
    problem = build_problem(config.problem)
    is_new = not (out / "config.toml").exists()
    if is_new:
        create_run_directory(out, config)
    with locked(out), _in_one_sentence(out):
        if is_new or not read_begun(out):
            begin(out, config, problem)
        else:
            check_unchanged(out, problem)
        pace = Pace(float(os.environ.get(COMMIT_SECONDS, "10")))
        journal = RunJournal(out, param_names=problem.param_names, pace=pace)
        with _stopping_at_a_checkpoint(pace, console), RunObserver(console, out) as observer:
            fit_and_select_for(problem, config, observer, journal=journal)
        return pace.is_asked_to_stop


def resume_run(path: Path, *, any_version: bool, console: Console, brief: bool = False) -> bool:
    """Bring an interrupted run to its end.

    Returns:
        As :func:`start_run`.
    """
    config = read_config(path)
    with locked(path), _in_one_sentence(path):
        if (path / "summary.json").exists():
            write_report(path)
            console.print(f"The run in {path} is finished. More draws: vihmc extend {path} --draws N", soft_wrap=True)
            return False
        problem = build_problem(config.problem)
        begun = read_begun(path)
        if begun:
            check_unchanged(path, problem, any_version=any_version)
        else:
            begin(path, config, problem)  # it was interrupted before it had written what it is
        fitted = None
        if begun.get("fit_from") and not (path / "vi.npz").exists():
            fitted = load_fit_of(Path(begun["fit_from"]), problem.posterior, config)
        return _go_on(path, config, problem, fitted, console, brief=brief)


def extend_run(path: Path, *, num_draws: int, reference: bool, any_version: bool, console: Console) -> None:
    """Add draws to each chain of a run; the result is that of a run which had so many from the beginning."""
    if num_draws < 1:
        raise InputError(f"`draws` must be at least 1, got {num_draws}.")
    config = read_config(path)
    stage = "reference" if reference else "hmc"
    settings = getattr(config, stage)
    if reference and not config.reference.enabled:
        raise InputError(f"`reference` must have been run to be extended, got {path} without it.")
    with locked(path), _in_one_sentence(path):
        if not (path / "summary.json").exists():
            raise InputError(f"`directory` must hold a finished run, got {path}; finish it with: vihmc resume {path}.")
        problem = build_problem(config.problem)
        check_unchanged(path, problem, any_version=any_version)
        check_whole(path)
        longer = settings.model_copy(update={"num_draws": settings.num_draws + num_draws})
        config = config.model_copy(update={stage: longer})
        # From here on it is a run that was interrupted; its report stays until there is a new one.
        allow_config(path, config)
        (path / "summary.json").unlink()
        _go_on(path, config, problem, None, console)


def _go_on(
    path: Path, config: RunConfig, problem: Problem, fitted: FitResult | None, console: Console, *, brief: bool = False
) -> bool:
    pace = Pace(float(os.environ.get(COMMIT_SECONDS, "10")))
    journal = RunJournal(path, param_names=problem.param_names, pace=pace)
    with _stopping_at_a_checkpoint(pace, console), RunObserver(console, path) as observer:
        result = run_problem(problem, config, observer, fitted=fitted, journal=journal)
    summary = summarise(result) | _origin(path)
    save_predictions(path, result)
    if not brief:
        save_figures(path, run_figures(result))
    save_summary(path, summary)
    if not brief:
        report = write_report(path)
        _tell(console, path, report, summary)
    return pace.is_asked_to_stop


def _origin(path: Path) -> dict[str, Any]:
    fit_from = read_begun(path).get("fit_from")
    return {} if fit_from is None else {"fit_from": fit_from}


def _tell(console: Console, path: Path, report: Path, summary: dict[str, Any]) -> None:
    print_outcome(console, summary)
    if summary["problem"] == "sine_small":
        console.print(table_of_parameters(summary))
    console.print(f"Results are in {path}; {report.name} there has them on one page.", soft_wrap=True)
    print_verdicts(console, summary)


@contextmanager
def _in_one_sentence(path: Path) -> Iterator[None]:
    """Ctrl-C, a disk that is full, a directory that has gone: say so, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; what was committed is kept. Go on with: vihmc resume {path}") from None
    except OSError as error:
        raise InputError(
            f"`{path}` must have room and be writable, got: {error.strerror or error}. What was committed is kept: "
            f"mend that, then vihmc resume {path}."
        ) from None


@contextmanager
def _stopping_at_a_checkpoint(pace: Pace, console: Console) -> Iterator[None]:
    """Let Ctrl-C and a cluster's SIGTERM end the run at its next checkpoint; a second one ends it at once."""

    def ask(number: int, _: object) -> None:
        pace.ask_to_stop()
        console.print("Stopping at the next checkpoint; once more to stop at once.")
        for asked, handler in before.items():
            signal.signal(asked, signal.default_int_handler if asked == signal.SIGINT else handler)

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, where no signal arrives
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
