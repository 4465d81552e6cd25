"""Inputs and targets of a regression, as named columns of a file."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from vihmc.data.data_file import DataFile
from vihmc.errors import InputError

ARRAY_NAMES = ("X", "y")
"""Default names of the arrays of inputs and of targets."""


class Columns(NamedTuple):
    """Some columns, and their names."""

    names: tuple[str, ...]
    values: Float[np.ndarray, "rows columns"]

    def rows(self, chosen: np.ndarray) -> "Columns":
        """The same columns of some rows."""
        return Columns(self.names, self.values[chosen])


class Regression(NamedTuple):
    """Inputs and targets, row by row."""

    inputs: Columns
    targets: Columns

    @property
    def num_rows(self) -> int:
        """Number of observations."""
        return len(self.inputs.values)

    def rows(self, chosen: np.ndarray) -> "Regression":
        """Some of the observations."""
        return Regression(self.inputs.rows(chosen), self.targets.rows(chosen))


class Choice(NamedTuple):
    """Names of the columns or arrays that are inputs and targets."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]


def choose_names(file: DataFile, inputs: Sequence[str] | None, targets: Sequence[str] | None) -> Choice:
    """Fill in names that were not given: the last column of a table is the target, all others are inputs."""
    if not file.is_table:
        names = Choice(tuple(inputs or ARRAY_NAMES[:1]), tuple(targets or ARRAY_NAMES[1:]))
    else:
        last = tuple(targets or list(file.arrays)[-1:])
        names = Choice(tuple(inputs or [name for name in file.arrays if name not in last]), last)
    if both := [name for name in names.inputs if name in names.targets]:
        raise InputError(f"`problem.inputs` and `problem.targets` must not share columns, got '{both[0]}' in both.")
    if not names.inputs:
        raise InputError(
            f"`problem.inputs` must be at least one column, got {file.path}, whose columns are all targets."
        )
    for setting, chosen in zip(("inputs", "targets"), names, strict=True):
        if repeated := [name for index, name in enumerate(chosen) if name in chosen[:index]]:
            raise InputError(f"`problem.{setting}` must name every column once, got '{repeated[0]}' twice.")
    return names


def load_regression(file: DataFile, names: Choice) -> Regression:
    """Take inputs and targets from a file.

    Raises:
        InputError: If one is missing, is no vector or matrix of finite numbers, or has another number of rows.
    """
    parts = [
        {name: _as_columns(file, name, f"problem.{setting}") for name in chosen}
        for setting, chosen in zip(("inputs", "targets"), names, strict=True)
    ]
    lengths = {name: len(columns.values) for part in parts for name, columns in part.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{length} in '{name}'" for name, length in lengths.items())
        raise InputError(
            f"`{file.setting}` must have equally many rows of inputs and targets, got {file.path} with {found}."
        )
    inputs, targets = (_join(list(part.values())) for part in parts)
    return Regression(inputs, targets)


def _join(parts: list[Columns]) -> Columns:
    return Columns(
        tuple(name for part in parts for name in part.names), np.concatenate([part.values for part in parts], axis=1)
    )


def _as_columns(file: DataFile, name: str, setting: str) -> Columns:
    """A vector as one column, a matrix as several."""
    values = file.get(name, setting)
    if file.path.suffix.lower() == ".mat" and values.ndim == 2 and len(values) == 1:
        values = values.T  # MATLAB has no vectors: what was one is a matrix of one row
    if values.ndim not in (1, 2):
        raise InputError(
            f"`{setting}` must name vectors, or matrices with a row per observation, got '{name}' of shape "
            f"{values.shape}."
        )
    values = values[:, None] if values.ndim == 1 else values
    if values.shape[1] == 1:
        return Columns((name,), values)
    return Columns(tuple(f"{name}[{column}]" for column in range(values.shape[1])), values)
