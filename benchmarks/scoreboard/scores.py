"""A predictive distribution, and its scores on test rows.

Log density, CRPS, coverage, width and RMSE are averages by :mod:`vihmc.diagnostics.scores`.
"""

from typing import Any

import numpy as np
from scipy import special

from scoreboard.predictive import Predictive, log_density
from vihmc.diagnostics.scores import BANDS, Pointwise, summarise

DISTANCE_LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
EVERY_TEST_ROW = 3
MAX_SHIFTS = 64
NUM_BISECTIONS = 40


def score(predictive: Predictive, observed: np.ndarray) -> dict[str, Any]:
    """Scores in the units of the prediction; None is the log density of samples.

    A peer with bands of its own has their coverage and width, and beside them those of its distribution.

    Raises:
        ValueError: If a mean, a std or the end of a band is not finite.
    """
    ends = [end for pair in (predictive.bands or {}).values() for end in pair]
    for values in (predictive.means, predictive.stds, *ends):
        if values is not None and not np.all(np.isfinite(values)):
            raise ValueError("the prediction is not finite")
    found = summarise(_pointwise(predictive, observed), observed).as_dict()
    if predictive.stds is None:
        found["log_predictive_density"] = None
    if predictive.bands is not None:
        found |= {f"{name}_of_distribution": dict(found[name]) for name in ("coverage", "width")}
        for name, (lower, upper) in predictive.bands.items():
            found["coverage"][name] = float(np.mean((lower <= observed) & (observed <= upper)))
            found["width"][name] = float(np.mean(upper - lower))
    return found


def quantiles(predictive: Predictive, levels: np.ndarray) -> np.ndarray:
    """Quantiles of an observation, levels along the first axis."""
    if predictive.stds is None:
        return np.quantile(predictive.means, levels, axis=0)
    stds = np.broadcast_to(predictive.stds, predictive.means.shape)
    ends = predictive.means + 8 * stds, predictive.means - 8 * stds
    return np.stack([_bisect(predictive.means, stds, level, ends[1].min(0), ends[0].max(0)) for level in levels])


def table_of_quantiles(predictive: Predictive) -> list[list[float]]:
    """Quantiles at some of the test inputs, for the distance to full HMC: rounded, because they are stored."""
    found = quantiles(predictive, DISTANCE_LEVELS)[:, ::EVERY_TEST_ROW, 0]
    return [[float(f"{value:.4g}") for value in row] for row in found]


def _pointwise(predictive: Predictive, observed: np.ndarray) -> Pointwise:
    means, is_sample = predictive.means, predictive.stds is None
    stds = np.broadcast_to(0.0 if is_sample else predictive.stds, means.shape)
    levels = np.array([end for level in BANDS.values() for end in ((1 - level) / 2, (1 + level) / 2)])
    ends = quantiles(predictive, levels)
    if is_sample:
        density, pit = np.zeros(observed.shape), np.mean(means <= observed, axis=0)
    else:
        density = log_density(means, stds, observed)
        pit = np.mean(special.ndtr((observed - means) / stds), axis=0)
    crps = np.mean(_expected_distance(observed - means, stds), axis=0) - 0.5 * _own_distance(means, stds)
    return Pointwise(means.mean(axis=0), density, crps, pit, ends[1::2] - ends[::2])


def _own_distance(means: np.ndarray, stds: np.ndarray) -> np.ndarray:
    """E|Y - Y'| of a mixture: over all pairs of components, or without bias over some, evenly spread."""
    count = len(means)
    shifts = np.arange(count)
    if count > MAX_SHIFTS:  # a pair of one component with itself, and of two others at random distances in the list
        shifts = np.random.default_rng(0).choice(np.arange(1, count), MAX_SHIFTS, replace=False)
    total = np.zeros(means.shape[1:])
    for shift in shifts:
        difference, spread = means - np.roll(means, shift, 0), np.hypot(stds, np.roll(stds, shift, 0))
        total += _expected_distance(difference, spread).mean(axis=0)
    if count <= MAX_SHIFTS:
        return total / count
    own = _expected_distance(np.zeros(means.shape), np.sqrt(2) * stds).mean(axis=0)
    return own / count + total / len(shifts) * (count - 1) / count


def _expected_distance(difference: np.ndarray, std: np.ndarray) -> np.ndarray:
    """E|Z| of a Gaussian Z with the given mean and std, which may be zero."""
    z = np.divide(difference, std, out=np.zeros_like(difference), where=std > 0)
    smooth = difference * (2 * special.ndtr(z) - 1) + 2 * std * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return np.where(std > 0, smooth, np.abs(difference))


def _bisect(means: np.ndarray, stds: np.ndarray, level: float, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    for _ in range(NUM_BISECTIONS):
        middle = 0.5 * (low + high)
        is_below = np.mean(special.ndtr((middle - means) / stds), axis=0) < level
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return 0.5 * (low + high)
