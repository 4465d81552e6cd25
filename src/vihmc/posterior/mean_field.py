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
from vihmc.types import Key, Vector, register_pytree


@dataclass(frozen=True, eq=False)
class MeanField:
    """Independent Gaussians, one per parameter."""

    mean: Vector
    std: Vector

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
    """Return the prior as Gaussians of the size and precision of `like`."""
    std = jnp.broadcast_to(posterior.prior_std, like.mean.shape).astype(like.mean.dtype)
    return MeanField(jnp.zeros_like(like.mean), std)


def gaussian_kl(*, of_mean: Array, of_std: Array, from_mean: Array, from_std: Array) -> Array:
    """KL(N(of_mean, of_std²) ‖ N(from_mean, from_std²)), summed over components."""
    ratio = of_std / from_std
    shift = (of_mean - from_mean) / from_std
    return jnp.sum(0.5 * (ratio**2 + shift**2 - 1) - jnp.log(ratio))


def divergence_to_prior(q: MeanField, prior_std: Array, *, objective: str) -> Array:
    """The divergence term of the objective."""
    zero, prior_std = jnp.zeros_like(q.mean), jnp.broadcast_to(prior_std, q.mean.shape).astype(q.mean.dtype)
    if objective == "elbo":
        return gaussian_kl(of_mean=q.mean, of_std=q.std, from_mean=zero, from_std=prior_std)
    return gaussian_kl(of_mean=zero, of_std=prior_std, from_mean=q.mean, from_std=q.std)


def estimate_elbo(posterior: Posterior, q: MeanField, rng_key: Key, num_samples: int = 512) -> Bound:
    """Estimate the evidence lower bound of `q` with its Monte Carlo error."""
    values = _bound_samples(posterior, q, rng_key, num_samples)
    return Bound(float(jnp.mean(values)), float(jnp.std(values, ddof=1) / math.sqrt(num_samples)))


@partial(jax.jit, static_argnums=3)
def _bound_samples(posterior: Posterior, q: MeanField, rng_key: Key, num_samples: int) -> Array:
    kl = divergence_to_prior(q, posterior.prior_std, objective="elbo")
    noise_keys = jax.random.split(rng_key, num_samples)
    return jax.lax.map(lambda key: posterior.log_likelihood(q.sample(key, 1)[0]) - kl, noise_keys)
