"""Where chains start: drawn from q or more widely, from several fits in turn, at a mean, or drawn from the prior."""

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vihmc.types import Key, Vector


def draw_starts(
    rng_key: Key,
    start: Literal["q", "q_mean", "prior", "fits"],
    *,
    num_chains: int,
    means: Sequence[Vector],
    stds: Sequence[Vector],
    prior_std: Array,
    scale: float = 1.0,
) -> Float[Array, "chains params"]:
    """Draw one full parameter vector per chain.

    Args:
        rng_key: Random key.
        start: The rule.
        num_chains: How many.
        means: Means of the fits, which chains take in turn; one for every rule but `fits`.
        stds: Stds of the same fits.
        prior_std: Std of the prior.
        scale: What the std is multiplied by; above one the starts are wider than what they are drawn from.
    """
    noise = scale * jax.random.normal(rng_key, (num_chains, means[0].shape[0]), means[0].dtype)
    if start == "prior":
        return prior_std * noise
    fit = jnp.arange(num_chains) % len(means)
    mean, std = (jnp.stack(list(values))[fit] for values in (means, stds))
    return mean + (jnp.zeros_like(noise) if start == "q_mean" else std * noise)
