r"""Captured variance where the data have too many rows to be held: solved for some predictions, with exact products.

Leading directions :math:`\hat A` of the data leave something out (:mod:`vihmc.selection.linear_model`). Conjugate
gradients do not: they find :math:`v_S = b_S^\top (\Lambda_{SS})^{-1} b_S` from products with :math:`\Lambda` alone,
and the directions serve as the preconditioner :math:`P = I + \hat A_S^\top \hat A_S`. Because :math:`P \preceq
\Lambda_{SS}`, every step has both bounds: with the solution x so far and what is left, r,

.. math:: b_S^\top x \;\le\; v_S \;\le\; b_S^\top x + r^\top P^{-1} r

and it is known when to stop.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from vihmc.posterior.gauss_newton import multiply_by
from vihmc.selection.linear_model import TOLERANCE, Captured, Linearised

NUM_SOLVED = 16
"""Predictions whose captured variance is solved for with all data, where directions leave something out."""
_SOLVER_TOLERANCE = 0.01
_TRUSTED = 0.1
_MAX_STEPS = 300


class Bounds(NamedTuple):
    """A variance of every prediction is between these."""

    lower: Float[np.ndarray, " points"]
    upper: Float[np.ndarray, " points"]

    @property
    def middle(self) -> Float[np.ndarray, " points"]:
        """Off by no more than half of what is between them."""
        return 0.5 * (self.lower + self.upper)

    @property
    def relative(self) -> float:
        """The largest distance of the bounds, as a part of the variance."""
        return float(np.max((self.upper - self.lower) / np.maximum(self.lower, np.finfo(np.float32).tiny)))


def find_captured(linearised: Linearised, selected: Int[np.ndarray, " selected"]) -> Captured:
    """Share of the variance that these parameters hold: of all predictions, or solved for some if data are left out."""
    return captured_by(linearised)(selected)


def captured_by(
    linearised: Linearised, num_solved: int = NUM_SOLVED
) -> Callable[[Int[np.ndarray, " selected"]], Captured]:
    """The same for one set after the other: what all parameters have is solved for once."""
    if linearised.product is None or linearised.left_out <= TOLERANCE or num_solved == 0:
        return linearised.captured
    points = spread_points(linearised, num_solved)
    whole = solve_variance(linearised, points)

    def captured(selected: Int[np.ndarray, " selected"]) -> Captured:
        found = share_of(solve_variance(linearised, points, selected), whole)
        # Products that are rounded too much for what the data know; then bounds do not meet, or are no numbers.
        return found if found.left_out < _TRUSTED else linearised.captured(selected)

    return captured


def share_of(of_selected: Bounds, whole: Bounds) -> Captured:
    """Shares from variances that are known to some tolerance."""
    shares = np.divide(of_selected.middle, whole.middle, out=np.ones_like(whole.middle), where=whole.middle > 0)
    return Captured(np.minimum(shares, 1.0), 0.5 * (of_selected.relative + whole.relative))


def spread_points(linearised: Linearised, count: int) -> Int[np.ndarray, " some"]:
    """Some of the predictions that were linearised, evenly spread."""
    num_points = linearised.points.shape[0]
    return np.unique(np.linspace(0, num_points - 1, min(count, num_points)).round().astype(int))


def solve_variance(
    linearised: Linearised,
    points: Int[np.ndarray, " some"],
    selected: Int[np.ndarray, " selected"] | None = None,
    *,
    tolerance: float = _SOLVER_TOLERANCE,
) -> Bounds:
    """Bounds of the variance of some predictions when only these parameters are free; all of them if not given."""
    assert linearised.product is not None
    is_selected = np.zeros(linearised.points.shape[1], linearised.points.dtype)
    is_selected[slice(None) if selected is None else np.asarray(selected)] = 1
    gradients = jnp.asarray(linearised.points)[np.asarray(points)]
    lower, gap = _solve(linearised.product, linearised.data, gradients, jnp.asarray(is_selected), tolerance)
    lower, gap = np.asarray(lower, dtype=float), np.asarray(gap, dtype=float)
    return Bounds(lower, lower + gap)


@partial(jax.jit, static_argnums=4)
def _solve(
    product: Partial, data: Array, gradients: Array, is_selected: Array, tolerance: float
) -> tuple[Array, Array]:
    """Conjugate gradients for all rows of `gradients` side by side; what of v has been found, and bounds of the rest.

    Leading directions are known ten million times better than the prior knows them, so all but the products is done in
    the widest float there is.
    """
    wide = jnp.result_type(float)
    data, right = (data * is_selected).astype(wide), (gradients * is_selected).astype(wide)
    factor = jax.scipy.linalg.cho_factor(jnp.eye(len(data)) + data @ data.T)

    def precondition(vectors: Array) -> Array:
        return vectors - jax.scipy.linalg.cho_solve(factor, data @ vectors.T).T @ data

    def multiply(vectors: Array) -> Array:
        return vectors + is_selected * multiply_by(product, vectors.T.astype(gradients.dtype)).T

    def dot(left: Array, right: Array) -> Array:
        return jnp.einsum("ij,ij->i", left, right)

    def is_open(carry: tuple) -> Array:
        *_, sizes, found, number = carry
        return jnp.any(sizes > tolerance * found) & (number < _MAX_STEPS)

    def step(carry: tuple) -> tuple:
        left, direction, sizes, found, number = carry
        image = multiply(direction)
        length = sizes / jnp.maximum(dot(direction, image), jnp.finfo(wide).tiny)
        left = left - length[:, None] * image
        ahead = precondition(left)
        new_sizes = dot(left, ahead)
        turn = new_sizes / jnp.maximum(sizes, jnp.finfo(wide).tiny)
        # The part of v that a step finds is its length times the size of what was left.
        return left, ahead + turn[:, None] * direction, new_sizes, found + length * sizes, number + 1

    ahead = precondition(right)
    sizes = dot(right, ahead)
    start = (right, ahead, sizes, jnp.zeros_like(sizes), 0)
    _, _, sizes, found, _ = jax.lax.while_loop(is_open, step, start)
    return found, sizes
