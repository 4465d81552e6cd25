r"""Predictions of a Laplace fit: the model linearised at the mode (Immer, Korzepa and Bauer 2021).

.. math::
    f(x) \approx F_\mu(x) + J(x)\, \delta, \qquad \delta \sim N(0, \Lambda^{-1}), \qquad
    \Lambda = \text{prior\_std}^{-2} + J^\top W P J

The Gauss–Newton precision is that of the linearised model, so it belongs with its predictions: draws of the weights
put into the network itself leave the region where the linearisation holds, and predict worse. The mean is that of
the mode and the variance :math:`J \Lambda^{-1} J^\top`; for a linear model both are exact. In units of the prior
:math:`\Lambda = I + A^\top A`, and a draw is, from the smaller of the two Gram matrices,

.. math:: \delta = z - A^\top (I + A A^\top)^{-1} (A z + \epsilon), \qquad
    \delta = V (1 + \lambda)^{-1/2} z, \quad A^\top A = V \lambda V^\top

Where both are large the diagonal of :math:`\Lambda` is kept. It ignores how parameters trade off: such error bars are
rough, mostly too wide.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Float

from vihmc.fit.result import FitResult
from vihmc.posterior.density import Posterior
from vihmc.posterior.gauss_newton import data_rows, multiply_by, scaled_product
from vihmc.posterior.subspace import TangentSpace
from vihmc.types import Key, Vector

MAX_SIZE = 4096
"""Parameters, or values, up to which the covariance is exact."""
_MAX_OPERATIONS = 1e11
"""Rows times squared parameters, up to which the Gram matrix of more values than that is formed."""


def draw_linearised(
    posterior: Posterior, fit: FitResult, rng_key: Key, num_draws: int
) -> tuple[TangentSpace, Float[np.ndarray, "draws dim"]]:
    """Draw weights and scales around the mode, in pairs with opposite signs, and the space they are meant for."""
    count, center = posterior.num_params, np.asarray(fit.q.mean)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(rng_key)))
    half = -(-num_draws // 2)
    draws = np.empty((num_draws, posterior.dim), center.dtype)
    draws[:half, :count] = _draw_weights(posterior, fit, rng, half)
    draws[:half, count:] = rng.normal(size=(half, posterior.num_scales)) * np.asarray(fit.q.std[count:])
    np.negative(draws[: num_draws - half], out=draws[half:])
    draws += center
    return TangentSpace.at(fit.q.mean), draws


def _draw_weights(
    posterior: Posterior, fit: FitResult, rng: np.random.Generator, count: int
) -> Float[np.ndarray, "draws params"]:
    """Draw from the Gauss–Newton posterior of the weights, around zero."""
    known, mode = posterior.given_scales(fit.q.mean), fit.q.mean[: posterior.num_params]
    scale = jnp.broadcast_to(known.prior_std, mode.shape).astype(mode.dtype)
    temper = fit.kl_weight**-0.5
    rows = data_rows(known, mode, scale, MAX_SIZE)
    if rows is None and not _is_small(posterior):
        return rng.standard_normal((count, mode.size), np.float32) * np.asarray(fit.q.std[: mode.size], np.float32)
    standard = rng.normal(size=(count, mode.size))
    if rows is not None and len(rows.values) <= mode.size:
        data = temper * np.asarray(rows.values, np.float64)
        noise = rng.normal(size=(count, len(data)))
        solved = np.linalg.solve(np.eye(len(data)) + data @ data.T, (standard @ data.T + noise).T)
        return np.asarray(scale) * (standard - solved.T @ data)
    if rows is None:
        gram = _gram(known, mode, scale)
    else:
        data = np.asarray(rows.values, np.float64)
        gram = data.T @ data
    # In single precision products have negative eigenvalues of rounding size.
    values, vectors = np.linalg.eigh(gram)
    spread = 1 / np.sqrt(1 + temper**2 * np.maximum(values, 0))
    return np.asarray(scale) * ((standard * spread) @ vectors.T)


def _is_small(posterior: Posterior) -> bool:
    """Whether the Gram matrix of the parameters can be formed from products."""
    operations = posterior.num_network_rows * posterior.num_params**2
    return posterior.num_params <= MAX_SIZE and operations <= _MAX_OPERATIONS


def _gram(posterior: Posterior, mode: Vector, scale: Vector) -> Float[np.ndarray, "params params"]:
    """A^T A from products with it, a column at a time."""
    product = Partial(scaled_product, posterior, jnp.arange(mode.size), mode, scale)
    columns = np.asarray(jax.jit(multiply_by)(product, jnp.eye(mode.size, dtype=mode.dtype)), np.float64)
    return (columns + columns.T) / 2
