"""Predictions from a file to a file: what `vihmc predict` does."""

from collections.abc import Sequence
from pathlib import Path

from vihmc.data.data_file import read_data_file
from vihmc.data.input_file import find_inputs
from vihmc.errors import InputError
from vihmc.runs.files import save_arrays
from vihmc.runs.stored_run import load


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
    places, locations = find_inputs(run.problem, file)
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
