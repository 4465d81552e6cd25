r"""The posterior's own band, as a centre and a width to either side, and how far an observation is from it.

.. math::
    s = \max\Big(\frac{c - y}{w_-},\ \frac{y - c}{w_+}\Big)

An observation is inside the band times a factor if s is at most that factor. Two choices of c and w:

- ``std``: the mean and :math:`z_{level}` times the total std, to both sides. The default.
- ``quantiles``: the median and the distances to the quantiles at the ends of the band, for skewed predictions: a
  conformalised quantile regression (Romano et al. 2019) whose correction is a factor (Sesia and Candès 2020), not a
  constant, so that wide bands stay wide.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats

from vihmc.errors import InputError
from vihmc.predict import Prediction

SHAPES = ("std", "quantiles")
_SAME_LEVEL = 1e-6


class Band(NamedTuple):
    """A band around the predictions; arrays have their shape.

    Attributes:
        center: Of the band.
        below: Width below the centre.
        above: Width above it.
    """

    center: np.ndarray
    below: np.ndarray
    above: np.ndarray

    def scores(self, targets: np.ndarray) -> np.ndarray:
        """The factor at which the band reaches each observation; infinite if its width is zero."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.maximum((self.center - targets) / self.below, (targets - self.center) / self.above)
        # On the centre of a band without width.
        return np.where(np.isnan(found), 0.0, found)

    def times(self, factor: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper end of the band times a factor."""
        return self.center - factor * self.below, self.center + factor * self.above


def posterior_band(prediction: Prediction, level: float, shape: str = "std") -> Band:
    """The posterior's central band for a new observation, in float64.

    Raises:
        InputError: If the prediction lacks the quantiles that it needs.
    """
    if shape not in SHAPES:
        raise InputError(f"`shape` must be 'std' or 'quantiles', got '{shape}'.")
    if shape == "std":
        width = stats.norm.ppf((1 + level) / 2) * np.asarray(prediction.total_std, np.float64)
        return Band(np.asarray(prediction.mean, np.float64), width, width)
    low, center, high = (_quantile(prediction, one) for one in ((1 - level) / 2, 0.5, (1 + level) / 2))
    return Band(center, center - low, high - center)


def _quantile(prediction: Prediction, level: float) -> np.ndarray:
    found = np.flatnonzero(np.abs(np.asarray(prediction.levels) - level) < _SAME_LEVEL)
    if not found.size or not len(prediction.total_quantiles):
        have = ", ".join(f"{one:g}" for one in prediction.levels) if len(prediction.total_quantiles) else "none"
        raise InputError(f"`prediction` must have the {level:g} quantile of a new observation, got {have}.")
    return np.asarray(prediction.total_quantiles[found[0]], np.float64)
