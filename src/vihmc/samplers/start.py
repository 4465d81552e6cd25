"""Where chains start: drawn from q, at its mean, or drawn from the prior."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vihmc.posterior.mean_field import MeanField
from vihmc.types import Key


def draw_starts(
    rng_key: Key, start: Literal["q", "q_mean", "prior"], *, num_chains: int, q: MeanField, prior: MeanField
) -> Float[Array, "chains params"]:
    """Draw one full parameter vector per chain.

    Args:
        rng_key: Random key.
        start: The rule.
        num_chains: How many.
        q: The Gaussian approximation of the first stage.
        prior: The prior, with learnt scales as in q.
    """
    noise = jax.random.normal(rng_key, (num_chains, q.mean.shape[0]), q.mean.dtype)
    if start == "prior":
        return prior.mean + prior.std * noise
    return q.mean + (jnp.zeros_like(noise) if start == "q_mean" else q.std * noise)
