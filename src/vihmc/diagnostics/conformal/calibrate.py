r"""Split conformal calibration: the factor that makes the posterior's bands hold, whatever the model.

With the scores of n held-out cases (:mod:`~vihmc.diagnostics.conformal.bands`) the factor is their
:math:`\lceil (n+1)\,\text{level}\rceil`-th smallest. If new cases are exchangeable with them, the band times this
factor holds a new one with a probability of at least `level`, for any model, prior and chains. The posterior says
*where* errors are large; the factor says how far it is off overall: 1 if its bands hold by themselves, 2 if they must
be twice as wide.

A case of a table is a row, and every output has a factor of its own. A case of an operator is a **function**: values at
neighbouring locations are not exchangeable. With probability `level` = 1 − δ over new functions at least `share` =
1 − α of the locations are inside (risk control of the share outside, as Ma et al. 2024): the score of a function is
the factor at which the band holds that share of its locations. With `share` = 1 the band is simultaneous.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from vihmc.diagnostics.conformal.bands import posterior_band
from vihmc.diagnostics.conformal.groups import GroupCoverage, by_width, coverage
from vihmc.diagnostics.conformal.quantile import (
    check_level,
    check_number,
    conformal_quantile,
    is_held_by_others,
    rank_for,
)
from vihmc.errors import InputError
from vihmc.predict import Prediction

_NUM_REGIONS = 4
_SIGNIFICANCE = 0.01


class CalibratedBands(NamedTuple):
    """Bands with a guarantee; arrays have the shape of the predictions.

    Attributes:
        low: Lower end.
        high: Upper end.
        is_outside: For every row or function, whether its epistemic std is larger than that of all calibration cases:
            the guarantee says nothing about such cases.
        notes: Sentences to read before use.
    """

    low: np.ndarray
    high: np.ndarray
    is_outside: np.ndarray
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Calibration:
    """What held-out data say about the posterior's bands. Make one with :func:`calibrate`.

    Attributes:
        factor: By which the posterior's bands are widened: one per output, or one for all of a field.
        level: Probability with which a new case is held.
        share: Of an operator, the share of locations that must be inside; None for rows of a table.
        shape: What the bands are made of, `std` or `quantiles`.
        num_cases: Calibration rows or functions.
        guarantee: Probability with which a new case is held: at least this, and exactly this without equal scores.
        posterior_coverage: Share of the calibration cases that the posterior's own band holds, per factor.
        largest_epistemic_std: Of the calibration cases, per factor; of a field, its root mean square.
        groups: Coverage by predicted width, by output or by region.
        notes: Sentences about the calibration data.
    """

    factor: tuple[float, ...]
    level: float
    share: float | None
    shape: str
    num_cases: int
    guarantee: float
    posterior_coverage: tuple[float, ...]
    largest_epistemic_std: tuple[float, ...]
    groups: tuple[GroupCoverage, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def band_level(self) -> float:
        """Level of the posterior's band that is widened."""
        return band_level_of(self.level, self.share)

    @property
    def sentence(self) -> str:
        """The outcome in words, the factor first."""
        shown = ", ".join(f"{one:.3g}" for one in self.factor)
        what = "row" if self.share is None else "function"
        inside = {None: "the observation", 1.0: "the whole field"}.get(
            self.share, f"at least {100 * (self.share or 0):g} % of the field"
        )
        own = ", ".join(f"{100 * one:.3g} %" for one in self.posterior_coverage)
        return (
            f"Factor {shown}: the posterior's {100 * self.band_level:g} % bands times this hold {inside} of a new "
            f"{what} with probability {100 * self.level:g} %, by {self.num_cases} held-out {what}s. By themselves they "
            f"hold {own} of these."
        )

    def widen(self, prediction: Prediction) -> CalibratedBands:
        """Calibrated bands of new predictions.

        Raises:
            InputError: If they have another number of outputs.
        """
        band = posterior_band(prediction, self.band_level, self.shape)
        factor = np.asarray(self.factor)
        if self.share is None and factor.size != _as_rows(band.center).shape[1]:
            raise InputError(
                f"`prediction` must have {factor.size} outputs, as the calibration data, got {band.center.shape[1:]}."
            )
        low, high = band.times(factor if self.share is None and band.center.ndim > 1 else factor[0])
        epistemic = _size_of_error(prediction, is_field=self.share is not None)
        is_outside = np.any(epistemic > np.asarray(self.largest_epistemic_std), axis=1)
        return CalibratedBands(low, high, is_outside, self._about_outside(is_outside))

    def _about_outside(self, is_outside: np.ndarray) -> tuple[str, ...]:
        """A sentence where more new cases stand out than chance explains."""
        count, total = int(np.sum(is_outside)), len(is_outside)
        # Each output of an exchangeable case exceeds all n others with probability 1 / (n + 1).
        expected = total * len(self.factor) / (self.num_cases + 1)
        if count <= expected + 3 * math.sqrt(expected + 1):
            return ()
        largest = ", ".join(f"{one:.3g}" for one in self.largest_epistemic_std)
        return (
            f"{count} of {total} new inputs have a larger epistemic std than all {self.num_cases} calibration inputs "
            f"(largest {largest}): they lie outside the calibration data, and the guarantee does not hold for them.",
        )


def band_level_of(level: float, share: float | None) -> float:
    """Level of the posterior's band that is widened: of fields, that of the share of locations it should hold."""
    return level if share is None or share == 1 else share


