r"""The posterior as a linear model has it, and how much of a prediction's variance some of its parameters hold.

With the Jacobian J of the training predictions and the gradient g(x) of a prediction, both at the mean of the first
stage, the Gauss-Newton posterior has the precision

.. math:: \Lambda = \text{prior\_std}^{-2} + J^\top W P J

and when only the parameters S are free, the others known, a prediction has the variance and S captures the share

.. math::
    v_S(x) = g_S^\top (\Lambda_{SS})^{-1} g_S = b_S^\top (I + A_S^\top A_S)^{-1} b_S, \qquad
    v_S(x) / v(x) \le 1

with :math:`A = (W P)^{1/2} J\, \text{prior\_std}` and :math:`b = g\, \text{prior\_std}`; P is the precision of the
outputs, one over the noise variance, or the diagonal of the Fisher information. Scales that are learnt are those of the
first stage. It counts what parameters trade off against each other, as scores of single parameters do not.

Only :math:`A^\top A` matters, so A may be any other matrix with the same one, or with one a little smaller. Where A has
too many rows, it is replaced by the leading directions of it (a Nyström approximation :math:`\hat A^\top \hat A \preceq
A^\top A`). If what is left out has no eigenvalue above `left_out`, then for **every** S

.. math:: v_S \le \hat v_S \le (1 + \text{left\_out})\, v_S

because the part of it that belongs to S is a submatrix. It is a bound to mind: on the published spectra of the cone 512
directions leave out eigenvalues up to 212, and put a share of 0.35 at 0.06. Sets chosen with them are nearly as good
all the same (0.49 where an exact choice has 0.53): the directions are for choosing, and the number that is reported is
solved for with all data (:mod:`vihmc.selection.captured_variance`).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from vihmc.posterior.density import Posterior
from vihmc.posterior.gauss_newton import data_rows, multiply_by, scaled_product
from vihmc.types import Inputs, Key, Vector, as_pytree_function

NUM_POINTS = 512
NUM_EXACT = 4096
NUM_DIRECTIONS = 512
TOLERANCE = 0.01
"""Directions that change no variance by more than this part of it are left out."""
_COLUMNS_AT_ONCE = 64
_NUM_POWER_STEPS = 12


class Linearised(NamedTuple):
    r"""A linear model of the data and of the predictions, in units of the prior.

    Attributes:
        data: A: derivatives of the training predictions in units of the noise, or the leading directions of them.
        points: b of every prediction that is looked at.
        left_out: Largest eigenvalue of what `data` leaves out; 0 if nothing.
        product: Multiplies a vector by :math:`A^\top A`, nothing left out; None if `data` has it all.
    """

    data: Float[Array, "rows params"]
    points: Float[Array, "points params"]
    left_out: float
    product: Partial | None = None

    def variance(self, selected: Int[np.ndarray, " selected"] | None = None) -> Float[np.ndarray, " points"]:
        """Variance of every prediction when only these parameters are free; all of them if not given."""
        index = slice(None) if selected is None else np.asarray(selected)
        data, points = (np.asarray(array)[:, index].astype(np.float64) for array in (self.data, self.points))
        prior = np.einsum("ij,ij->i", points, points)
        if data.shape[0] <= data.shape[1]:
            factor = np.linalg.cholesky(np.eye(data.shape[0]) + data @ data.T)
            known = np.linalg.solve(factor, data @ points.T)
            return prior - np.einsum("ij,ij->j", known, known)
        factor = np.linalg.cholesky(np.eye(data.shape[1]) + data.T @ data)
        spread = np.linalg.solve(factor, points.T)
        return np.einsum("ij,ij->j", spread, spread)

    def captured(self, selected: Int[np.ndarray, " selected"]) -> "Captured":
        """Share of the variance of every prediction that these parameters hold."""
        whole = self.variance()
        # Of a prediction that nothing moves, nothing is missing.
        shares = np.divide(self.variance(selected), whole, out=np.ones_like(whole), where=whole > 0)
        return Captured(shares, self.left_out)


class Captured(NamedTuple):
    """How much of the predictive variance a set of parameters holds.

    Attributes:
        shares: One per prediction that was looked at.
        left_out: No variance behind them is off by more than this part of it.
    """

    shares: Float[np.ndarray, " points"]
    left_out: float

    def __repr__(self) -> str:
        """The shares in words."""
        percent = f"mean {100 * self.mean:.1f} %, median {100 * self.median:.1f} %, worst {100 * self.worst:.1f} %"
        return f"Captured predictive variance at {len(self.shares)} predictions: {percent}"

    @property
    def mean(self) -> float:
        """On average."""
        return float(np.mean(self.shares))

    @property
    def median(self) -> float:
        """For half of the predictions it is more."""
        return float(np.median(self.shares))

    @property
    def worst(self) -> float:
        """For none of the predictions it is less."""
        return float(np.min(self.shares))


def linearise(
    posterior: Posterior,
    mean: Vector,
    inputs: Inputs,
    rng_key: Key,
    *,
    weights: Array | None = None,
    num_points: int = NUM_POINTS,
    num_exact: int = NUM_EXACT,
    num_directions: int = NUM_DIRECTIONS,
    on_direction: Callable[[int, int], None] | None = None,
) -> Linearised:
    """Linearise a posterior and its predictions at `inputs` around `mean`.

    Args:
        posterior: Model, prior, noise and data.
        mean: Where derivatives are taken.
        inputs: Where predictions matter.
        rng_key: Chooses the predictions, if there are more; and starts the search for directions.
        weights: Predictions of weight zero are not looked at; of the shape of the predictions.
        num_points: Predictions to look at, at most.
        num_exact: Up to so many observations, all of them are used.
        num_directions: Leading Gauss–Newton directions that are used otherwise, at most.
        on_direction: Called with how many products with the Gauss–Newton matrix have been computed, and of how many.
    """
    key_points, key_data = jax.random.split(rng_key)
    scale = jnp.broadcast_to(posterior.prior_std, mean.shape).astype(mean.dtype)
    chosen = choose_points(posterior, mean, inputs, num_points, key_points, weights=weights)
    points = scale * posterior.gradients_at(mean, inputs, chosen)
    rows = data_rows(posterior, mean, scale, num_exact)
    if rows is not None:
        return Linearised(rows.values, points, 0.0)
    product = Partial(scaled_product, posterior, jnp.arange(mean.size), mean, scale)
    data, left_out = leading_rows(
        product,
        key_data,
        size=mean.size,
        rank=min(num_directions, mean.size),
        dtype=mean.dtype,
        tolerance=TOLERANCE,
        on_direction=on_direction,
    )
    return Linearised(data, points, left_out, product)


def choose_points(
    posterior: Posterior, mean: Vector, inputs: Inputs, count: int, rng_key: Key, *, weights: Array | None = None
) -> Int[np.ndarray, " points"]:
    """Some predictions at `inputs`, as indices into all outputs, inputs first; all that have a weight, if few."""
    shape = jax.eval_shape(as_pytree_function(posterior.predict), mean, inputs).shape
    possible = np.arange(math.prod(shape)) if weights is None else np.flatnonzero(np.asarray(weights))
    if possible.size <= count:
        return possible
    # The permutation of ten million numbers takes longer than all else; a few drawn twice are left out.
    drawn = np.unique(np.asarray(jax.random.randint(rng_key, (count + count // 8,), 0, possible.size)))
    order = np.asarray(jax.random.permutation(rng_key, drawn.size))[:count]
    return possible[np.sort(drawn[order])]


def leading_rows(
    product: Partial,
    rng_key: Key,
    *,
    size: int,
    rank: int,
    dtype: np.dtype,
    tolerance: float,
    on_direction: Callable[[int, int], None] | None = None,
) -> tuple[Float[Array, "rows size"], float]:
    r"""Rows :math:`\hat A` with :math:`\hat A^\top \hat A \preceq M` for a matrix M known by its products.

    Args:
        product: Multiplies a vector by M.
        rng_key: Starts the search.
        size: Of M.
        rank: Rows at most.
        dtype: Of the products.
        tolerance: Rows that add less than this are left out.
        on_direction: Called with how many products have been computed, and of how many.

    Returns:
        The rows, the leading one first, and the largest eigenvalue of what they leave out.
    """
    key_start, key_error = jax.random.split(rng_key)

    def multiply(vectors: Array, done: int) -> Array:
        parts = []
        for start in range(0, rank, _COLUMNS_AT_ONCE):
            parts.append(_multiply(product, vectors[:, start : start + _COLUMNS_AT_ONCE]))
            if on_direction is not None:
                parts[-1].block_until_ready()
                on_direction(min(done + start + _COLUMNS_AT_ONCE, 2 * rank), 2 * rank)
        return jnp.concatenate(parts, axis=1)

    basis = _orthonormal(multiply(jax.random.normal(key_start, (size, rank), dtype), 0))
    rows, values = _rotate(basis, multiply(basis, rank))
    rows = rows[: int(np.sum(np.asarray(values) > tolerance))]
    return rows, float(_largest_left_out(product, rows, key_error))


_multiply = jax.jit(multiply_by)


@jax.jit
def _orthonormal(vectors: Array) -> Array:
    return jnp.linalg.qr(vectors)[0]


@jax.jit
def _rotate(basis: Array, image: Array) -> tuple[Array, Array]:
    """The Nyström approximation from a basis and its image: rows and eigenvalues, the largest first."""
    inner = basis.T @ image
    values, rotation = jnp.linalg.eigh(0.5 * (inner + inner.T))
    # An eigenvalue that is nothing but rounding must not be divided by; its row is left out afterwards.
    floor = values[-1] * 10 * jnp.finfo(basis.dtype).eps
    rows = (image @ (rotation / jnp.sqrt(jnp.maximum(values, floor)))).T
    return rows[::-1], jnp.where(values > floor, values, 0)[::-1]


@jax.jit
def _largest_left_out(product: Partial, rows: Array, rng_key: Key) -> Array:
    def step(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        vector, _value = carry
        image = product(vector) - rows.T @ (rows @ vector)
        length = jnp.linalg.norm(image)
        return image / jnp.maximum(length, jnp.finfo(rows.dtype).tiny), length

    start = jax.random.normal(rng_key, (rows.shape[1],), rows.dtype)
    return jax.lax.fori_loop(0, _NUM_POWER_STEPS, step, (start / jnp.linalg.norm(start), jnp.zeros((), rows.dtype)))[1]
