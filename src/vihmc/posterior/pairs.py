r"""The misfit of a product of factors on all pairs, without forming all pairs where it matters.

.. math::
    E(B, T, c) = \tfrac12 \| B T^\top + c - Y \|^2

Its gradient needs only small matrices, with a low-rank factorisation :math:`Y = L R^\top` of the targets that is exact
to the rounding of the arithmetic:

.. math::
    \partial E/\partial B = B\,(T^\top T) - L\,(R^\top T) + c\,\mathbf 1 (\mathbf 1^\top T), \qquad
    \partial E/\partial T = T\,(B^\top B) - R\,(L^\top B) + c\,\mathbf 1 (\mathbf 1^\top B)

The same trick for the value, :math:`\langle B^\top B, T^\top T\rangle - 2\langle L^\top B, R^\top T\rangle + \dots`,
cancels in float32, to an error of several nats on Burgers, and spoils the decision to accept. The value is therefore
the residual form, in chunks, summed in float64; a compiled program that asks for the gradient alone never computes it.

Pairs may have weights, :math:`\tfrac12 \sum_{ux} w_{ux} r_{ux}^2`: how often each was observed, zero for never. Weights
do not factorise, so value and gradient are both formed from all residuals; sets with weights are small.

Where the noise differs from location to location the misfit is one number per location, and a gradient weighs them:
:math:`\sum_x v_x E_x`. Weights of locations alone factorise: they enter the Gram matrix of the trunk,
:math:`T^\top \mathrm{diag}(v)\, T`.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.models.deeponet import Factors
from vihmc.types import readable

_DROPPED_ENERGY = {"float32": 1e-10, "float64": 1e-15}
"""Share of the targets' energy that their factors may lose. On Burgers the float32 force has an error of 3e-5, the same
for shares from 1e-12 (rank 361) to 1e-8 (rank 151): what is lost is far below rounding."""
_CHUNK_BYTES = 64e6


@readable
class PairTargets(NamedTuple):
    """Targets on all pairs, and their factors ``left @ right.T``."""

    values: Float[Array, "functions locations"]
    left: Float[Array, "functions rank"]
    right: Float[Array, "locations rank"]
    total: Float[Array, ""]
    weights: Float[Array, "functions locations"] | None = None

    def num_observations(self, *, per_location: bool = False) -> Array | int:
        """How many values were observed, each as often as it was; in all, or at each location."""
        if self.weights is None:
            return self.values.shape[0] if per_location else self.values.size
        return jnp.sum(self.weights, axis=0 if per_location else None)


class Summary(NamedTuple):
    """What the gradient of one side needs to know about the other."""

    gram: Float[Array, "latent latent"]
    cross: Float[Array, "rank latent"]
    total: Float[Array, " latent"]


def factorise(values: Float[np.ndarray, "functions locations"], dtype: Any) -> PairTargets:
    """Factorise targets exactly: singular vectors in float64, those of rounding size left out."""
    exact = np.asarray(values, dtype=np.float64)
    transposed = exact.shape[0] > exact.shape[1]
    short = exact.T if transposed else exact
    energies, vectors = np.linalg.eigh(short @ short.T)
    lost = np.cumsum(np.maximum(energies, 0))
    vectors = vectors[:, lost > _DROPPED_ENERGY[np.dtype(dtype).name] * max(lost[-1], np.finfo(float).tiny)]
    left, right = vectors, short.T @ vectors
    if transposed:
        left, right = right, left
    return PairTargets(*(jnp.asarray(array, dtype) for array in (exact, left, right, exact.sum())))


def weigh(values: Array | np.ndarray, weights: Array | np.ndarray, dtype: Any) -> PairTargets:
    """Targets with weights; they have no factors."""
    left, right = (jnp.zeros((length, 0), dtype) for length in values.shape)
    total = jnp.asarray((weights * values).sum(), dtype)
    return PairTargets(jnp.asarray(values, dtype), left, right, total, jnp.asarray(weights, dtype))


def summarise(
    factor: Float[Array, "n latent"], basis: Float[Array, "n rank"], weights: Float[Array, "n 1"] | None = None
) -> Summary:
    """Reduce one side to its Gram matrix, its product with the targets' factor, and its sum."""
    weighted = factor if weights is None else weights * factor
    return Summary(factor.T @ weighted, basis.T @ weighted, weighted.sum(axis=0))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def half_squared_error(
    factors: Factors, targets: PairTargets, per_location: bool = False
) -> Float[Array, "*locations"]:
    """Half the sum of squared residuals: of all pairs, or those at each location."""
    return residual_form(factors, targets, per_location=per_location)


