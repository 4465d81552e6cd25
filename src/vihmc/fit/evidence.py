r"""Scales at a mode, by the evidence: noise and prior that make the data most probable (MacKay 1992).

Around a mode the posterior is Gaussian with the Gauss–Newton precision :math:`\Lambda`. Of the n parameters of a scale
the data determine the effective number

.. math:: \gamma_g = \sum_{i \in g} \Big(1 - \frac{(\Lambda^{-1})_{ii}}{\text{prior\_std}_i^2}\Big)

and where the evidence is largest

.. math::
    \text{prior\_std}_g^2 = \frac{\sum_{i \in g} (\theta_i - m_i)^2}{\gamma_g}, \qquad
    \text{noise\_std}_h^2 = \frac{\sum_{j \in h} (y_j - F_\theta(x_j))^2}{N_h - \gamma_h}

with :math:`\gamma_h` the sum of the leverages of the observations that have this noise, up to what the hyperprior adds.
Without :math:`\gamma` a mode of weights and scales together would shrink a layer and its scale to nothing, and a
network that can interpolate would have no noise. The diagonal of :math:`\Lambda^{-1}` is exact where the Jacobian of
the data fits into memory; otherwise it is estimated from products with :math:`\Lambda` alone, by conjugate gradients on
random signs (Hutchinson 1990).

N counts independent observations. A large model is often fitted to fields whose values at neighbouring locations are
not: ten million values of a thousand functions leave a residual far below the error at new functions, and N − γ cannot
tell. There the noise is the error on a share of the observations that the fit leaves out (:func:`hold_out`).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from vihmc.posterior.cut import LEAST_TO_DIVIDE, LEFT_OUT
from vihmc.posterior.density import Posterior
from vihmc.posterior.gauss_newton import data_rows, diagonal_std, scaled_product
from vihmc.types import Key, Vector

_MAX_ROWS = 4096
_MAX_PARAMS = 4096
_NUM_PROBES = 8
_PROBED_PARAMS = 2_000_000
"""Random signs in all: a sum over more parameters has a smaller relative error, and each probe costs more."""
_NUM_ITERATIONS = 60
_NEGLIGIBLE = 50
"""Observations per parameter from which on the noise hardly depends on how many parameters were fitted."""
_LEAST_FITTED = 0.01
_SEED_OF_DIVISION = 2003


class Division(NamedTuple):
    """What weights are fitted to, and what the noise is found from if that is something else."""

    fitted: Posterior
    held_out: Posterior | None


def hold_out(posterior: Posterior, *, has_choice: bool = False) -> Division:
    """Leave a share of the observations out of the fit, if a large model learns its noise, or a fit is to be chosen.

    Which, depends on how many there are alone: several fits leave out the same.
    """
    count = posterior.num_left_out
    if has_choice and posterior.num_observations >= LEAST_TO_DIVIDE:
        count = round(LEFT_OUT * posterior.num_observations)
    if not count:
        return Division(posterior, None)
    order = np.asarray(jax.random.permutation(jax.random.key(_SEED_OF_DIVISION), posterior.num_observations))
    return Division(posterior.rows(np.sort(order[count:])), posterior.rows(np.sort(order[:count])))


def update_scales(division: Division, theta: Vector, rng_key: Key) -> Vector:
    """Return `theta` with the scales that its weights and the data suggest; one step of the fixed-point iteration."""
    posterior, held_out = division
    if not posterior.num_scales:
        return theta
    weights, of_prior = theta[: posterior.num_params], posterior.scales(theta).prior
    fitted = None
    if posterior.prior.num_scales or held_out is None:
        fitted = _fitted_shares(posterior, theta, rng_key)
        if posterior.prior.num_scales:
            of_prior = posterior.prior.fit_scales(weights, fitted=jnp.maximum(fitted.of_params, _LEAST_FITTED))
    if held_out is None:
        assert fitted is not None
        of_likelihood = _fit_likelihood(posterior, theta, fitted.of_outputs)
    else:
        of_likelihood = _fit_likelihood(held_out, theta, jnp.zeros((), theta.dtype))
    return jnp.concatenate([weights, of_likelihood, of_prior]).astype(theta.dtype)


@jax.jit
def _fit_likelihood(posterior: Posterior, theta: Vector, num_fitted: Array) -> Array:
    outputs = posterior.predict(theta, posterior.inputs)
    return posterior.likelihood.fit_scales(
        posterior.targets,
        outputs,
        posterior.scales(theta).likelihood,
        num_fitted=num_fitted,
        weights=posterior.weights,
    )


class _Fitted(NamedTuple):
    """Degrees of freedom of a fit.

    Attributes:
        of_params: For every parameter, the share of its prior variance that the data take away; or an estimate with the
            same sums.
        of_outputs: The leverage of every output; or their sum alone.
    """

    of_params: Float[Array, " params"]
    of_outputs: Float[Array, "*outputs"]


def _fitted_shares(posterior: Posterior, theta: Float[Array, " dim"], rng_key: Key) -> _Fitted:
    """Degrees of freedom, exactly where the derivatives of the data fit into memory.

    Where the noise alone is learnt from very many observations, the largest possible value is used.
    """
    if not posterior.prior.num_scales and posterior.targets.size >= _NEGLIGIBLE * posterior.num_params:
        return _Fitted(jnp.ones(posterior.num_params, theta.dtype), jnp.asarray(posterior.num_params, theta.dtype))
    known, weights = posterior.given_scales(theta), theta[: posterior.num_params]
    scale = jnp.broadcast_to(known.prior_std, weights.shape).astype(theta.dtype)
    rows = data_rows(known, weights, scale, _MAX_ROWS) if posterior.num_params <= _MAX_PARAMS else None
    if rows is not None:
        shares, leverages = _exact_shares(np.asarray(rows.values, np.float64))
        of_outputs = np.zeros(rows.shape)
        of_outputs.flat[rows.observed] = leverages
        return _Fitted(jnp.asarray(shares, theta.dtype), jnp.asarray(of_outputs, theta.dtype))
    product = Partial(scaled_product, known, jnp.arange(weights.size), weights, scale)
    num_probes = int(np.clip(_PROBED_PARAMS // weights.size, 1, _NUM_PROBES))
    shares = _estimated_shares(product, rng_key, size=weights.size, dtype=theta.dtype, num_probes=num_probes)
    return _Fitted(shares, jnp.sum(shares))


def _exact_shares(rows: Float[np.ndarray, "n params"]) -> tuple[Float[np.ndarray, " params"], Float[np.ndarray, " n"]]:
    """Diagonals of A^T A (I + A^T A)^-1 and of A A^T (I + A A^T)^-1, from the smaller of the two Gram matrices."""
    if len(rows) < rows.shape[1]:
        solved = np.linalg.solve(np.eye(len(rows)) + rows @ rows.T, rows)
    else:
        solved = np.linalg.solve(np.eye(rows.shape[1]) + rows.T @ rows, rows.T).T
    return np.einsum("np,np->p", rows, solved), np.einsum("np,np->n", rows, solved)


@partial(jax.jit, static_argnames=("size", "dtype", "num_probes"))
def _estimated_shares(
    product: Partial, rng_key: Key, *, size: int, dtype: np.dtype, num_probes: int
) -> Float[Array, " params"]:
    def shares(key: Key) -> Array:
        signs = jax.random.rademacher(key, (size,), dtype)
        solution, _ = jax.scipy.sparse.linalg.cg(lambda v: v + product(v), signs, maxiter=_NUM_ITERATIONS)
        return 1 - signs * solution

    return jnp.mean(jax.lax.map(shares, jax.random.split(rng_key, num_probes)), axis=0)


def with_spread_of_scales(posterior: Posterior, theta: Vector, *, kl_weight: float = 1.0) -> Vector:
    """Std of all weights by the Gauss–Newton diagonal, and of the logarithm of every scale by how many values have it.

    The std of n Gaussian values is known to a relative error of :math:`(2n)^{-1/2}`.
    """
    weights = theta[: posterior.num_params]
    stds = diagonal_std(posterior.given_scales(theta), weights, kl_weight=kl_weight)
    if not posterior.num_scales:
        return stds
    return jnp.concatenate([stds, (2 * posterior.scale_counts) ** -0.5]).astype(theta.dtype)
