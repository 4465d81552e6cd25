"""Functions, locations and fields of an operator, from a file."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from vihmc.data.data_file import DataFile, read_data_file
from vihmc.errors import InputError


class OperatorData(NamedTuple):
    """Functions, locations, and the field of every function at every location."""

    functions: Float[np.ndarray, "functions sensors"]
    locations: Float[np.ndarray, "locations dims"]
    fields: Float[np.ndarray, "functions locations"]

    def rows(self, chosen: np.ndarray | slice) -> "OperatorData":
        """Some of the functions and their fields."""
        return self._replace(functions=self.functions[chosen], fields=self.fields[chosen])


class OperatorNames(NamedTuple):
    """What the three arrays are called in a file."""

    functions: str = "branch_in"
    locations: str = "trunk_in"
    fields: str = "solution"


def read_operator_file(path: Path, setting: str) -> DataFile:
    """Read a .npz or .mat file."""
    return read_data_file(path, setting, kinds=(".npz", ".mat"))


def fit_together(functions: tuple[int, ...], locations: tuple[int, ...], fields: tuple[int, ...]) -> bool:
    """Whether shapes are those of functions, locations, and a field at every location for every function."""
    if not (len(functions) == len(locations) == 2 and len(fields) > 1):
        return False
    return fields[0] == functions[0] and math.prod(fields[1:]) == locations[0] and 0 not in functions + locations


def load_operator(file: DataFile, names: OperatorNames) -> OperatorData:
    """Take functions, locations and fields from a file; fields may have an axis per coordinate.

    Raises:
        InputError: If one is missing, does not hold finite numbers or has another shape.
    """
    missing = [name for name in names if name not in file.arrays]
    if missing:
        have = ", ".join(file.arrays) or "nothing"
        raise InputError(f"`{file.setting}` must hold {', '.join(missing)}, got {file.path} with {have}.")
    functions, locations, fields = (file.get(name, file.setting) for name in names)
    functions, locations = (_as_matrix(array) for array in (functions, locations))
    is_row = locations.shape == (1, np.prod(fields.shape[1:]))
    if is_row and file.path.suffix.lower() == ".mat":
        locations = locations.T  # MATLAB has no vectors: what was one is a matrix of one row
    if not fit_together(functions.shape, locations.shape, fields.shape):
        raise InputError(
            f"`{file.setting}` must hold {names.functions} (functions, sensors), {names.locations} (locations, dims) "
            f"and {names.fields} (functions, locations), "
            f"got shapes {functions.shape}, {locations.shape} and {fields.shape}."
        )
    return OperatorData(functions, locations, fields.reshape(len(functions), len(locations)))


def _as_matrix(array: np.ndarray) -> np.ndarray:
    """A vector is a column: one sensor, or one coordinate."""
    return array[:, None] if array.ndim == 1 else array