def _forward(factors: Factors, targets: PairTargets, per_location: bool) -> tuple[Array, tuple[Factors, PairTargets]]:
    return residual_form(factors, targets, per_location=per_location), (factors, targets)


def _backward(per_location: bool, residual: tuple[Factors, PairTargets], cotangent: Array) -> tuple[Factors, None]:
    scale = cotangent.astype(residual[0].branch.dtype)
    if per_location:
        return error_gradient(*residual, location_weights=scale), None
    return jax.tree.map(lambda leaf: scale * leaf, error_gradient(*residual)), None


half_squared_error.defvjp(_forward, _backward)


def error_gradient(
    factors: Factors, targets: PairTargets, *, location_weights: Float[Array, " locations"] | None = None
) -> Factors:
    """Gradient of half the squared error with respect to both sides and the bias, in Gram form if it can be."""
    branch, trunk, bias = factors
    column = None if location_weights is None else location_weights[:, None]
    if targets.weights is not None:
        weights = targets.weights if location_weights is None else targets.weights * location_weights
        residual = weights * (branch @ trunk.T + bias - targets.values)
        return Factors(residual @ trunk, residual.T @ branch, jnp.sum(residual))
    of_branch, of_trunk = summarise(branch, targets.left), summarise(trunk, targets.right, column)
    by_trunk = trunk @ of_branch.gram - targets.right @ of_branch.cross + bias * of_branch.total
    return Factors(
        branch @ of_trunk.gram - targets.left @ of_trunk.cross + bias * of_trunk.total,
        by_trunk if column is None else column * by_trunk,
        bias_gradient(of_branch, of_trunk, targets, bias, location_weights=location_weights),
    )


def bias_gradient(
    of_branch: Summary,
    of_trunk: Summary,
    targets: PairTargets,
    bias: Array,
    *,
    location_weights: Float[Array, " locations"] | None = None,
) -> Float[Array, ""]:
    """The sum of all residuals, each as often as its location counts."""
    if location_weights is None:
        return of_branch.total @ of_trunk.total - targets.total + targets.values.size * bias
    total = jnp.sum(targets.left, axis=0) @ (location_weights @ targets.right)
    return of_branch.total @ of_trunk.total - total + len(targets.values) * jnp.sum(location_weights) * bias


def residual_form(factors: Factors, targets: PairTargets, *, per_location: bool = False) -> Float[Array, "*locations"]:
    """Half the sum of squared residuals, a chunk of functions at a time, summed in the widest float there is."""
    branch, trunk, bias = factors
    values, weights = targets.values, targets.weights
    length, width = values.shape
    chunk = max(1, min(length, int(_CHUNK_BYTES / (width * values.dtype.itemsize))))
    wide = jnp.result_type(float)

    def of_rows(rows: tuple[Array, Array, Array | None]) -> Array:
        part, target, weight = rows
        squares = jnp.square((part @ trunk.T + bias - target).astype(wide))
        return 0.5 * jnp.sum(squares if weight is None else weight * squares, axis=0 if per_location else None)

    def body(index: Array, total: Array) -> Array:
        take = partial(jax.lax.dynamic_slice_in_dim, start_index=index * chunk, slice_size=chunk)
        return total + of_rows(jax.tree.map(take, (branch, values, weights)))

    whole = length // chunk
    total = jax.lax.fori_loop(0, whole, body, jnp.zeros((width,) if per_location else (), wide))
    if whole * chunk == length:
        return total
    return total + of_rows(jax.tree.map(lambda leaf: leaf[whole * chunk :], (branch, values, weights)))


def log_likelihood(error: Array, *, noise_std: Array, num_observations: Array | int) -> Float[Array, ""]:
    """Log likelihood of all pairs from half the sum of their squared residuals, in all or at each location."""
    constant = num_observations * (jnp.log(noise_std) + 0.5 * math.log(2 * math.pi))
    return jnp.sum(-error.astype(jnp.result_type(float)) / noise_std**2 - constant)


def gram_form(factors: Factors, targets: PairTargets) -> Float[Array, ""]:
    """The same value from small matrices: cheap, and in float32 wrong by nats. For comparison only."""
    branch, trunk, bias = factors
    of_branch, of_trunk = summarise(branch, targets.left), summarise(trunk, targets.right)
    square = jnp.vdot(of_branch.gram, of_trunk.gram) - 2 * jnp.vdot(of_branch.cross, of_trunk.cross)
    with_bias = 2 * bias * (of_branch.total @ of_trunk.total - targets.total)
    constant = jnp.vdot(targets.left.T @ targets.left, targets.right.T @ targets.right)
    return 0.5 * (square + with_bias + math.prod(targets.values.shape) * bias**2 + constant)
