"""Bands with a guarantee in a run: calibration on the share of the data that was kept for it.

The share is ``problem.calibration_share``; what was found is in ``summary.json``. A finished run is calibrated by
:mod:`vihmc.runs.calibrate_stored`.
"""

from dataclasses import fields
from typing import Any

import numpy as np

from vihmc.data.problem import Problem
from vihmc.diagnostics.conformal.calibrate import Calibration, calibrate
from vihmc.diagnostics.conformal.groups import GroupCoverage
from vihmc.diagnostics.conformal.quantile import check_number
from vihmc.errors import InputError
from vihmc.predict import Prediction
from vihmc.runs.config import RunConfig
from vihmc.runs.scoring import is_of_classes

FIELD_LEVEL = 0.9
"""Probability with which a new function is to be held; of its locations, the share that the run's bands are for."""


def default_levels(problem: Problem, config: RunConfig) -> tuple[float, float | None]:
    """Level and share: those of the run's bands."""
    quantiles = config.prediction.quantiles
    level = round(float(quantiles[-1] - quantiles[0]), 9)
    return (level, None) if problem.locations is None else (FIELD_LEVEL, level)


def check_calibration(problem: Problem, config: RunConfig) -> None:
    """Refuse a run whose calibration cannot work, before anything is computed."""
    if problem.calibration is None:
        return
    check_no_classes(problem)
    level, share = default_levels(problem, config)
    check_number(np.shape(problem.calibration.targets)[0], level, "rows" if share is None else "functions")


def check_no_classes(problem: Problem) -> None:
    """Refuse labels: they have no bands."""
    if is_of_classes(problem.posterior.likelihood):
        raise InputError(f"`data` must have numbers as targets to calibrate bands, got classes in {problem.name}.")


def calibrate_problem(problem: Problem, config: RunConfig, prediction: Prediction) -> Calibration | None:
    """Calibrate a run on the share of the data that it kept for it; `prediction` is at their inputs."""
    if problem.calibration is None:
        return None
    level, share = default_levels(problem, config)
    targets = np.asarray(problem.calibration.targets)
    return calibrate(prediction, targets, level=level, share=share, names=problem.target_names)


def as_table(found: Calibration) -> dict[str, Any]:
    """Plain values for ``summary.json``, the factor first."""
    return _fields(found) | {"groups": [one._asdict() for one in found.groups], "sentence": found.sentence}


def from_table(table: dict[str, Any]) -> Calibration:
    """What :func:`as_table` wrote."""
    values: dict[str, Any] = {one.name: table[one.name] for one in fields(Calibration)}
    several = ("factor", "posterior_coverage", "largest_epistemic_std", "notes")
    values |= {name: tuple(values[name]) for name in several}
    return Calibration(**values | {"groups": tuple(GroupCoverage(**one) for one in table["groups"])})


def _fields(found: Calibration) -> dict[str, Any]:
    return {one.name: getattr(found, one.name) for one in fields(found)}
