"""Coverage by group: a guarantee on average can hide a corner where the bands fail.

Each calibration case is judged by the band that the others are calibrated to, so that these numbers are honest although
the same cases were calibrated on.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats

NUM_PARTS = 4
_SIGNIFICANCE = 0.01


class GroupCoverage(NamedTuple):
    """Coverage of some of the calibration cases.

    Attributes:
        title: Which.
        count: How many cases; of fields, functions.
        level: What should be covered.
        posterior: Share inside the posterior's band.
        calibrated: Share inside the calibrated band.
    """

    title: str
    count: int
    level: float
    posterior: float
    calibrated: float

    @property
    def is_bad(self) -> bool:
        """Whether so low a calibrated coverage has a probability below 1 % if the band were right here."""
        held = round(self.calibrated * self.count)
        return bool(stats.binom.cdf(held, self.count, self.level) < _SIGNIFICANCE)


def by_width(
    width: np.ndarray, *, level: float, posterior: np.ndarray, calibrated: np.ndarray, of: str = ""
) -> tuple[GroupCoverage, ...]:
    """Coverage of quarters of the cases, from narrow to wide bands."""
    words = ("narrowest", "second", "third", "widest")
    parts = np.array_split(np.argsort(width, kind="stable"), min(NUM_PARTS, len(width)))
    titles = words if len(parts) == NUM_PARTS else tuple(f"part {index + 1}" for index in range(len(parts)))
    return tuple(
        coverage(f"{title} quarter of the bands{of}", level=level, posterior=posterior[one], calibrated=calibrated[one])
        for title, one in zip(titles, parts, strict=True)
    )


def coverage(title: str, *, level: float, posterior: np.ndarray, calibrated: np.ndarray) -> GroupCoverage:
    """Coverage of one group."""
    return GroupCoverage(title, len(posterior), level, float(np.mean(posterior)), float(np.mean(calibrated)))
