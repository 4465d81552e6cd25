"""Gaussian log densities, of one parameter vector or of those of many chains at once."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

LOG_2PI = math.log(2 * math.pi)


def log_normal(residual: Array, *, std: Array) -> Array:
    """Sum of log N(residual; 0, std²); `std` broadcasts against the last axes."""
    log_std = jnp.sum(jnp.log(std)) * (residual.size // jnp.size(std))
    return -0.5 * jnp.sum((residual / std) ** 2) - log_std - 0.5 * residual.size * LOG_2PI


def log_normal_of_chains(residual: Float[Array, "size chains"], *, std: Array) -> Float[Array, " chains"]:
    """The same for every chain, with one std for all rows or one per row; those of chains may differ."""
    if jnp.ndim(std) < 2:
        std = jnp.broadcast_to(std, residual.shape[:1])[:, None]
    log_std = jnp.sum(jnp.log(std), axis=0)
    return -0.5 * jnp.sum((residual / std) ** 2, axis=0) - log_std - 0.5 * residual.shape[0] * LOG_2PI
