"""A run in its directory, from the first file to the last: start one, resume one, add draws to one."""

import hashlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from vihmc.cli.console import print_outcome, print_verdicts
from vihmc.data import Problem, build_problem
from vihmc.data.registry import resolve
from vihmc.devices import in_first_process, is_first_process, text_of_first_process, wait_for_all
from vihmc.diagnostics.conformal.calibrate import Calibration
from vihmc.errors import InputError, Interrupted, ProcessLost
from vihmc.fit.result import FitResult
from vihmc.report.pictures import save_pictures
from vihmc.report.report import write_report
from vihmc.report.summary import summarise
from vihmc.runs.calibrate_stored import calibrate_stored
from vihmc.runs.calibrated import as_table
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
from vihmc.runs.disk_chains import count_draws
from vihmc.runs.evaluation import RunResult, check_run, fit_and_select_for, run_problem
from vihmc.runs.journal import RunJournal, check_can_be_written, check_whole
from vihmc.runs.pace import Pace
from vihmc.runs.processes import check_processes, is_lost_process
from vihmc.runs.progress import RunObserver
from vihmc.runs.storage import load_fit_of, save_predictions, save_summary
from vihmc.runs.stored_run import load_run

COMMIT_SECONDS = "VIHMC_COMMIT_SECONDS"
"""Environment variable: seconds between two checkpoints."""


def start_run(
    config: RunConfig, *, out: Path | None, fit_from: Path | None, console: Console, brief: bool = False
) -> bool:
    """Start a run in a new directory and finish it; a brief one writes no figures and no report, and prints no outcome.

    Returns:
        Whether it was asked to stop after its last checkpoint: it has finished, and no further run should start.
    """
    config = resolve_config(config, console)
    problem = build_problem(config.problem)
    if problem.notice:
        console.print(problem.notice, markup=False, highlight=False)
    check_run(problem, config)
    check_processes(config)
    fitted = None if fit_from is None else load_fit_of(fit_from, problem.posterior, config)
    path = Path(text_of_first_process(str(out or next_run_directory(problem.name, config.preset))))
    in_first_process(partial(create_run_directory, path, config))
    with locked(path), _in_one_sentence(path):
        in_first_process(partial(begin, path, config, problem, fit_from=fit_from))
        try:
            return _go_on(path, config, problem, fitted, console, brief=brief)
        except InputError:
            if is_first_process():
                discard_run_directory(path)
            raise


def resolve_config(config: RunConfig, console: Console) -> RunConfig:
    """Make the settings independent of the machine, and say so if another problem than the given one is run."""
    resolved = resolve(config.problem)
    if resolved.notice:
        console.print(resolved.notice, markup=False, highlight=False)
    path, selection = config.selection.target_inputs_file, config.selection
    if path is not None:
        selection = selection.model_copy(update={"target_inputs": str(Path(path).absolute())})
    return config.model_copy(update={"problem": resolved.settings, "selection": selection})


