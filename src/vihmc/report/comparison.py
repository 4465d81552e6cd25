"""Runs side by side: what differs in their settings, and what came of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vihmc.errors import InputError
from vihmc.report.finished import FinishedRun, Method, read_run
from vihmc.report.formats import clean, say, show_count, show_number, show_seconds, show_setting, show_share
from vihmc.report.quantities import QUANTITIES

MAIN_SETTINGS = {
    "problem.name": ("problem",),
    "preset": ("preset",),
    "vi.objective": ("objective",),
    "selection.threshold": ("threshold",),
    "hmc.kernel": ("hmc", "kernel"),
    "seed": ("seed",),
}
"""Settings that come first, and where the summary has them if there is no configuration."""


class Row(NamedTuple):
    """A quantity, and its value in every column; None where it is not known."""

    title: str
    cells: tuple[str | None, ...]
    meaning: str = ""


class Comparison(NamedTuple):
    """Runs side by side.

    Attributes:
        runs: The runs.
        labels: What each is called: its directory, as far as it takes to tell them apart.
        notes: What must be known before reading.
        settings: What differs in the settings; a cell for every run.
        outcomes: What came out of a run as a whole; a cell for every run.
        columns: The methods of every run.
        results: What came out of every method; a cell for every method of every run, in order.
    """

    runs: tuple[FinishedRun, ...]
    labels: tuple[str, ...]
    notes: tuple[str, ...]
    settings: tuple[Row, ...]
    outcomes: tuple[Row, ...]
    columns: tuple[tuple[Method, ...], ...]
    results: tuple[Row, ...]


def compare_runs(paths: Sequence[Path]) -> Comparison:
    """Read the directories of finished runs and put them side by side.

    Raises:
        InputError: If there are fewer than two, one is there twice, or one is not a finished run.
    """
    if len(paths) < 2:
        raise InputError(f"`runs` must be at least two directories, got {len(paths)}.")
    for index, path in enumerate(paths):
        if any(path.resolve() == other.resolve() for other in paths[:index]):
            raise InputError(f"`runs` must be different directories, got {clean(str(path))} twice.")
    runs = tuple(read_run(path) for path in paths)
    labels, settings = _label(paths), [_settings(run) for run in runs]
    columns = tuple(run.methods for run in runs)
    return Comparison(
        runs=runs,
        labels=labels,
        notes=tuple(_notes(runs, labels, settings)),
        settings=tuple(_differences(settings)),
        outcomes=tuple(row for make in OUTCOMES if any((row := make(runs)).cells)),
        columns=columns,
        results=tuple(_results(runs)),
    )


def _label(paths: Sequence[Path]) -> tuple[str, ...]:
    """Names of the directories, with as many of those above as it takes to tell them apart."""
    parts = [path.resolve().parts for path in paths]
    length = 1
    while len({part[-length:] for part in parts}) < len(parts):
        length += 1
    return tuple(clean("/".join(part[-length:])) for part in parts)


def _settings(run: FinishedRun) -> dict[str, Any]:
    """Settings by name; those that a summary has, if there is no configuration."""
    settings = {name: run.summary.get(*keys) for name, keys in MAIN_SETTINGS.items()} | run.settings
    return {name: value for name, value in settings.items() if value is not None}


def _differences(settings: list[dict[str, Any]]) -> list[Row]:
    """Settings of which there are two values; one that a run does not have is not a value."""
    rows = []
    for name in dict.fromkeys(name for one in settings for name in (*MAIN_SETTINGS, *one)):
        shown = [show_setting(one[name]) if name in one else None for one in settings]
        if len(set(shown) - {None}) > 1:
            rows.append(Row(name, tuple(shown)))
    return rows


def _notes(runs: tuple[FinishedRun, ...], labels: tuple[str, ...], settings: list[dict[str, Any]]) -> list[str]:
    notes = []
    problems = list(dict.fromkeys(run.problem for run in runs))
    if len(problems) > 1:
        notes.append(f"These are runs of different problems ({', '.join(problems)}): do not compare their errors.")
    notes += [
        f"The settings of {label} cannot be read; what its summary says about them is used."
        for run, label in zip(runs, labels, strict=True)
        if not run.config
    ]
    if not _differences(settings):
        notes.append("All settings are the same.")
    else:
        values = {name: {show_setting(one[name]) for one in settings if name in one} for name in MAIN_SETTINGS}
        same = [f"{name} = {value.pop()}" for name, value in values.items() if len(value) == 1]
        notes += [f"The same in all runs: {', '.join(same)}."] if same else []
    return notes


def _kept(runs: Sequence[FinishedRun]) -> Row:
    def cell(run: FinishedRun) -> str | None:
        counts = (show_count(run.summary.number(name)) for name in ("num_selected", "num_params"))
        return say("{} of {}", *counts) or None

    return Row("Parameters kept", tuple(map(cell, runs)), "How many are sampled by VI-HMC; the others are frozen.")


def _captured(runs: Sequence[FinishedRun]) -> Row:
    shares = (show_share(run.summary.number("captured_share")) for run in runs)
    return Row("Sensitivity kept", tuple(shares), "Share of the total sensitivity that the kept parameters hold.")


def _captured_variance(runs: Sequence[FinishedRun]) -> Row:
    shares = (show_share(run.summary.number("captured_variance", "mean")) for run in runs)
    meaning = "Share of the predictive variance that the kept parameters hold together, by a linear model."
    return Row("Predictive variance kept", tuple(shares), meaning)


def _elbo(runs: Sequence[FinishedRun]) -> Row:
    bounds = (show_number(run.summary.number("vi", "elbo"), 5) for run in runs)
    return Row("Evidence bound of the fit", tuple(bounds), "In nats. Higher is better, for the same data and prior.")


OUTCOMES: tuple[Callable[[Sequence[FinishedRun]], Row], ...] = (_kept, _captured, _captured_variance, _elbo)

CHAIN_ROWS: tuple[tuple[str, Callable[[Method], str | None], str], ...] = (
    ("Verdict", lambda method: method.verdict.text("level"), "Whether to trust the chains."),
    ("R-hat, largest", lambda method: show_number(method.diagnostics.number("rhat_max"), 4), "1 is best."),
    (
        "Effective draws, fewest",
        lambda method: show_count(method.diagnostics.number("ess_bulk_min")),
        "What the draws are worth at the slowest prediction. More is better.",
    ),
    (
        "Effective draws per second",
        lambda method: show_number(method.diagnostics.number("ess_bulk_median_per_second")),
        "At a typical prediction, warm-up not counted. More is better.",
    ),
    ("Acceptance", lambda method: show_share(method.chains.number("acceptance")), "Share of accepted proposals."),
    (
        "Time",
        lambda method: show_seconds(method.seconds),
        "Wall time of the fit for VI, of the chains alone for VI-HMC and HMC.",
    ),
)


def _results(runs: Sequence[FinishedRun]) -> list[Row]:
    columns = [(run, method) for run in runs for method in run.methods]
    rows = [
        Row(quantity.title, tuple(quantity.show(run, method) for run, method in columns), quantity.meaning)
        for quantity in QUANTITIES
    ]
    rows += [Row(title, tuple(read(method) for _, method in columns), meaning) for title, read, meaning in CHAIN_ROWS]
    return [row for row in rows if any(row.cells)]
