r"""Independent Gaussians and their evidence lower bound.

.. math::
    q(\theta) = \prod_i N(\theta_i; \mu_i, \sigma_i^2), \qquad
    \text{elbo} = E_q[\log p(D \mid \theta)] - KL(q \,\|\, \text{prior})
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vihmc.posterior.density import Posterior
from vihmc.posterior.normal import LOG_2PI
from vihmc.types import Key, Vector, readable, register_pytree


@readable
@dataclass(frozen=True, eq=False)
class MeanField:
    """Independent Gaussians, one per parameter."""

    mean: Vector
    std: Vector

    def first(self, count: int) -> "MeanField":
        """Those of the first parameters: of the weights, without the scales."""
        return MeanField(self.mean[:count], self.std[:count])

    def sample(self, rng_key: Key, num_samples: int) -> Float[Array, "samples params"]:
        """Draw parameter vectors."""
        noise = jax.random.normal(rng_key, (num_samples, self.mean.shape[0]), self.mean.dtype)
        return self.mean + self.std * noise


register_pytree(MeanField, data_fields=["mean", "std"], meta_fields=[])


class Bound(NamedTuple):
    """A Monte Carlo estimate of an evidence lower bound."""

    value: float
    standard_error: float


def prior_of(posterior: Posterior, *, like: MeanField) -> MeanField:
    """Return the prior as Gaussians of the size and precision of `like`; learnt scales stay as they are there."""
    known, count = posterior.given_scales(like.mean), posterior.num_params
    mean, std = (
        jnp.broadcast_to(value, (count,)).astype(like.mean.dtype) for value in (known.prior.mean, known.prior_std)
    )
    return MeanField(jnp.concatenate([mean, like.mean[count:]]), jnp.concatenate([std, like.std[count:]]))


def gaussian_kl(*, of_mean: Array, of_std: Array, from_mean: Array, from_std: Array) -> Array:
    """KL(N(of_mean, of_std²) ‖ N(from_mean, from_std²)), summed over components."""
    ratio = of_std / from_std
    shift = (of_mean - from_mean) / from_std
    return jnp.sum(0.5 * (ratio**2 + shift**2 - 1) - jnp.log(ratio))


def divergence_to_prior(posterior: Posterior, q: MeanField, theta: Vector, *, objective: str) -> Array:
    r"""The divergence term of the objective, for the scales of `theta`, a draw of q.

    Of the weights it is exact given the scales. Of the scales u it is :math:`\log q(u) - \log p(u)`, with the
    entropy of q exact; averaged over draws of q that is the divergence of both together.
    """
    weights, scales = q.first(posterior.num_params), posterior.scales(theta)
    mean, std = (
        jnp.broadcast_to(value, weights.mean.shape).astype(q.mean.dtype)
        for value in (posterior.prior.mean, posterior.prior.std(scales.prior))
    )
    if objective == "published":
        return gaussian_kl(of_mean=mean, of_std=std, from_mean=weights.mean, from_std=weights.std)
    divergence = gaussian_kl(of_mean=weights.mean, of_std=weights.std, from_mean=mean, from_std=std)
    if not posterior.num_scales:
        return divergence
    entropy = jnp.sum(jnp.log(q.std[posterior.num_params :])) + 0.5 * posterior.num_scales * (1 + LOG_2PI)
    return divergence - entropy - posterior.log_hyperprior(scales)


def estimate_elbo(posterior: Posterior, q: MeanField, rng_key: Key, num_samples: int = 512) -> Bound:
    """Estimate the evidence lower bound of `q` with its Monte Carlo error."""
    values = _bound_samples(posterior, q, rng_key, num_samples)
    return Bound(float(jnp.mean(values)), float(jnp.std(values, ddof=1) / math.sqrt(num_samples)))


@partial(jax.jit, static_argnums=3)
def _bound_samples(posterior: Posterior, q: MeanField, rng_key: Key, num_samples: int) -> Array:
    def bound(key: Key) -> Array:
        theta = q.sample(key, 1)[0]
        return posterior.log_likelihood(theta) - divergence_to_prior(posterior, q, theta, objective="elbo")

    return jax.lax.map(bound, jax.random.split(rng_key, num_samples))
