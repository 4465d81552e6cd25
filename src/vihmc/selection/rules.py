r"""Stage 2½: which parameters to keep.

The paper's rule, with scores sorted from large to small, keeps

.. math:: \hat N = \max\Big\{n : \sum_{i \le n} S_i^2 \Big/ \sum_i S_i^2 \le \text{threshold}\Big\}

Our own, ``predictive``, minds the predictive variance that all kept parameters together capture, until that is the
threshold: it adds one after the other (:mod:`vihmc.selection.search`), and where that is not too much work, takes away one after
the other from all of them and exchanges (:mod:`vihmc.selection.exchange`). Baselines keep as many as the paper's rule would.
"""

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.config.method import SelectionConfig
from vihmc.errors import InputError
from vihmc.posterior.layer_costs import Allowed
from vihmc.posterior.subspace import Subspace
from vihmc.selection.captured_variance import captured_by
from vihmc.selection.exchange import better, can_exchange, eliminate, exchange
from vihmc.selection.linear_model import Linearised
from vihmc.selection.search import Greedy, choose_greedily
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
    allowed: Sequence[Allowed] = (),
    rng_key: Key | None = None,
) -> Subspace:
    """Keep the parameters that matter.

    Args:
        scores: Sensitivity of every parameter; it sets how many are kept by baselines too.
        config: The rule, its threshold or count, and what to rank by; the paper's score if that is left open.
        mean: Mean of q, the center of the subspace.
        std: Standard deviation of q, for the baseline of largest variance.
        linearised: Needed for the predictive rule only.
        allowed: Ways to leave whole layers frozen, the cheapest first; for the predictive rule, if some of the captured
            variance may be given up for it.
        rng_key: Needed for the random baseline only.
    """
    config = config.settled(use_is_named=False)
    values = np.asarray(scores, dtype=np.float64)
    _check_scores(values)
    if config.rank_by == "predictive":
        if linearised is None:
            raise ValueError("`linearised` is needed for a predictive selection, got None.")
        kept = _choose_predictive(linearised, config)
        return Subspace.of(np.sort(_choose_cheaper(kept, linearised, config, allowed)), mean)
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
    ways = [choose_greedily(linearised, count=config.count, share=_share(config), growth=config.growth)]
    if can_exchange(linearised):
        ways.append(eliminate(linearised))
    count = min(_how_many(way, config) for way in ways)
    found = [way.order[:count] for way in ways if _how_many(way, config) == count]
    if not can_exchange(linearised):
        return found[0]
    best = better(linearised, *found)
    exchanged = better(linearised, *(exchange(linearised, way.order[:count]) for way in ways))
    # What was exchanged has better error bars, but may have less of the variance than was asked for.
    reaches = config.count is not None or linearised.captured(exchanged).mean >= linearised.captured(best).mean
    return exchanged if reaches else best


def _choose_cheaper(
    kept: np.ndarray, linearised: Linearised, config: SelectionConfig, allowed: Sequence[Allowed]
) -> np.ndarray:
    """As many that leave more layers frozen, if there are any that lack no more than may be given up."""
    if config.give_up == 0:
        return kept
    captured = captured_by(linearised, config)
    enough = captured(kept).mean - config.give_up
    for way in allowed:
        if way.holds(kept):
            break
        # All that is allowed together captures most: a look before the long one.
        if way.is_allowed.sum() < len(kept) or captured(np.flatnonzero(way.is_allowed)).mean < enough:
            continue
        found = choose_greedily(linearised, count=len(kept), growth=config.growth, among=way.is_allowed).order
        if captured(found).mean >= enough:
            return found
    return kept


def _share(config: SelectionConfig) -> float | None:
    return config.threshold if config.count is None else None


def _how_many(way: Greedy, config: SelectionConfig) -> int:
    if config.count is not None:
        return config.count
    reached = way.shares < config.threshold - _SLACK
    return min(max(1, int(np.sum(reached)) + (config.rule == "at_least")), way.order.size)


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
