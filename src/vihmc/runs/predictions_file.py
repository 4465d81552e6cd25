"""Predictions from a file to a file: what `vihmc predict` does.

A .npz file holds arrays as :class:`vihmc.predict.Prediction` has them. A .csv file has one row per input, or of an
operator one row per function and location, with the columns

::

    inputs…, mean, epistemic_std, total_std, q2.5, …, total_q2.5, …, calibrated_low, calibrated_high

where ``q2.5`` is the 2.5 % quantile of the model's prediction and ``total_q2.5`` that of a new observation. The last
two are there if the run was calibrated on held-out data. Columns are prefixed by the name of the target where there are
several.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from vihmc.data.data_file import DataFile, read_data_file
from vihmc.data.input_file import find_inputs
from vihmc.data.problem import Problem
from vihmc.diagnostics.conformal.calibrate import CalibratedBands
from vihmc.errors import InputError
from vihmc.predict import Prediction, column_names
from vihmc.predict import as_table as prediction_table
from vihmc.runs.calibrate_stored import is_at_training_locations, widen_stored
from vihmc.runs.files import save_arrays, write_atomically
from vihmc.runs.stored_run import load_run

SUFFIXES = (".csv", ".npz")


def predict_file(
    directory: Path,
    inputs: Path,
    out: Path,
    *,
    method: str,
    quantiles: Sequence[float] | None = None,
    overwrite: bool = False,
) -> str:
    """Predict at the inputs in a file, write the predictions, and return a sentence about what was written."""
    if out.suffix not in SUFFIXES:
        raise InputError(f"`out` must end in {' or '.join(SUFFIXES)}, got {out}. It is the file for the predictions.")
    if out.exists() and not overwrite:
        raise InputError(f"`out` must be a new file, got {out}, which exists. Replace it with --overwrite.")
    run, file = load_run(directory), read_data_file(inputs, "inputs")
    places, locations = find_inputs(run.problem, file)
    predicted = run.predict(places, locations=locations, method=method, quantiles=quantiles)
    bands = None
    if locations is None or is_at_training_locations(run.problem, locations):
        bands = widen_stored(run, places, method=method)
    arrays = predicted.arrays()
    if bands is not None:
        arrays |= {"calibrated_low": bands.low, "calibrated_high": bands.high, "is_outside": bands.is_outside}
    try:
        if out.suffix == ".npz":
            written = list(arrays)
            units = "units of the targets" if run.problem.units is None else run.problem.units.name
            known = {"inputs": places, "locations": locations, "method": method, "units": units}
            save_arrays(out, arrays | {name: value for name, value in known.items() if value is not None})
        else:
            columns = _columns_of(run.problem, file, places)
            table = as_table(run.problem, predicted, columns, locations, bands=bands)
            written = list(table.columns)
            write_atomically(out, table.to_csv(index=False))
    except OSError as error:
        raise InputError(f"`out` must be a writable file, got {out}: {error.strerror}.") from None
    notes = () if bands is None else bands.notes
    return " ".join((f"Wrote {method} predictions at {len(places)} inputs to {out}: {', '.join(written)}.", *notes))


def as_table(
    problem: Problem,
    predicted: Prediction,
    inputs: pd.DataFrame,
    locations: np.ndarray | None = None,
    *,
    bands: CalibratedBands | None = None,
) -> pd.DataFrame:
    """Put predictions of a problem into a table: a row per input, or of an operator a row per function and location.

    Args:
        problem: What was learnt.
        predicted: The predictions.
        inputs: The inputs, a column each; of an operator only their number is used.
        locations: Of an operator, where its fields were predicted; at the training locations if not given.
        bands: With a guarantee, if the run was calibrated.
    """
    if problem.locations is None:
        names, where = tuple(inputs.columns), None
    else:
        names, where = problem.input_names, np.asarray(problem.locations if locations is None else locations)
    values = inputs.to_numpy()
    extra = {} if bands is None else {"calibrated_low": bands.low, "calibrated_high": bands.high}
    return prediction_table(
        predicted, values, locations=where, input_names=names, target_names=problem.target_names, extra=extra
    )


def _columns_of(problem: Problem, file: DataFile, places: np.ndarray) -> pd.DataFrame:
    known = problem.input_names or (tuple(file.arrays) if file.is_table else ())
    rows = np.reshape(places, (len(places), -1))
    return pd.DataFrame(rows, columns=list(column_names(known, rows.shape[1:], "x")))
