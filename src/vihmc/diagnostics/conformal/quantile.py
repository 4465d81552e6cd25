r"""The quantile behind the guarantee.

If n scores and that of a new case are exchangeable, each of the n + 1 ranks of the new one is as probable as the other.
The k-th smallest of the n scores is therefore at least the new one with a probability of at least

.. math:: \frac{k}{n + 1}, \qquad k = \lceil (n + 1)\, \text{level} \rceil

and exactly that, if no two are equal (Vovk et al. 2005; Lei et al. 2018). Nothing is assumed of the model.
"""

import math
from fractions import Fraction

import numpy as np
from jaxtyping import Float

from vihmc.errors import InputError

_MAX_DENOMINATOR = 10**6


def rank_for(level: float, num_scores: int) -> int:
    """Which of the scores in ascending order, from one; more than there are if no finite one will do."""
    # A level is meant as it is written: 0.9 of 10 is 9, not the 9.000000000000002 of binary fractions.
    return math.ceil((num_scores + 1) * Fraction(level).limit_denominator(_MAX_DENOMINATOR))


def num_needed(level: float) -> int:
    """The smallest number of scores for which a finite band has the guarantee."""
    exact = Fraction(level).limit_denominator(_MAX_DENOMINATOR)
    return math.ceil(exact / (1 - exact))


def check_level(name: str, level: float) -> float:
    """Return a level strictly between 0 and 1."""
    if not 0 < level < 1:
        raise InputError(f"`{name}` must be between 0 and 1, got {level:g}.")
    return float(level)


def check_number(num_scores: int, level: float, what: str) -> None:
    """Refuse too few calibration rows for a level.

    Raises:
        InputError: With how many are needed, and the highest level that these have.
    """
    needed = num_needed(level)
    if num_scores < needed:
        highest = f" These {num_scores} reach {num_scores / (num_scores + 1):.3g}." if num_scores else ""
        raise InputError(
            f"`targets` must have at least {needed} calibration {what} for level {level:g}, got {num_scores}: "
            f"no finite band has the guarantee.{highest}"
        )


def conformal_quantile(scores: Float[np.ndarray, "n *outputs"], level: float) -> Float[np.ndarray, "*outputs"]:
    """The factor that holds a new case with probability `level`; infinite if there are too few scores."""
    rank = rank_for(level, len(scores))
    if rank > len(scores):
        return np.full(scores.shape[1:], np.inf)
    return np.partition(scores, rank - 1, axis=0)[rank - 1]


def is_held_by_others(scores: Float[np.ndarray, "n *outputs"], level: float) -> np.ndarray:
    """Whether each case is held by the band that the others are calibrated to: honest coverage of the same cases."""
    rank, ordered = rank_for(level, len(scores) - 1), np.sort(scores, axis=0)
    if rank > len(scores) - 1:
        return np.ones(scores.shape, bool)
    # Without one of the smaller scores, all above it move down by a rank.
    is_below = scores <= ordered[rank - 1]
    return scores <= np.where(is_below, ordered[rank], ordered[rank - 1])
