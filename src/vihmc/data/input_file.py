"""Inputs to predict at, from a file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vihmc.data.data_file import DataFile, read_data_file
from vihmc.data.problem import Problem
from vihmc.errors import InputError

INPUT_NAMES = ("inputs", "X")
FUNCTION_NAMES = ("functions", "branch_in", "inputs")
LOCATION_NAMES = ("locations", "trunk_in")
TARGET_NAMES, FIELD_NAMES = ("targets", "y"), ("fields", "solution", "targets")


def read_inputs(problem: Problem, path: Path, argument: str) -> np.ndarray:
    """Read inputs of a problem; of an operator, its functions."""
    return find_inputs(problem, read_data_file(path, argument))[0]


def find_inputs(problem: Problem, file: DataFile) -> tuple[np.ndarray, np.ndarray | None]:
    """Find inputs, and locations of an operator, by the names that they have in the training data."""
    names = problem.input_names
    if problem.locations is not None:
        locations = next((name for name in LOCATION_NAMES if name in file.arrays), None)
        return _get(file, FUNCTION_NAMES), None if locations is None else file.get(locations, "inputs")
    missing = [name for name in names if name not in file.arrays]
    if missing and file.is_table:
        raise InputError(
            f"`{file.setting}` must have the input columns of the training data, {', '.join(names)}, got {file.path} "
            f"with {', '.join(file.arrays)}."
        )
    if names and not missing:
        return np.stack([file.get(name, "inputs") for name in names], axis=1), None
    if file.is_table:
        return np.stack([file.get(name, "inputs") for name in file.arrays], axis=1), None
    return _get(file, INPUT_NAMES), None


def find_targets(problem: Problem, file: DataFile) -> np.ndarray:
    """Find what was observed, by the names that targets have in the training data; a row per input."""
    names = problem.target_names
    if names and all(name in file.arrays for name in names):
        columns = [file.get(name, file.setting) for name in names]
        return columns[0].reshape(len(columns[0]), -1) if len(columns) == 1 else np.stack(columns, axis=1)
    known = [name for name in (TARGET_NAMES if problem.locations is None else FIELD_NAMES) if name in file.arrays]
    if not known:
        wanted = ", ".join(names or TARGET_NAMES)
        raise InputError(
            f"`{file.setting}` must have the targets of the training data, {wanted}, got {file.path} with "
            f"{', '.join(file.arrays)}."
        )
    values = file.get(known[0], file.setting)
    return values.reshape(len(values), -1)


def _get(file: DataFile, names: Sequence[str]) -> np.ndarray:
    known = [name for name in names if name in file.arrays]
    if not known and len(file.arrays) == 1:
        known = list(file.arrays)
    return file.get(known[0] if known else names[0], "inputs")
