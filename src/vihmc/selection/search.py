r"""Greedy selection: add the parameter that improves the error bars most, and again.

A set S is judged by how far its predictive stds are from those of all parameters, in the linear model: the mean square
of the log ratio of stds,

.. math:: \frac{1}{n} \sum_x \big(\tfrac12 \log (v_S(x) / v(x))\big)^2

which weighs the worst predictions more than the mean captured share does. In the notation of
:mod:`vihmc.selection.linear_model`, adding parameter i to S raises the variance of every prediction by

.. math:: \frac{r_i(x)^2}{1 + |\hat a_i|^2}, \qquad
    r = b - b_S (I + A_S^\top A_S)^{-1} A_S^\top A, \quad \hat A = (I + A_S A_S^\top)^{-1/2} A

Both are updated for all parameters at once: one product and one update of rank one per parameter. Where thousands are
selected, several are added at a time: the best of a pool of candidates, one after the other among
themselves, and then one update of their rank for all the others. Where there are very many parameters, the pool are
those that help most to first order, after the first few.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vihmc.selection.linear_model import Linearised

_POOL, _LEAST_POOL = 3, 64
_MAX_BLOCK = 256
_NUM_EXACT = 16
_MAX_DOUBLES = 2**22
"""More numbers than these are held in float32, six times as fast: a choice among good ones, not the variance of it."""
LEAST_SHARE = 1e-6
"""Added to every share: what is not captured at all is not infinitely bad."""


class Greedy(NamedTuple):
    """Parameters in the order in which they were chosen.

    Attributes:
        order: Indices of parameters.
        shares: Mean captured share after each of them.
    """

    order: Int[np.ndarray, " chosen"]
    shares: Float[np.ndarray, " chosen"]


class _State(NamedTuple):
    data: Float[Array, "rows params"]
    points: Float[Array, "points params"]
    variance: Float[Array, " points"]
    is_left: Bool[Array, " params"]


def choose_greedily(
    linearised: Linearised,
    *,
    count: int | None = None,
    share: float | None = None,
    growth: float = 0.0,
    among: Bool[np.ndarray, " params"] | None = None,
) -> Greedy:
    """Choose parameters until there are `count`, or until they capture `share` of the variance on average.

    Args:
        linearised: The linear model.
        count: How many; all of them if neither is given.
        share: Mean share to reach.
        growth: How many are added at a time, as a part of those that are there; one at a time if 0.
        among: Which parameters may be chosen; all of them if not given.
    """
    columns = np.arange(linearised.data.shape[1]) if among is None else np.flatnonzero(among)
    count = columns.size if count is None else min(count, columns.size)
    is_large = (linearised.data.shape[0] + linearised.points.shape[0]) * columns.size > _MAX_DOUBLES
    dtype = jnp.float32 if is_large else linearised.points.dtype
    whole = jnp.asarray(at_least_tiny(linearised.variance()), dtype)
    # Copies, because what is updated gives up its memory.
    data, points = (
        jnp.array(array if among is None else array[:, columns], dtype, copy=True)
        for array in (linearised.data, linearised.points)
    )
    state = _State(data, points, jnp.zeros_like(whole), jnp.ones(columns.size, bool))
    order, shares = [], []
    for block in _blocks(count, growth):
        is_screened = is_large and sum(map(len, order)) >= _NUM_EXACT
        pool = max(block * _POOL, _LEAST_POOL) if is_screened else block * _POOL if block > 1 else 1
        state, chosen, captured = _add(state, whole, block, min(pool, columns.size), is_screened)
        order.append(columns[np.asarray(chosen)])
        shares.append(np.asarray(captured))
        if share is not None and shares[-1][-1] >= share:
            break
    return Greedy(np.concatenate(order), np.concatenate(shares))


def at_least_tiny(variance: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
    """To divide by: a prediction that nothing moves has no variance."""
    return np.maximum(variance, 1e-30)


def _blocks(count: int, growth: float) -> Iterator[int]:
    """Sizes that sum to `count`: powers of two, so that few programs are compiled."""
    done = 0
    while done < count:
        size = min(max(1, int(growth * done)), _MAX_BLOCK, count - done)
        size = 1 << (size.bit_length() - 1)
        yield size
        done += size


@partial(jax.jit, static_argnums=(2, 3, 4), donate_argnums=0)
def _add(state: _State, whole: Array, block: int, pool: int, is_screened: bool) -> tuple[_State, Array, Array]:
    """Add `block` parameters, chosen from the `pool` that look best by themselves, or to first order if screened."""
    gains = jnp.where(state.is_left, (_first_order if is_screened else _objective)(state, whole), -jnp.inf)
    candidates = jax.lax.top_k(gains, pool)[1]
    among = _State(state.data[:, candidates], state.points[:, candidates], state.variance, state.is_left[candidates])

    def pick(number: Array, carry: tuple[_State, Array, Array]) -> tuple[_State, Array, Array]:
        now, chosen, shares = carry
        best = jnp.argmax(jnp.where(now.is_left, _objective(now, whole), -jnp.inf))
        now = _update_one(now, best)
        return now, chosen.at[number].set(candidates[best]), shares.at[number].set(jnp.mean(now.variance / whole))

    nothing = (jnp.zeros(block, candidates.dtype), jnp.zeros(block, whole.dtype))
    among, chosen, shares = jax.lax.fori_loop(0, block, pick, (among, *nothing))
    return _update_all(state, chosen, among.variance), chosen, shares


def _objective(state: _State, whole: Array) -> Float[Array, " params"]:
    """What would be reached by adding each of the parameters; the larger, the better."""
    gained = state.points**2 / (1 + jnp.sum(state.data**2, axis=0))
    shares = (state.variance[:, None] + gained) / whole[:, None]
    return -jnp.mean((0.5 * jnp.log(shares + LEAST_SHARE)) ** 2, axis=0)


def _first_order(state: _State, whole: Array) -> Float[Array, " params"]:
    """How fast the objective would rise with a little of each parameter: no logarithm per parameter."""
    shares = state.variance / whole + LEAST_SHARE
    slopes = -0.5 * jnp.log(shares) / (shares * whole)
    # Sums over rows as products with a vector: four times as fast.
    return (slopes @ state.points**2) / (1 + jnp.ones(len(state.data), whole.dtype) @ state.data**2)


def _update_one(state: _State, index: Array) -> _State:
    data, points = state.data[:, index], state.points[:, index]
    size = 1 + jnp.sum(data**2)
    along = data @ state.data
    return _State(
        state.data - jnp.outer(data, along) / (jnp.sqrt(size) * (1 + jnp.sqrt(size))),
        state.points - jnp.outer(points, along) / size,
        state.variance + points**2 / size,
        state.is_left.at[index].set(False),
    )


def _update_all(state: _State, chosen: Array, variance: Array) -> _State:
    data, points = state.data[:, chosen], state.points[:, chosen]
    values, rotation = jnp.linalg.eigh(data.T @ data)
    root = jnp.sqrt(1 + jnp.maximum(values, 0))
    along = rotation.T @ (data.T @ state.data)
    return _State(
        state.data - (data @ rotation / (root * (1 + root))) @ along,
        state.points - (points @ rotation / root**2) @ along,
        variance,
        state.is_left.at[chosen].set(False),
    )
