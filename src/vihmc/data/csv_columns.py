"""Columns of numbers from a CSV file.

The first row that is not blank names the columns, unless all its cells are numbers; columns are then column_0, ….
Cells are separated by commas, semicolons or tabs, and may be quoted. A cell that is not a number is an error.
"""

import csv
import io
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from vihmc.errors import InputError

_SEPARATORS = (",", ";", "\t")


class Row(NamedTuple):
    """The cells of a row, and the line of the file that it ends on."""

    line: int
    cells: list[str]


def parse_csv(text: str, source: str) -> dict[str, np.ndarray]:
    """Return the columns of a table by name.

    Args:
        text: Contents of the file.
        source: Name of the file, for errors.

    Raises:
        InputError: If there are no rows, rows of different lengths, names that are missing, repeated or not printable,
            or cells that are no finite numbers.
    """
    rows = list(_rows(text, source))
    if not rows:
        raise InputError(f"{source} must hold rows of numbers, got an empty file.")
    names = [f"column_{index}" for index in range(len(rows[0].cells))]
    if not all(_is_number(cell) for cell in rows[0].cells):
        # NumPy marks the header of the files that it writes as a comment.
        names = [cell.removeprefix("#").strip() for cell in rows.pop(0).cells]
    _check_names(names, source)
    if not rows:
        raise InputError(f"{source} must hold rows of numbers below the names, got none.")
    values = np.array([_numbers(row, names, source) for row in rows])
    return dict(zip(names, values.T, strict=True))


def _rows(text: str, source: str) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_find_separator(text), skipinitialspace=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) or len(cells) > 1:
                yield Row(reader.line_num, [cell.strip() for cell in cells])
    except csv.Error as error:
        raise InputError(
            f"{source} must be a table of comma-separated values, got line {reader.line_num}: {error}."
        ) from None


def _find_separator(text: str) -> str:
    """The one that occurs most often in the first line that is not blank."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return max(_SEPARATORS, key=re.sub('"[^"]*"', "", first).count)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _numbers(row: Row, names: list[str], source: str) -> list[float]:
    if len(row.cells) != len(names):
        raise InputError(
            f"{source} must have {len(names)} cells in every row, one per column, got {len(row.cells)} on line "
            f"{row.line}."
        )
    numbers = []
    for name, cell in zip(names, row.cells, strict=True):
        value = float(cell) if _is_number(cell) else None
        if value is None or not math.isfinite(value):
            what = "not a number" if value is None else "not finite"
            shown = f"{cell[:40]!r}, {what}" if cell else "an empty cell"
            raise InputError(f"{source} must hold finite numbers, got {shown}, in column '{name}' on line {row.line}.")
        numbers.append(value)
    return numbers


def _check_names(names: list[str], source: str) -> None:
    for index, name in enumerate(names):
        if not name or not name.isprintable():
            raise InputError(
                f"{source} must name every column in printable letters, got {name!r} for column {index}. A first row "
                "that is not all numbers holds the names."
            )
        if name in names[:index]:
            raise InputError(f"{source} must name every column differently, got '{name}' twice.")
