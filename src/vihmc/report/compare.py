"""Runs side by side, as a table for the terminal and as a page."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from vihmc.errors import InputError
from vihmc.report.compare_page import build_comparison
from vihmc.report.comparison import Comparison, Row, compare_runs
from vihmc.report.formats import UNKNOWN, clean
from vihmc.runs.files import write_atomically

__all__ = ["Comparison", "compare_runs", "comparison_table", "write_comparison"]

FEW_SETTINGS = 12
"""Differences that the terminal shows."""


def comparison_table(comparison: Comparison) -> Table:
    """The comparison for the terminal: a table of what differs, and below it one of what came out."""
    shown, more = comparison.settings[:FEW_SETTINGS], comparison.settings[FEW_SETTINGS:]
    rest = [Row(f"… and {len(more)} more settings", ("",) * len(comparison.runs))] if more else []
    names = [
        f"{label}\n{method.name}"
        for label, methods in zip(comparison.labels, comparison.columns, strict=True)
        for method in methods
    ]
    both = Table.grid()
    for note in comparison.notes:
        both.add_row(Text(note))
    both.add_row(_terminal_table("Runs", comparison.labels, [*shown, *rest, *comparison.outcomes]))
    both.add_row(_terminal_table("Methods", names, comparison.results))
    return both


def _terminal_table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("", overflow="fold")
    for name in columns:
        table.add_column(Text(name), justify="right", overflow="fold")
    for row in rows:
        table.add_row(Text(row.title), *(Text(UNKNOWN if cell is None else cell) for cell in row.cells))
    return table


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
