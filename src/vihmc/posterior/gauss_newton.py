r"""The Gauss–Newton approximation of a posterior: whitened coordinates, products, and its diagonal.

With the Jacobian J of the predictions at the mean of the fit, the Gauss-Newton precision of the selected parameters is

.. math::
    \Sigma^{-1} = \text{prior\_std}^{-2} + J^\top W J / \text{noise\_std}^2
    = \text{prior\_std}^{-1} \left(I + \textstyle\sum_m \lambda_m v_m v_m^\top\right) \text{prior\_std}^{-1}

A few of its directions are known to the data a thousand times better than the prior knows them; they force a small step
on a sampler that has to cross the others. The map from whitened coordinates z,

.. math::
    \theta = \mu + \text{prior\_std} \left(z + \textstyle\sum_m s_m v_m (v_m \cdot z)\right), \qquad
    s_m = (1 + \lambda_m)^{-1/2} - 1

undoes the leading ones. It is linear, so the density of z is that of :math:`\theta` up to a constant, and what is
sampled stays exact however few directions it has. They come from products :math:`J^\top W J v` alone, by subspace
iteration. Where a network bends over the width of its posterior, as the cone's does, the directions turn on the way and
the map helps little: it is for posteriors that the fit's own curvature describes.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from vihmc.posterior.density import Posterior
from vihmc.posterior.mean_field import MeanField, prior_of
from vihmc.posterior.squared_gradients import MANY_OUTPUTS, estimate_squared_gradients
from vihmc.posterior.subspace import Subspace
from vihmc.types import Key, LogDensity, Vector, as_pytree_function

_EXTRA_DIRECTIONS = 10
_NUM_ITERATIONS = 3
_PRODUCTS_AT_ONCE = 8
_NUM_PROBES = 64
"""Random signs for a diagonal that is estimated: a relative error of 18 % in a variance."""
_MAX_ENTRIES = 1e8
"""Derivatives of all observations are held if they are no more than these."""


class Whitening(NamedTuple):
    """A linear map between positions and coordinates in which they are nearly independent, of size one.

    Attributes:
        center: The position whose coordinates are zero.
        scale: Size of each parameter before the directions are considered.
        basis: Orthonormal directions.
        shrinkage: How much shorter each of them is, minus one.
    """

    center: Float[Array, " dim"]
    scale: Float[Array, " dim"]
    basis: Float[Array, "dim rank"]
    shrinkage: Float[Array, " rank"]

    def to_position(self, coordinates: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        """Map coordinates to positions."""
        return self.center + self.scale * self._along_basis(coordinates, self.shrinkage)

    def to_coordinates(self, position: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        """Map positions to coordinates."""
        return self._along_basis((position - self.center) / self.scale, 1 / (1 + self.shrinkage) - 1)

    def _along_basis(self, vectors: Array, factors: Array) -> Array:
        # The directions are float32 to be read fast: which map it is does not matter, as long as it is the same one.
        along = factors * (vectors.astype(self.basis.dtype) @ self.basis)
        return vectors + (along @ self.basis.T).astype(vectors.dtype)

    def log_density(self, logdensity_fn: LogDensity) -> LogDensity:
        """The density of the coordinates, up to a constant."""
        return Partial(_in_coordinates, self, as_pytree_function(logdensity_fn))


def _in_coordinates(whitening: Whitening, logdensity_fn: LogDensity, coordinates: Array) -> Array:
    return logdensity_fn(whitening.to_position(coordinates))


def whiten(posterior: Posterior, subspace: Subspace, q: MeanField, rng_key: Key, *, rank: int) -> Whitening:
    """Find coordinates for the selected parameters around the mean of q.

    Args:
        posterior: Its data and its prior.
        subspace: The selected parameters.
        q: The Gaussian approximation of the first stage; the curvature is that at its mean.
        rng_key: Starts the iteration.
        rank: Directions to find.
    """
    dtype, mean = jnp.result_type(float), q.mean
    center = subspace.extract(mean).astype(dtype)
    # Learnt scales have no prior std, and the predictions do not depend on them: they keep that of q.
    scale = subspace.extract(prior_of(posterior, like=q).std).astype(dtype)
    rank = min(rank, subspace.num_selected, posterior.targets.size)
    product = Partial(scaled_product, posterior, subspace.selected, mean, scale.astype(mean.dtype))
    values, vectors = leading_eigenpairs(product, rng_key, size=subspace.num_selected, rank=rank, dtype=mean.dtype)
    shrinkage = 1 / jnp.sqrt(1 + jnp.maximum(values, 0)) - 1
    return Whitening(center, scale, vectors.astype(jnp.float32), shrinkage.astype(jnp.float32))


class DataRows(NamedTuple):
    """Derivatives of the observed outputs, in units of noise and prior.

    Attributes:
        values: One row per observed output.
        observed: Which output each row is of, among all of them.
        shape: Of all outputs.
    """

    values: Float[Array, "rows params"]
    observed: Int[np.ndarray, " rows"]
    shape: tuple[int, ...]


def data_rows(posterior: Posterior, theta: Vector, scale: Float[Array, " params"], max_rows: int) -> DataRows | None:
    r"""All rows of :math:`A = (W P)^{1/2} J s`, one per observed output; None if they are too many."""
    precision = posterior.precision(theta, posterior.inputs)
    weights = precision if posterior.weights is None else posterior.weights * precision
    observed = np.flatnonzero(np.asarray(weights))
    if observed.size > max_rows or observed.size * theta.size > _MAX_ENTRIES:
        return None
    rows = posterior.gradients_at(theta, posterior.inputs, observed)
    values = scale * rows * jnp.sqrt(weights).ravel()[observed].astype(theta.dtype)[:, None]
    return DataRows(values, observed, weights.shape)


def scaled_product(
    posterior: Posterior,
    selected: Array,
    theta: Vector,
    scale: Float[Array, " selected"],
    vector: Float[Array, " selected"],
) -> Float[Array, " selected"]:
    r"""Multiply a vector by :math:`s\, J^\top W P J\, s`, with J of the selected parameters."""
    tangent = jnp.zeros_like(theta).at[selected].set(scale * vector)
    return scale * posterior.gauss_newton_product(theta, tangent).astype(vector.dtype)[selected]


def multiply_by(product: Partial, vectors: Float[Array, "size columns"]) -> Float[Array, "size columns"]:
    """Multiply every column, a few at a time."""
    return jax.lax.map(product, vectors.T, batch_size=min(_PRODUCTS_AT_ONCE, vectors.shape[1])).T


@partial(jax.jit, static_argnames=("size", "rank", "dtype"))
def leading_eigenpairs(
    product: Partial, rng_key: Key, *, size: int, rank: int, dtype: np.dtype
) -> tuple[Float[Array, " rank"], Float[Array, "size rank"]]:
    """Largest eigenvalues of a symmetric matrix, in descending order, and their vectors, from products with it.

    Random vectors are multiplied and made orthonormal a few times. What is found of the smallest of them is rough.
    """
    vectors = jax.random.normal(rng_key, (size, min(size, rank + _EXTRA_DIRECTIONS)), dtype)
    for _ in range(_NUM_ITERATIONS):
        vectors, _ = jnp.linalg.qr(multiply_by(product, vectors))
    values, rotation = jnp.linalg.eigh(vectors.T @ multiply_by(product, vectors))
    return values[::-1][:rank], (vectors @ rotation)[:, ::-1][:, :rank]


def diagonal_std(posterior: Posterior, theta: Vector, *, kl_weight: float = 1.0, memory_mb: float = 256.0) -> Vector:
    r"""Std of a Gaussian whose precision is the Gauss–Newton diagonal; the data count 1/`kl_weight` times.

    .. math:: \sigma_i^{-2} = \text{prior\_std}_i^{-2} + \sum_j w_j P_j J_{ji}^2

    It is where the std of q would be if the model were linear, so a fit of it that starts there has little to find. Of
    very many outputs, the sum is estimated from random signs, always the same ones.
    """
    weights, precision = posterior.weights, posterior.precision(theta, posterior.inputs)
    weights = precision if weights is None else weights * precision
    if weights.size > MANY_OUTPUTS and not posterior.has_fast_squared_gradients:
        squares, _ = estimate_squared_gradients(
            posterior.predict, theta, posterior.inputs, jax.random.key(0), weights=weights, num_probes=_NUM_PROBES,
            memory_mb=memory_mb,
        )  # fmt: skip
    else:
        squares = posterior.sum_squared_gradients(theta, posterior.inputs, weights=weights, memory_mb=memory_mb)
    precision = 1 / posterior.prior_std**2 + squares / kl_weight
    return (precision**-0.5).astype(theta.dtype)
