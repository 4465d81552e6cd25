"""Runs side by side: what differs in their settings, and what came of it, for the terminal and as a page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from vihmc.errors import InputError
from vihmc.report.finished import FinishedRun, Method, read_run
from vihmc.report.formats import UNKNOWN, clean, show_count, show_number, show_seconds, show_setting, show_share
from vihmc.report.page import draw_picture, render
from vihmc.report.plots_compare import overlay
from vihmc.report.report import CHECKS, accuracy_rows
from vihmc.runs.files import write_atomically

MAIN_SETTINGS = ("problem.name", "preset", "vi.objective", "selection.threshold", "hmc.kernel", "seed")
"""Settings that come first."""
FEW_SETTINGS, FEW_IN_TERMINAL = 20, 12
"""Differing settings that the page and the terminal show at once."""
TITLES = ("Which runs to trust", "What differs", "Results", "Uncertainty")


class Row(NamedTuple):
    """A quantity, and its value in every column; None where it is not known."""

    title: str
    cells: tuple[str | None, ...]
    meaning: str = ""


class Comparison(NamedTuple):
    """Runs side by side.

    Attributes:
        runs: The runs.
        labels: What each is called: its directory, with as many parents as it takes to tell them apart.
        notes: What must be known before reading.
        settings: Settings that differ; a cell for every run.
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
        InputError: If there are fewer than two, one is given twice, or one is not a finished run.
    """
    if len(paths) < 2:
        raise InputError(f"`runs` must be at least two directories, got {len(paths)}.")
    for index, path in enumerate(paths):
        if any(path.resolve() == other.resolve() for other in paths[:index]):
            raise InputError(f"`runs` must be different directories, got {clean(str(path))} twice.")
    runs = tuple(read_run(path) for path in paths)
    settings = [run.settings for run in runs]
    return Comparison(
        runs=runs,
        labels=_label(paths),
        notes=_notes(runs, settings),
        settings=_differences(settings),
        outcomes=_outcomes(runs),
        columns=tuple(run.methods for run in runs),
        results=_results(runs),
    )


def comparison_table(comparison: Comparison) -> Table:
    """The comparison for the terminal: a table of what differs, and below it one of what came out."""
    shown, more = comparison.settings[:FEW_IN_TERMINAL], comparison.settings[FEW_IN_TERMINAL:]
    rest = [Row(f"… and {len(more)} more settings", ("",) * len(comparison.runs))] if more else []
    both = Table.grid()
    for note in comparison.notes:
        both.add_row(Text(note))
    both.add_row(_terminal_table("Runs", comparison.labels, [*shown, *rest, *comparison.outcomes]))
    both.add_row(_terminal_table("Methods", _column_names(comparison, "\n"), comparison.results))
    return both


def write_comparison(comparison: Comparison, out: Path) -> Path:
    """Write the page of a comparison to the file `out`, and return it.

    Raises:
        InputError: If `out` is no .html file, or cannot be written.
    """
    if out.suffix != ".html" or out.is_dir():
        raise InputError(f"`out` must be an .html file, got {clean(str(out))}.")
    page = build_comparison(comparison)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, page)
    except OSError as error:
        raise InputError(
            f"`out` must be a file that can be written, got {clean(str(out))}: {error.strerror}."
        ) from None
    return out


def build_comparison(comparison: Comparison) -> str:
    """The page of a comparison."""
    figure = overlay(comparison.runs, comparison.labels)
    widths = next((row.cells for row in comparison.results if row.title == "Mean epistemic std"), ())
    return render(
        "comparison.html.j2",
        **comparison._asdict(),
        titles=TITLES,
        few_settings=FEW_SETTINGS,
        figure=None if figure is None else draw_picture(figure),
        widths=zip(_column_names(comparison, ", "), widths, strict=False),
    )


def _column_names(comparison: Comparison, separator: str) -> list[str]:
    pairs = zip(comparison.labels, comparison.columns, strict=True)
    return [f"{label}{separator}{method.name}" for label, methods in pairs for method in methods]


def _terminal_table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("", overflow="fold")
    for name in columns:
        table.add_column(Text(name), justify="right", overflow="fold")
    for row in rows:
        table.add_row(Text(row.title), *(Text(UNKNOWN if cell is None else cell) for cell in row.cells))
    return table


def _label(paths: Sequence[Path]) -> tuple[str, ...]:
    """Names of the directories, with as many of those above as it takes to tell them apart."""
    parts = [path.resolve().parts for path in paths]
    length = 1
    while len({part[-length:] for part in parts}) < len(parts):
        length += 1
    return tuple(clean("/".join(part[-length:])) for part in parts)


def _differences(settings: list[dict[str, Any]]) -> tuple[Row, ...]:
    """Settings with two or more values; one that a run does not have is not a value."""
    names = dict.fromkeys((*MAIN_SETTINGS, *(name for one in settings for name in one)))
    rows = [Row(name, tuple(show_setting(one[name]) if name in one else None for one in settings)) for name in names]
    return tuple(row for row in rows if len(set(row.cells) - {None}) > 1)


def _notes(runs: tuple[FinishedRun, ...], settings: list[dict[str, Any]]) -> tuple[str, ...]:
    notes = []
    problems = list(dict.fromkeys(clean(run.summary.problem) for run in runs))
    if len(problems) > 1:
        notes.append(f"These are runs of different problems ({', '.join(problems)}): do not compare their errors.")
    if not _differences(settings):
        return (*notes, "All settings are the same.")
    values = {name: {show_setting(one[name]) for one in settings} for name in MAIN_SETTINGS}
    same = [f"{name} = {value.pop()}" for name, value in values.items() if len(value) == 1]
    return (*notes, *([f"The same in all runs: {', '.join(same)}."] if same else []))


def _outcomes(runs: Sequence[FinishedRun]) -> tuple[Row, ...]:
    found = [run.summary for run in runs]
    counts = (f"{show_count(one.num_selected)} of {show_count(one.num_params)}" for one in found)
    captured = (None if one.captured_variance is None else show_share(one.captured_variance.mean) for one in found)
    rows = (
        Row("Selected parameters", tuple(counts), "Sampled by VI-HMC; the others are frozen."),
        Row("Sensitivity share", tuple(show_share(one.captured_share) for one in found), "Of the selected parameters."),
        Row("Captured variance", tuple(captured), "Share of the predictive variance, by a Gauss–Newton approximation."),
        Row(
            "ELBO", tuple(show_number(one.vi.elbo, 5) for one in found), "In nats. Higher is better, for the same data."
        ),
    )
    return tuple(row for row in rows if any(row.cells))


def _results(runs: Sequence[FinishedRun]) -> tuple[Row, ...]:
    methods = tuple(method for run in runs for method in run.methods)
    has_units = any(run.summary.units is not None for run in runs)
    rows = [Row(one.title, tuple(cells), one.meaning) for one, cells in accuracy_rows(methods, has_units=has_units)]

    def add(title: str, table: str, key: str, form: Any, meaning: str) -> None:
        tables = (getattr(method, table) for method in methods)
        rows.append(Row(title, tuple(None if one is None else form(getattr(one, key)) for one in tables), meaning))

    add("Verdict", "verdict", "level", str, "Whether the chains can be trusted.")
    for check in CHECKS[:2]:
        add(check.title, "diagnostics", check.key, check.form, check.meaning)
    add("ESS per second", "diagnostics", "ess_bulk_median_per_second", show_number, "Median over predictions.")
    add("Acceptance", "chains", "acceptance", show_share, "Mean acceptance probability.")
    seconds = tuple(show_seconds(method.seconds) for method in methods)
    rows.append(Row("Time", seconds, "Wall time of the fit for VI, of the chains alone for VI-HMC and HMC."))
    return tuple(row for row in rows if any(row.cells))
