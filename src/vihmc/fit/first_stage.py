"""The first stage as the pipeline runs it: VI or Laplace, or an earlier fit re-evaluated."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from vihmc.config.method import MethodConfig
from vihmc.fit import laplace, vi
from vihmc.fit.result import FitResult, reassess
from vihmc.models.model import initialiser
from vihmc.posterior.density import Posterior
from vihmc.types import Key, Params


def fit_first_stage(
    posterior: Posterior,
    config: MethodConfig,
    rng_key: Key,
    *,
    initial_params: Params | None = None,
    fitted: FitResult | None = None,
    **others: Any,
) -> FitResult:
    """Fit by VI or Laplace, as `config.first_stage` says; `others` are further arguments of :func:`vihmc.fit.vi.fit`.

    Args:
        posterior: What to approximate.
        config: Settings of the method.
        rng_key: Random key.
        initial_params: Where the fit starts, a tree like the model's; if not given, the parameters that the
            model came with, or small random numbers.
        fitted: An earlier fit to use instead; only its bounds are re-evaluated.
        others: Validation data, progress and checkpoints.
    """
    if fitted is not None:
        return reassess(fitted, posterior, config.vi, rng_key)
    fit = laplace.fit if config.uses_laplace(num_scales=posterior.num_scales) else vi.fit
    initial_mean = posterior.initial if initial_params is None else posterior.layout.ravel(initial_params)
    return fit(posterior, config.vi, rng_key, initial_mean=initial_mean, **others)


def independent_start(posterior: Posterior, given: Params | None, rng_key: Key) -> Params | None:
    """Where a further fit starts if the first started at `given`: at new random numbers of the same kind.

    They come from the model's own initialisation where it has one; otherwise every array of `given` is replaced by
    Gaussian numbers of the same mean and std. Without a given start, a fit draws small random numbers itself.
    """
    if given is None and posterior.initial is not None:
        given = posterior.layout.unravel(posterior.initial)
    if given is None:
        return None
    init = initialiser(posterior.model)
    if init is not None:
        return init(rng_key)
    leaves, tree = jax.tree.flatten(given)
    keys = jax.random.split(rng_key, max(1, len(leaves)))
    return jax.tree.unflatten(tree, [_like(jnp.asarray(leaf), key) for leaf, key in zip(leaves, keys, strict=False)])


def _like(leaf: Array, rng_key: Key) -> Array:
    """Gaussian numbers of the mean and std of an array; a single number counts as its own std."""
    std = jnp.std(leaf) if leaf.size > 1 else jnp.abs(leaf)
    mean = jnp.mean(leaf) if leaf.size > 1 else jnp.zeros_like(leaf)
    return (mean + std * jax.random.normal(rng_key, leaf.shape, leaf.dtype)).astype(leaf.dtype)
