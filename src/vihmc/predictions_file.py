"""Predictions from a file to a file: what `vihmc predict` does."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vihmc.errors import InputError
from vihmc.files import save_arrays
from vihmc.operator import OperatorPosterior
from vihmc.problems.data_file import DataFile, read_data_file
from vihmc.stored_run import StoredRun, load

INPUT_NAMES = ("inputs", "X")
FUNCTION_NAMES = ("functions", "branch_in", "inputs")
LOCATION_NAMES = ("locations", "trunk_in")


def predict_file(
    directory: Path,
    inputs: Path,
    out: Path,
    *,
    method: str,
    quantiles: Sequence[float] | None = None,
    overwrite: bool = False,
) -> str:
    """Predict at the inputs in a file, write what came out, and say what was written."""
    if out.suffix != ".npz":
        raise InputError(f"`out` must end in .npz, got {out}.")
    if out.exists() and not overwrite:
        raise InputError(f"`out` must be a new file, got {out}, which exists; --overwrite takes its place.")
    run, file = load(directory), read_data_file(inputs, "inputs")
    places, locations = find_inputs(run, file)
    predicted = run.predict(places, locations=locations, method=method, quantiles=quantiles)
    arrays = {name: value for name, value in predicted._asdict().items() if value is not None}
    units = run.problem.units
    try:
        save_arrays(
            out,
            arrays
            | {"inputs": places, "method": method, "units": "units of the targets" if units is None else units.name}
            | ({} if locations is None else {"locations": locations}),
        )
    except OSError as error:
        raise InputError(f"`out` must be a file that can be written, got {out}: {error.strerror}.") from None
    return f"Predictions by {method} at {len(places)} inputs are in {out}: {', '.join(arrays)}"


def find_inputs(run: StoredRun, file: DataFile) -> tuple[np.ndarray, np.ndarray | None]:
    """Find inputs, and locations of an operator, by the names that they had in training."""
    names = run.problem.input_names
    if isinstance(run.problem.posterior, OperatorPosterior):
        locations = next((name for name in LOCATION_NAMES if name in file.arrays), None)
        return _get(file, FUNCTION_NAMES), None if locations is None else file.get(locations, "inputs")
    if names and (file.is_table or set(names) <= set(file.arrays)):
        return np.stack([file.get(name, "inputs") for name in names], axis=1), None
    if file.is_table:
        return np.stack([file.get(name, "inputs") for name in file.arrays], axis=1), None
    return _get(file, INPUT_NAMES), None


def _get(file: DataFile, names: Sequence[str]) -> np.ndarray:
    known = [name for name in names if name in file.arrays]
    if not known and len(file.arrays) == 1:
        known = list(file.arrays)
    return file.get(known[0] if known else names[0], "inputs")