def calibrate(
    prediction: Prediction,
    targets: np.ndarray,
    *,
    level: float = 0.95,
    share: float | None = None,
    shape: str = "std",
    weights: np.ndarray | None = None,
    names: tuple[str, ...] = (),
) -> Calibration:
    """Calibrate bands on held-out cases.

    Args:
        prediction: At the inputs of the held-out cases, which nothing was fitted to.
        targets: What was observed there.
        level: Probability with which a new row, or function, is to be held.
        share: For fields: share of the locations that must be inside; 1 for all of them. None for tables.
        shape: `std` for mean ± a multiple of the total std, `quantiles` for skewed predictions.
        weights: Zero for values of a field that were not observed.
        names: Of the outputs, for the groups.

    Raises:
        InputError: If there are too few cases for the level, or shapes disagree.
    """
    check_level("level", level)
    if share is not None and not 0 < share <= 1:
        raise InputError(f"`share` must be above 0 and at most 1, got {share:g}. It is a share of the locations.")
    truth = np.asarray(targets, np.float64)
    if truth.shape != np.shape(prediction.mean):
        raise InputError(
            f"`targets` must have the shape of the prediction, {prediction.mean.shape}, got {truth.shape}."
        )
    if weights is not None and share is None:
        raise InputError("`weights` must be left out for a table, whose rows are all observed, got some.")
    check_number(len(truth), level, "rows" if share is None else "functions")
    band = posterior_band(prediction, band_level_of(level, share), shape)
    pointwise = _as_rows(band.scores(truth))
    scores = pointwise if share is None else field_scores(pointwise, share, weights)[:, None]
    epistemic = _size_of_error(prediction, is_field=share is not None)
    factor = conformal_quantile(scores, level)
    inside, held = scores <= 1, is_held_by_others(scores, level)
    widths = _as_rows(band.below + band.above)
    if share is None:
        groups = _groups_of_outputs(widths, level, inside, held, names)
    else:
        groups = by_width(widths.mean(axis=1), level=level, posterior=inside[:, 0], calibrated=held[:, 0])
        groups += _groups_of_regions(pointwise, factor[0], share, weights)
    found = Calibration(
        factor=tuple(factor.tolist()),
        level=level,
        share=share,
        shape=shape,
        num_cases=len(scores),
        guarantee=rank_for(level, len(scores)) / (len(scores) + 1),
        posterior_coverage=tuple(inside.mean(axis=0).tolist()),
        largest_epistemic_std=tuple(epistemic.max(axis=0).tolist()),
        groups=groups,
        notes=tuple(_describe(one) for one in groups if one.is_bad),
    )
    return found


def field_scores(
    pointwise: Float[np.ndarray, "functions locations"], share: float, weights: np.ndarray | None = None
) -> Float[np.ndarray, " functions"]:
    """For every function, the smallest factor at which at least `share` of its observed locations are inside."""
    exact = Fraction(share).limit_denominator(10**6)
    if weights is None:
        rank = math.ceil(exact * pointwise.shape[1])
        return np.partition(pointwise, rank - 1, axis=1)[:, rank - 1]
    found = np.zeros(len(pointwise))
    for index, (row, weight) in enumerate(zip(pointwise, np.asarray(weights), strict=True)):
        observed = np.sort(row[weight > 0])
        if not observed.size:
            raise InputError(f"`weights` must leave at least one value of every function, got none of number {index}.")
        found[index] = observed[math.ceil(exact * observed.size) - 1]
    return found


def _as_rows(values: np.ndarray) -> np.ndarray:
    array = np.asarray(values)
    return array.reshape(len(array), -1)


def _size_of_error(prediction: Prediction, *, is_field: bool) -> np.ndarray:
    """Epistemic std of every row and output, or of a whole field."""
    std = _as_rows(np.asarray(prediction.epistemic_std, np.float64))
    return np.sqrt(np.mean(std**2, axis=1, keepdims=True)) if is_field else std


def _groups_of_outputs(
    widths: np.ndarray, level: float, inside: np.ndarray, held: np.ndarray, names: tuple[str, ...]
) -> tuple[GroupCoverage, ...]:
    """Every output, and quarters of its bands by their width."""
    count = widths.shape[1]
    known = names if len(names) == count else tuple(f"output {index}" for index in range(count))
    groups: list[GroupCoverage] = []
    for index, name in enumerate(known):
        of_one = {"level": level, "posterior": inside[:, index], "calibrated": held[:, index]}
        if count > 1:
            groups.append(coverage(name, **of_one))
        groups += by_width(widths[:, index], **of_one, of=f" of {name}" if count > 1 else "")
    return tuple(groups)


def _groups_of_regions(
    pointwise: np.ndarray, factor: float, share: float, weights: np.ndarray | None
) -> tuple[GroupCoverage, ...]:
    """Quarters of the locations, in their order: the mean share of each that is inside."""
    is_observed = np.ones(pointwise.shape, bool) if weights is None else np.asarray(weights) > 0
    groups = []
    for number, part in enumerate(np.array_split(np.arange(pointwise.shape[1]), _NUM_REGIONS)):
        observed = is_observed[:, part]
        if not np.any(observed):
            continue
        posterior, calibrated = (float(np.mean(pointwise[:, part] <= one, where=observed)) for one in (1.0, factor))
        title = f"locations {part[0]} to {part[-1]} (region {number + 1})"
        groups.append(GroupCoverage(title, len(pointwise), share, posterior, calibrated))
    return tuple(groups)


def _describe(group: GroupCoverage) -> str:
    return (
        f"The calibrated bands hold {100 * group.calibrated:.3g} % of the {group.count} cases in the "
        f"{group.title}, where {100 * group.level:g} % are asked for: the guarantee is an average, and fails there."
    )
