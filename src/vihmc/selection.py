r"""Stage 2½: which parameters to keep.

The paper's rule, with scores sorted from large to small, keeps

.. math:: \hat N = \max\Big\{n : \sum_{i \le n} S_i^2 \Big/ \sum_i S_i^2 \le \text{threshold}\Big\}

Our own, ``predictive``, adds one parameter after the other by the predictive variance that all of them together capture
(:mod:`vihmc.greedy`), until that is the threshold. Baselines keep as many as the paper's rule would.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.config import SelectionConfig
from vihmc.errors import InputError
from vihmc.greedy import choose_greedily
from vihmc.linearised import Linearised
from vihmc.subspace import Subspace
from vihmc.types import Key, Vector

_SLACK = 1e-12
"""A share that equals the threshold but for rounding meets it, under either rule."""


def select(
    scores: Float[Array, " params"],
    config: SelectionConfig,
    *,
    mean: Vector,
    std: Vector,
    linearised: Linearised | None = None,
    rng_key: Key | None = None,
) -> Subspace:
    """Keep the parameters that matter.

    Args:
        scores: Sensitivity of every parameter; it sets how many are kept by baselines too.
        config: The rule, its threshold or count, and what to rank by.
        mean: Mean of q, the center of the subspace.
        std: Standard deviation of q, for the baseline of largest variance.
        linearised: Needed for the predictive rule only.
        rng_key: Needed for the random baseline only.
    """
    values = np.asarray(scores, dtype=np.float64)
    _check_scores(values)
    if config.rank_by == "predictive":
        if linearised is None:
            raise ValueError("`linearised` is needed for a predictive selection, got None.")
        return Subspace.of(np.sort(_choose_predictive(linearised, config)), mean)
    count = config.count if config.count is not None else count_for(values, config.threshold, rule=config.rule)
    _check_count(count, values.size)
    if count == 0:
        raise InputError(
            f"`selection.threshold` must keep at least one parameter, got {config.threshold}: the largest score alone "
            f"is {values.max() / values.sum():.3f} of the total. Raise it, or use the rule 'at_least'."
        )
    if config.rank_by == "random":
        if rng_key is None:
            raise ValueError("`rng_key` is needed for a random selection, got None.")
        ranking = np.asarray(jax.random.permutation(rng_key, values.size)).astype(float)
    elif config.rank_by == "sensitivity":
        ranking = values
    else:
        ranking = np.asarray(std**2 if config.rank_by == "variance" else jnp.abs(mean), dtype=np.float64)
    return Subspace.of(_largest(ranking, count, ties=config.ties), mean)


def _choose_predictive(linearised: Linearised, config: SelectionConfig) -> np.ndarray:
    if config.count is not None:
        _check_count(config.count, linearised.data.shape[1])
        return choose_greedily(linearised, count=config.count, growth=config.growth).order
    chosen = choose_greedily(linearised, share=config.threshold, growth=config.growth)
    reached = chosen.shares < config.threshold - _SLACK
    return chosen.order[: max(1, int(np.sum(reached)) + (config.rule == "at_least"))]


def _check_count(count: int, num_params: int) -> None:
    if count > num_params:
        raise InputError(f"`selection.count` must be at most the number of parameters, {num_params}, got {count}.")


def count_for(values: np.ndarray, threshold: float, *, rule: str) -> int:
    """How many of the largest scores sum to at most, or at least, `threshold` of the total."""
    if not 0 < threshold <= 1:
        raise InputError(f"`threshold` must be in (0, 1], got {threshold}. It is the share of the total score to keep.")
    captured = captured_share(values)
    if rule == "at_most":
        return int(np.sum(captured <= threshold + _SLACK))
    return int(np.sum(captured < threshold - _SLACK)) + 1


def captured_share(values: np.ndarray) -> np.ndarray:
    """Share of the total score that the n largest hold, for every n from 1."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))[::-1]
    cumulative = np.cumsum(ordered)
    return cumulative / cumulative[-1]


def _largest(ranking: np.ndarray, count: int, *, ties: Literal["error", "include", "exclude"]) -> np.ndarray:
    order = np.argsort(-ranking, kind="stable")
    if count < ranking.size and ranking[order[count - 1]] == ranking[order[count]]:
        tied = np.flatnonzero(ranking == ranking[order[count]])
        above = int(np.sum(ranking > ranking[order[count]]))
        if ties == "error" or (ties == "exclude" and above == 0):
            raise InputError(
                f"`selection` must not cut between equal scores, got {tied.size} parameters with the score "
                f"{ranking[order[count]]:.6g} (indices {tied[:4].tolist()}{'…' if tied.size > 4 else ''}) at the cut "
                f"after {count}. Keep {above} or {above + tied.size}: set selection.ties to 'exclude' or 'include'."
            )
        count = above if ties == "exclude" else above + tied.size
    return np.sort(order[:count])


def _check_scores(values: np.ndarray) -> None:
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise InputError(
            f"`scores` must be finite, got {values[bad[0]]} for parameter {bad[0]} ({bad.size} such "
            f"score{'s' * (bad.size > 1)}): the first stage did not converge."
        )
    if np.any(values < 0):
        raise InputError(f"`scores` must not be negative, got {values.min()}. They are variances.")
    if not np.any(values > 0):
        raise InputError("`scores` must have a positive one, got zeros only: no parameter moves the prediction.")
