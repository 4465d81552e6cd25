r"""Simulation-based calibration: does what is claimed about data sets hold over many of them?

Draw parameters from the prior and data from the likelihood, infer, and compare with the parameters that made the data.
Of draws from the right posterior the rank of the truth is uniform, and a band of 80 % holds it in 80 % of data sets
(Cook, Gelman, Rubin 2006; Talts et al. 2018). For any posterior, also one's own.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy import stats

from vihmc.posterior.density import Posterior
from vihmc.types import Key, Vector

LEVELS = (0.5, 0.8, 0.95)


class Simulated(NamedTuple):
    """Parameters from the prior, and the posterior of data that they made."""

    theta: Vector
    posterior: Posterior


def simulate(posterior: Posterior, rng_key: Key, *, theta: Vector | None = None) -> Simulated:
    """Draw parameters, unless they are given, and targets at the inputs of `posterior`."""
    key_theta, key_noise = jax.random.split(rng_key)
    if theta is None:
        theta = draw_from_prior(posterior, key_theta)
    outputs = posterior.predict(theta, posterior.inputs)
    targets = posterior.likelihood.sample(key_noise, outputs, posterior.scales(theta).likelihood)
    return Simulated(theta, posterior.with_targets(targets))


def draw_from_prior(posterior: Posterior, rng_key: Key) -> Vector:
    """Draw scales from their hyperprior and weights given them."""
    dtype, parts = posterior.targets.dtype, (posterior.likelihood, posterior.prior)
    medians = [getattr(part, "medians") for part in parts if part.num_scales]  # noqa: B009, scales are half-Cauchy
    key_weights, key_scales = jax.random.split(rng_key)
    log_scales = jnp.zeros(0, dtype)
    if medians:
        # The tangent of a uniform angle is half-Cauchy.
        median = jnp.concatenate(medians)
        angles = 0.5 * jnp.pi * jax.random.uniform(key_scales, median.shape, median.dtype)
        log_scales = jnp.log(median * jnp.tan(angles)).astype(dtype)
    theta = jnp.concatenate([jnp.zeros(posterior.num_params, dtype), log_scales])
    known = posterior.given_scales(theta)
    noise = jax.random.normal(key_weights if medians else rng_key, (posterior.num_params,), dtype)
    return jnp.concatenate([known.prior.mean + known.prior_std * noise, log_scales]).astype(dtype)


def ranks(draws: Float[np.ndarray, "draws *quantity"], truth: Float[Array | np.ndarray, "*quantity"]) -> np.ndarray:
    """How many of the draws are below the truth: from 0 to their number, each as likely, if all are from one law."""
    return np.sum(draws < np.asarray(truth), axis=0)


def uniformity(ranks: Int[np.ndarray, " datasets"], num_draws: int, num_bins: int = 10) -> float:
    """The p-value of a χ² test that ranks from 0 to `num_draws` are uniform."""
    observed, edges = np.histogram(ranks, bins=np.linspace(-0.5, num_draws + 0.5, num_bins + 1))
    # Bins hold whole ranks, and not always equally many.
    counts = np.diff(np.floor(edges + 0.5).clip(0, num_draws + 1))
    expected = ranks.size * counts / (num_draws + 1)
    return float(stats.chisquare(observed, expected).pvalue)


def coverage(
    draws: Float[np.ndarray, "draws *quantity"],
    truth: Float[Array | np.ndarray, "*quantity"],
    levels: Sequence[float] = LEVELS,
) -> dict[float, float]:
    """Share of the quantities whose central band of each level holds the truth."""
    found = {}
    for level in levels:
        low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
        found[level] = float(np.mean((low <= np.asarray(truth)) & (np.asarray(truth) <= high)))
    return found


class Share(NamedTuple):
    """A mean over data sets, and its standard error."""

    value: float
    standard_error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Share":
        """Average independent values."""
        array = np.asarray(values, dtype=float)
        return cls(float(array.mean()), float(array.std(ddof=1) / np.sqrt(array.size)))


def predictions(posterior: Posterior, draws: Float[np.ndarray, "draws params"], inputs: Array) -> np.ndarray:
    """The model at `inputs` for every draw of all parameters: (draw, input, output)."""
    return np.asarray(_predict(posterior, jnp.asarray(draws), inputs))


@jax.jit
def _predict(posterior: Posterior, draws: Array, inputs: Array) -> Array:
    return jax.vmap(lambda theta: posterior.predict(theta, inputs))(draws)