def choose_run(config: RunConfig, *, out: Path, console: Console) -> bool:
    """Only fit and select, or resume that; the directory then has no chains and holds no finished run.

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
    """Finish an interrupted run.

    Returns:
        As :func:`start_run`.
    """
    config = read_config(path)
    with locked(path), _in_one_sentence(path):
        if (path / "summary.json").exists():
            in_first_process(partial(write_report, path))
            console.print(f"{path} is already finished. To add draws: vihmc extend {path} --draws N", soft_wrap=True)
            return False
        problem = build_problem(config.problem)
        check_processes(config)
        check_can_be_written(path)
        begun = read_begun(path)
        wait_for_all()
        if begun:
            check_unchanged(path, problem, any_version=any_version)
        else:
            in_first_process(partial(begin, path, config, problem))  # interrupted before run.json was written
        fitted = None
        if begun.get("fit_from") and not (path / "vi.npz").exists():
            fitted = load_fit_of(Path(begun["fit_from"]), problem.posterior, config)
        return _go_on(path, config, problem, fitted, console, brief=brief)


def extend_run(path: Path, *, num_draws: int, reference: bool, any_version: bool, console: Console) -> None:
    """Add draws to each chain of a run; the result is that of a run with so many draws from the beginning."""
    if num_draws < 1:
        raise InputError(f"`draws` must be at least 1, got {num_draws}. It is the number of draws added to each chain.")
    config = read_config(path)
    stage = "reference" if reference else "hmc"
    if reference and not config.reference.enabled:
        raise InputError(f"`reference` must be part of the run to be extended, got {path}, which ran without it.")
    with locked(path), _in_one_sentence(path):
        if not (path / "summary.json").exists():
            raise InputError(f"`directory` must hold a finished run, got {path}. Finish it with: vihmc resume {path}")
        problem = build_problem(config.problem)
        check_unchanged(path, problem, any_version=any_version)
        check_whole(path)
        check_can_be_written(path)
        config = _with_draws(config, stage, count_draws(path, stage) + num_draws)
        # From here on it is an interrupted run; its report stays until there is a new one.
        allow_config(path, config)
        (path / "summary.json").unlink()
        _go_on(path, config, problem, None, console)


def calibrate_run(path: Path, data: Path, *, level: float | None, share: float | None, shape: str) -> Calibration:
    """Calibrate a finished run on held-out data, store what was found in its summary, and write its report again."""
    run = load_run(path)
    with locked(path), _in_one_sentence(path):
        found = calibrate_stored(run, data, level=level, share=share, shape=shape)
        source = {"path": str(data.absolute()), "sha256": hashlib.sha256(data.read_bytes()).hexdigest()}
        save_summary(path, run.summary | {"calibration": as_table(found) | {"data": source}})
        write_report(path)
    return found


def _with_draws(config: RunConfig, stage: str, num_draws: int) -> RunConfig:
    """The same run with chains of another length; chains that inherit theirs from `hmc` stay as long as they were."""
    changes = {stage: getattr(config, stage).model_copy(update={"num_draws": num_draws, "budget": None})}
    if stage == "hmc":
        for name, sampler in (("reference", config.reference_sampler), ("leave_out", config.leave_out_sampler)):
            kept = {"num_draws": sampler.num_draws, "budget": sampler.budget}
            changes[name] = getattr(config, name).model_copy(update=kept)
    return config.model_copy(update=changes)


def _go_on(
    path: Path, config: RunConfig, problem: Problem, fitted: FitResult | None, console: Console, *, brief: bool = False
) -> bool:
    pace = Pace(float(os.environ.get(COMMIT_SECONDS, "10")))
    journal = RunJournal(path, param_names=problem.param_names, pace=pace)
    observed = path if is_first_process() else None
    with _stopping_at_a_checkpoint(pace, console), RunObserver(console, observed) as observer:
        result = run_problem(problem, config, observer, fitted=fitted, journal=journal)
    in_first_process(partial(_write_results, path, result, console, brief=brief))
    return pace.is_asked_to_stop


def _write_results(path: Path, result: RunResult, console: Console, *, brief: bool) -> None:
    summary = summarise(result) | _origin(path)
    save_predictions(path, result)
    if not brief:
        save_pictures(path, result)
    save_summary(path, summary)
    if not brief:
        report = write_report(path)
        _tell(console, path, report, summary, result.problem)


def _origin(path: Path) -> dict[str, Any]:
    fit_from = read_begun(path).get("fit_from")
    return {} if fit_from is None else {"fit_from": fit_from}


def _tell(console: Console, path: Path, report: Path, summary: dict[str, Any], problem: Problem) -> None:
    print_outcome(console, summary)
    if problem.result_table is not None:
        console.print(problem.result_table(summary))
    console.print(f"Results are in {path}; see {path / report.name}.", soft_wrap=True)
    print_verdicts(console, summary)


@contextmanager
def _in_one_sentence(path: Path) -> Iterator[None]:
    """Ctrl-C, a full disk, a directory that has gone: say so, and how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; everything up to the last checkpoint is stored. Resume with: vihmc resume {path}"
        ) from None
    except OSError as error:
        raise InputError(
            f"`{path}` must be writable and have free space, got: {error.strerror or error}. Everything up to the last "
            f"checkpoint is stored. Fix this, then resume with: vihmc resume {path}"
        ) from None
    except (RuntimeError, ValueError) as error:
        if not is_lost_process(error):
            raise
        raise ProcessLost(
            "another process of this run was lost; everything up to the last checkpoint is stored. Resume "
            f"with: vihmc resume {path} (--processes as before, or none)"
        ) from None


@contextmanager
def _stopping_at_a_checkpoint(pace: Pace, console: Console) -> Iterator[None]:
    """Let Ctrl-C and a cluster's SIGTERM stop the run at its next checkpoint; a second one stops it at once."""

    def ask(number: int, _: object) -> None:
        pace.ask_to_stop()
        console.print("Stopping at the next checkpoint. Interrupt again to stop at once.")
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
