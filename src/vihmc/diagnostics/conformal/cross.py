r"""Bands with a guarantee that give no data away: jackknife+ and CV+ (Barber et al. 2021).

Every training row i is predicted by the fit without its fold, k(i), and has a score there. The band at a new input x is

.. math::
    \Big[\ \text{the } \lfloor \alpha (n+1) \rfloor\text{-th smallest of } c_{k(i)}(x) - s_i\, w_{k(i)}(x), \quad
    \text{the } \lceil (1-\alpha)(n+1) \rceil\text{-th smallest of } c_{k(i)}(x) + s_i\, w_{k(i)}(x)\ \Big]

It holds a new observation with a probability of at least 1 − 2α, less at most :math:`\sqrt{2/n}` with folds of more
than one row, for any model; in practice near 1 − α. With a fold per row it is the jackknife+.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from vihmc.diagnostics.conformal.bands import posterior_band
from vihmc.diagnostics.conformal.quantile import check_level, check_number, rank_for
from vihmc.errors import InputError
from vihmc.predict import Prediction


class CrossBands(NamedTuple):
    """Bands from cross-validation.

    Attributes:
        low: Lower end, of the shape of the predictions.
        high: Upper end.
        guarantee: Least probability with which a new observation is held.
    """

    low: np.ndarray
    high: np.ndarray
    guarantee: float


def cross_calibrate(
    left_out: Prediction,
    targets: np.ndarray,
    folds: Int[np.ndarray, " rows"],
    predictions: Sequence[Prediction],
    *,
    level: float = 0.95,
    shape: str = "std",
) -> CrossBands:
    """Bands at new inputs from fits that left out one fold each.

    Args:
        left_out: Of every training row, by the fit without its fold.
        targets: Of the training rows.
        folds: Number of the fold of each row, 0, 1, ….
        predictions: At the new inputs, by the fit without each fold.
        level: 1 − α.
        shape: As for :func:`vihmc.diagnostics.conformal.calibrate`.

    Raises:
        InputError: If folds and predictions do not fit, or rows are too few for the level.
    """
    check_level("level", level)
    truth, number = np.asarray(targets, np.float64), np.asarray(folds)
    if number.shape != (len(truth),) or set(number.tolist()) != set(range(len(predictions))):
        raise InputError(
            f"`folds` must number a fold of `predictions`, which are {len(predictions)}, for each of the {len(truth)} "
            f"rows, got {len(set(number.tolist()))} numbers for {number.size} rows."
        )
    check_number(len(truth), level, "rows")
    scores = posterior_band(left_out, level, shape).scores(truth)
    bands = [posterior_band(one, level, shape) for one in predictions]
    lows, highs = [], []
    for fold, band in enumerate(bands):
        of_rows = scores[number == fold]
        low, high = band.times(of_rows.reshape(len(of_rows), 1, *of_rows.shape[1:]))
        lows.append(low)
        highs.append(high)
    # The floor(alpha (n + 1))-th smallest is the mirror image of the ceil((1 - alpha)(n + 1))-th.
    rank = rank_for(level, len(truth))
    low = -np.partition(-np.concatenate(lows), rank - 1, axis=0)[rank - 1]
    high = np.partition(np.concatenate(highs), rank - 1, axis=0)[rank - 1]
    slack = 0.0 if len(predictions) == len(truth) else _slack(len(truth), len(predictions))
    return CrossBands(low, high, max(0.0, 1 - 2 * (1 - level) - slack))


def _slack(num_rows: int, num_folds: int) -> float:
    """What folds of several rows may cost (Barber et al. 2021, theorem 4)."""
    by_folds = 2 * (1 - 1 / num_folds) / (num_rows / num_folds + 1)
    return min(by_folds, (1 - num_folds / num_rows) / (num_folds + 1), math.sqrt(2 / num_rows))
