r"""How long an HMC trajectory is.

In a Gaussian direction of standard deviation s (in units of the metric) the dynamics are a pendulum of period
:math:`2\pi s`, and a quarter of it, :math:`\pi s/2`, brings a fresh, independent position. The rules:

- ``quarter_period``: a quarter period of the slowest direction, :math:`\pi s_{max}/(2\,\text{step})` steps.
- ``paper``: :math:`\pi v/(2\,\text{step})` steps with a *variance* v where a standard deviation belongs, as published.

Or a given number of steps. With a jitter, the number of steps is drawn anew for every draw, one for all chains: chains
run in lockstep and would wait for the longest.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.config.method import SamplerConfig
from vihmc.samplers.metrics import Mass, some_rows
from vihmc.types import Key


def trajectory_time(config: SamplerConfig, *, slowest_std: float) -> float:
    """Integration time of a trajectory under the rules that have one."""
    if config.posterior_var is not None:
        return math.pi * config.posterior_var / 2
    return math.pi * slowest_std / 2


class LengthRule(NamedTuple):
    """What of the settings decides on a number of steps; traced, so that another rule compiles nothing."""

    fixed: int
    """The number of steps, or zero for as many as cover the time."""
    maximum: int
    jitter: float = 0.0

    @classmethod
    def of(cls, config: SamplerConfig) -> "LengthRule":
        """Read it off the settings."""
        return cls(config.num_integration_steps or 0, config.max_integration_steps, config.length_jitter)

    @property
    def longest(self) -> Any:
        """Most steps that a jitter does not take beyond the maximum."""
        return jnp.maximum(jnp.floor(self.maximum / (1 + self.jitter)), 1)


def num_steps_for(rule: LengthRule, step_size: Array | float, time: Array | float) -> Array:
    """Leapfrog steps that cover `time`, at least 1 and at most the maximum; or the fixed number."""
    # Half a step of slack: the paper's step counts come from dividing rounded decimals.
    covering = jnp.clip(jnp.floor(time / step_size + 0.5), 1, rule.longest).astype(int)
    return jnp.where(rule.fixed > 0, rule.fixed, covering)


def jittered(num_steps: Array, jitter: Array, rng_key: Key) -> Array:
    """A number of steps between ``(1 - jitter) * num_steps``, not included, and ``(1 + jitter) * num_steps``."""
    drawn = jnp.ceil((1 + jitter * (1 - 2 * jax.random.uniform(rng_key))) * num_steps)
    return jnp.where(jitter > 0, jnp.maximum(drawn, 1).astype(num_steps.dtype), num_steps)


def slowest_direction_std(positions: Float[np.ndarray, "steps chains dim"], mass: Mass) -> float:
    """Largest standard deviation over all directions within chains, as seen by the metric."""
    whitened = mass.whiten(positions - positions.mean(axis=0))
    rows = some_rows(whitened.reshape(-1, whitened.shape[-1]))
    # The Gram matrix of the rows has the eigenvalues of the covariance; the smaller of the two will do.
    product = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    largest = np.sqrt(np.linalg.eigvalsh(product)[-1] / len(rows))
    # The largest of many sample variances is too large; for independent directions by this factor (Marchenko-Pastur).
    return float(largest / (1 + np.sqrt(rows.shape[1] / len(rows))))
