"""Where chains start: drawn from q, at its mean, or drawn from the prior."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vihmc.types import Key, Vector


def draw_starts(
    rng_key: Key,
    start: Literal["q", "q_mean", "prior"],
    *,
    num_chains: int,
    mean: Vector,
    std: Vector,
    prior_std: Array,
) -> Float[Array, "chains params"]:
    """Draw one full parameter vector per chain."""
    noise = jax.random.normal(rng_key, (num_chains, mean.shape[0]), mean.dtype)
    if start == "prior":
        return prior_std * noise
    return mean + (std * noise if start == "q" else jnp.zeros_like(noise))
