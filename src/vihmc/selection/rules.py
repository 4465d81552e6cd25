r"""Which parameters to sample, given their scores or a linear model of the posterior.

The paper's rule, with scores sorted from large to small, selects the first

.. math:: \hat N = \max\Big\{n : \sum_{i \le n} S_i^2 \Big/ \sum_i S_i^2 \le \text{threshold}\Big\}

The rule ``predictive`` selects parameters until together they capture a share `threshold` of the predictive variance:
greedily one after the other (:mod:`vihmc.selection.search`), and where that is affordable also by elimination and
exchange (:mod:`vihmc.selection.exchange`). Baselines select as many parameters as the paper's rule would.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.config.method import SelectionConfig
from vihmc.errors import InputError
from vihmc.posterior.layer_costs import FrozenLayers
from vihmc.posterior.subspace import Subspace
from vihmc.selection.captured_variance import captured_by
from vihmc.selection.exchange import better, can_exchange, eliminate, exchange
from vihmc.selection.linear_model import Linearised
from vihmc.selection.search import Greedy, choose_greedily
from vihmc.types import Key, Vector

_GROWTH = 0.05
"""How many parameters are added at a time by the predictive rule, as a share of those selected so far."""
_SLACK = 1e-12
"""A share that equals the threshold but for rounding meets it."""


def select(
    scores: Float[Array, " params"],
    config: SelectionConfig,
    *,
    mean: Vector,
    std: Vector,
    linearised: Linearised | None = None,
    frozen_layers: Sequence[FrozenLayers] = (),
    rng_key: Key | None = None,
) -> Subspace:
    """Select the parameters that matter.

    Args:
        scores: Sensitivity of every parameter; it sets how many are selected by baselines too.
        config: The rule and its threshold or count; 'auto' is the paper's score here.
        mean: Mean of q, the center of the subspace.
        std: Standard deviation of q, for the baseline of largest variance.
        linearised: Needed for the predictive rule only.
        frozen_layers: Ways to leave whole layers frozen, the cheapest first; for the predictive rule.
        rng_key: Needed for the random baseline only.
    """
    config = config.with_defaults(has_target_inputs=False)
    values = np.asarray(scores, dtype=np.float64)
    _check_scores(values)
    if config.rule == "predictive":
        if linearised is None:
            raise ValueError("`linearised` is needed for a predictive selection, got None.")
        selected = _choose_predictive(linearised, config)
        return Subspace.of(np.sort(_choose_cheaper(selected, linearised, config, frozen_layers)), mean)
    count = config.count if config.count is not None else count_for(values, _threshold(config))
    _check_count(count, values.size)
    if count == 0:
        raise InputError(
            f"`selection.threshold` must select at least one parameter, got {config.threshold}: the largest score "
            f"alone is {values.max() / values.sum():.3f} of the total. Raise it, or set selection.count."
        )
    if config.rule == "random":
        if rng_key is None:
            raise ValueError("`rng_key` is needed for a random selection, got None.")
        ranking = np.asarray(jax.random.permutation(rng_key, values.size)).astype(float)
    elif config.rule == "sensitivity":
        ranking = values
    else:
        ranking = np.asarray(std**2 if config.rule == "variance" else jnp.abs(mean), dtype=np.float64)
    return Subspace.of(_largest(ranking, count), mean)


def _choose_predictive(linearised: Linearised, config: SelectionConfig) -> np.ndarray:
    if config.count is not None:
        _check_count(config.count, linearised.data.shape[1])
    ways = [choose_greedily(linearised, count=config.count, share=_share(config), growth=_GROWTH)]
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
    selected: np.ndarray, linearised: Linearised, config: SelectionConfig, ways: Sequence[FrozenLayers]
) -> np.ndarray:
    """As many that leave more layers frozen, if some capture nearly as much: less by `max_captured_loss` at most."""
    if config.max_captured_loss == 0:
        return selected
    captured = captured_by(linearised)
    enough = captured(selected).mean - config.max_captured_loss
    for way in ways:
        if way.allow(selected):
            break
        # All that is allowed together captures most: a look before the long one.
        if way.may_be_selected.sum() < len(selected) or captured(np.flatnonzero(way.may_be_selected)).mean < enough:
            continue
        found = choose_greedily(linearised, count=len(selected), growth=_GROWTH, among=way.may_be_selected).order
        if captured(found).mean >= enough:
            return found
    return selected


def _threshold(config: SelectionConfig) -> float:
    assert config.threshold is not None, "decided by `with_defaults`"
    return config.threshold


def _share(config: SelectionConfig) -> float | None:
    return _threshold(config) if config.count is None else None


def _how_many(way: Greedy, config: SelectionConfig) -> int:
    if config.count is not None:
        return config.count
    reached = way.shares < _threshold(config) - _SLACK
    return min(max(1, int(np.sum(reached)) + 1), way.order.size)


def _check_count(count: int, num_params: int) -> None:
    if count > num_params:
        raise InputError(f"`selection.count` must be at most the number of parameters, {num_params}, got {count}.")


def count_for(values: np.ndarray, threshold: float) -> int:
    """How many of the largest scores sum to at most `threshold` of the total, as in the paper."""
    if not 0 < threshold <= 1:
        raise InputError(
            f"`threshold` must be in (0, 1], got {threshold}. It is the share of the total score to capture."
        )
    return int(np.sum(captured_share(values) <= threshold + _SLACK))


def captured_share(values: np.ndarray) -> np.ndarray:
    """Share of the total score that the n largest hold, for every n from 1."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))[::-1]
    cumulative = np.cumsum(ordered)
    return cumulative / cumulative[-1]


def _largest(ranking: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` largest values; of equal ones those that come first."""
    return np.sort(np.argsort(-ranking, kind="stable")[:count])


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
