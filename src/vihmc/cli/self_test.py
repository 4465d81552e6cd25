r"""A check of the whole method against an exact answer: Bayesian linear regression.

With features :math:`X`, targets :math:`y`, noise std :math:`\sigma` and prior std :math:`s`, the posterior of the
weights is Gaussian with precision :math:`X^T X / \sigma^2 + I / s^2` and mean
:math:`(X^T X / \sigma^2 + I / s^2)^{-1} X^T y / \sigma^2`. Fit, selection of all weights and chains run as they do on
any model; means and variances of the draws are compared with that posterior, in units of their Monte Carlo error.
"""

from typing import Any

import jax
import numpy as np

from vihmc.config.method import MethodConfig, SamplerConfig, SelectionConfig, VIConfig
from vihmc.diagnostics.convergence import assess
from vihmc.pipeline import infer
from vihmc.posterior.density import Posterior

_NUM_OBSERVATIONS, _NUM_WEIGHTS = 30, 4
_NOISE_STD, _PRIOR_STD = 0.3, 1.5
_METHOD = MethodConfig(
    seed=1,
    first_stage="vi",
    vi=VIConfig(num_steps=1000, map_steps=0, num_bound_samples=50),
    selection=SelectionConfig(rule="sensitivity", threshold=1.0, captured_variance="never"),
    hmc=SamplerConfig(num_chains=4, num_draws=800, num_warmup=300, jitter=0.5),
)


def apply_linear(params: dict[str, Any], inputs: Any) -> Any:
    """A network without a hidden layer."""
    return inputs @ params["weight"]


def largest_deviation() -> float:
    """Run the method in double precision; return the largest deviation from the exact posterior, in standard errors."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(_NUM_OBSERVATIONS, _NUM_WEIGHTS))
    weights = rng.normal(size=(_NUM_WEIGHTS, 1))
    targets = features @ weights + _NOISE_STD * rng.normal(size=(_NUM_OBSERVATIONS, 1))
    precision = features.T @ features / _NOISE_STD**2 + np.eye(_NUM_WEIGHTS) / _PRIOR_STD**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ features.T @ targets[:, 0] / _NOISE_STD**2
    with jax.enable_x64(True):
        params = {"weight": np.zeros((_NUM_WEIGHTS, 1))}
        scales = {"prior_std": _PRIOR_STD, "noise_std": _NOISE_STD}
        posterior = Posterior.of(apply_linear, params, features, targets, **scales)
        draws = np.asarray(infer(posterior, _METHOD).sampled.chains.positions)
    errors = draws - mean
    moments = np.concatenate([errors, errors**2 - np.diag(covariance)], axis=-1)
    return float(np.max(np.abs(moments.mean(axis=(0, 1))) / assess(moments).mcse_mean))
