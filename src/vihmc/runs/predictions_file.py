"""Predictions from a file to a file: what `vihmc predict` does.

A .npz file holds arrays as :class:`vihmc.predict.Prediction` has them. A .csv file has one row per input, or of an
operator one row per function and location, with the columns

::

    inputs…, mean, epistemic_std, total_std, q2.5, …, total_q2.5, …

where ``q2.5`` is the 2.5 % quantile of the model's prediction and ``total_q2.5`` that of a new observation. Columns are
prefixed by the name of the target where there are several.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from vihmc.data.data_file import DataFile, read_data_file
from vihmc.data.input_file import find_inputs
from vihmc.data.problem import Problem
from vihmc.errors import InputError
from vihmc.predict import Prediction, column_names
from vihmc.predict import as_table as prediction_table
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
    arrays = predicted.arrays()
    try:
        if out.suffix == ".npz":
            written = list(arrays)
            units = "units of the targets" if run.problem.units is None else run.problem.units.name
            known = {"inputs": places, "locations": locations, "method": method, "units": units}
            save_arrays(out, arrays | {name: value for name, value in known.items() if value is not None})
        else:
            table = as_table(run.problem, predicted, _columns_of(run.problem, file, places), locations)
            written = list(table.columns)
            write_atomically(out, table.to_csv(index=False))
    except OSError as error:
        raise InputError(f"`out` must be a writable file, got {out}: {error.strerror}.") from None
    return f"Wrote {method} predictions at {len(places)} inputs to {out}: {', '.join(written)}."


def as_table(
    problem: Problem, predicted: Prediction, inputs: pd.DataFrame, locations: np.ndarray | None = None
) -> pd.DataFrame:
    """Put predictions of a problem into a table: a row per input, or of an operator a row per function and location.

    Args:
        problem: What was learnt.
        predicted: The predictions.
        inputs: The inputs, a column each; of an operator only their number is used.
        locations: Of an operator, where its fields were predicted; at the training locations if not given.
    """
    if problem.locations is None:
        names, where = tuple(inputs.columns), None
    else:
        names, where = problem.input_names, np.asarray(problem.locations if locations is None else locations)
    values = inputs.to_numpy()
    return prediction_table(predicted, values, locations=where, input_names=names, target_names=problem.target_names)


def _columns_of(problem: Problem, file: DataFile, places: np.ndarray) -> pd.DataFrame:
    known = problem.input_names or (tuple(file.arrays) if file.is_table else ())
    rows = np.reshape(places, (len(places), -1))
    return pd.DataFrame(rows, columns=list(column_names(known, rows.shape[1:], "x")))
