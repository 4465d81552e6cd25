"""Calibration of a finished run on held-out data that came later: what `vihmc calibrate` and `result.calibrate` do.

What was found is in ``summary.json``, and predictions of the run then have calibrated bands beside the posterior's.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from vihmc.data.data_file import read_data_file
from vihmc.data.input_file import find_inputs, find_targets
from vihmc.data.problem import Problem
from vihmc.diagnostics.conformal.calibrate import CalibratedBands, Calibration, band_level_of, calibrate
from vihmc.diagnostics.conformal.checks import check_rows
from vihmc.diagnostics.conformal.quantile import check_number
from vihmc.errors import InputError
from vihmc.runs.calibrated import check_no_classes, default_levels, from_table
from vihmc.runs.evaluation import VIHMC
from vihmc.runs.run import Run
from vihmc.runs.stored_run import StoredRun


def calibrate_stored(
    run: StoredRun, file: Path, *, level: float | None = None, share: float | None = None, shape: str = "std"
) -> Calibration:
    """Calibrate a finished run on held-out data in a file.

    Args:
        run: The run.
        file: With inputs and targets, named as in the training data.
        level: Probability with which a new row or function is held; by default, that of the run's bands, 0.9 of
            functions.
        share: Of an operator, the share of the locations that must be inside; by default, that of the run's bands.
        shape: `std` or `quantiles`.

    Raises:
        InputError: If rows were trained on, are too few for the level, or do not fit the model.
    """
    problem, data = run.problem, read_data_file(file, "data")
    (inputs, locations), targets = find_inputs(problem, data), find_targets(problem, data)
    if locations is not None and not is_at_training_locations(problem, locations):
        raise InputError(f"`data` must have the locations of the training data, got {file} with others.")
    return calibrate_finished(run, inputs, targets, level=level, share=share, shape=shape)


def calibrate_finished(
    run: Run,
    inputs: np.ndarray,
    targets: np.ndarray,
    *,
    level: float | None = None,
    share: float | None = None,
    shape: str = "std",
) -> Calibration:
    """Calibrate a finished run on held-out arrays; arguments as for :func:`calibrate_stored`."""
    problem = run.problem
    check_no_classes(problem)
    is_field, own = problem.locations is not None, default_levels(problem, run.config)
    if share is not None and not is_field:
        raise InputError(f"`share` must be left out for {problem.name}, which is no operator, got {share:g}.")
    level, share = own[0] if level is None else level, own[1] if share is None else share
    what = "functions" if is_field else "rows"
    trained, known = np.asarray(problem.posterior.inputs), np.asarray(problem.posterior.targets)
    if is_field:  # a function is known by its values at the sensors, whatever its field
        checked = check_rows(inputs, inputs[:, 0], training_inputs=trained, training_targets=trained[:, 0], what=what)
    else:
        checked = check_rows(inputs, targets, training_inputs=trained, training_targets=known, what=what)
    check_number(len(checked.index), level, what)
    levels = needed_quantiles(band_level_of(level, share))
    predicted = run.predict(inputs[checked.index], quantiles=levels, observations=True)
    found = calibrate(
        predicted,
        targets.reshape(len(targets), *np.shape(predicted.mean)[1:])[checked.index],
        level=level,
        share=share,
        shape=shape,
        names=problem.target_names,
    )
    return replace(found, notes=(*checked.notes, *found.notes))


def needed_quantiles(band_level: float) -> tuple[float, float, float]:
    """Levels that bands of either shape are made from."""
    return (1 - band_level) / 2, 0.5, (1 + band_level) / 2


def is_at_training_locations(problem: Problem, locations: np.ndarray) -> bool:
    """Whether locations of an operator are those of the training data, for which functions were calibrated."""
    known = np.asarray(problem.training_locations)
    given = np.asarray(locations, known.dtype).reshape(len(locations), -1)
    return given.shape == known.shape and bool(np.array_equal(given, known))


def widen_stored(run: StoredRun, inputs: np.ndarray, *, method: str) -> CalibratedBands | None:
    """Calibrated bands at new inputs; None if the run was not calibrated, or this is not the method that was."""
    table = run.summary.get("calibration")
    if table is None or method != VIHMC:
        return None
    return widen(run, from_table(table), inputs)


def widen(run: Run, found: Calibration, inputs: np.ndarray) -> CalibratedBands:
    """Calibrated bands of a finished run at new inputs."""
    return found.widen(run.predict(inputs, quantiles=needed_quantiles(found.band_level), observations=True))
