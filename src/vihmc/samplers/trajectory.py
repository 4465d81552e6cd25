r"""How long an HMC trajectory is.

In a Gaussian direction of standard deviation s (in units of the metric) the dynamics are a pendulum of period
:math:`2\pi s`, and a quarter of it, :math:`\pi s/2`, brings a fresh, independent position. The rules:

- ``quarter_period``: a quarter period of the slowest direction, :math:`\pi s_{max}/(2\,\text{step})` steps.
- ``paper``: :math:`\pi v/(2\,\text{step})` steps with a *variance* v where a standard deviation belongs, as published.
- ``fixed``: a given number of steps.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.config import SamplerConfig


def trajectory_time(config: SamplerConfig, *, slowest_std: float, largest_var: float) -> float:
    """Integration time of a trajectory under the rules that have one."""
    if config.trajectory == "paper":
        return math.pi * (config.posterior_var or largest_var) / 2
    return math.pi * slowest_std / 2


_NUM_ROWS = 1024


class LengthRule(NamedTuple):
    """What of the settings decides on a number of steps; traced, so that another rule compiles nothing."""

    fixed: int
    """The number of steps, or zero for as many as cover the time."""
    maximum: int

    @classmethod
    def of(cls, config: SamplerConfig) -> "LengthRule":
        """Read it off the settings."""
        return cls(config.num_integration_steps or 0, config.max_integration_steps)


def num_steps_for(rule: LengthRule, step_size: Array | float, time: Array | float) -> Array:
    """Leapfrog steps that cover `time`, at least 1 and at most the maximum; or the fixed number."""
    # Half a step of slack: the paper's step counts come from dividing rounded decimals.
    covering = jnp.clip(jnp.floor(time / step_size + 0.5), 1, rule.maximum).astype(int)
    return jnp.where(rule.fixed > 0, rule.fixed, covering)


def slowest_direction_std(
    positions: Float[np.ndarray, "steps chains dim"], inverse_mass_matrix: Float[np.ndarray, " dim"]
) -> float:
    """Largest standard deviation over all directions within chains, as seen by the metric."""
    whitened = (positions - positions.mean(axis=0)) / np.sqrt(inverse_mass_matrix)
    flat = whitened.reshape(-1, whitened.shape[-1])
    # Rows at random, so that every chain is among them; their Gram matrix has the eigenvalues of the covariance and
    # stays small whatever the dimension.
    rows = flat[np.random.default_rng(0).permutation(len(flat))[:_NUM_ROWS]]
    largest = np.sqrt(np.linalg.eigvalsh(rows @ rows.T)[-1] / len(rows))
    # The largest of many sample variances is too large; for independent directions by this factor (Marchenko-Pastur).
    return float(largest / (1 + np.sqrt(rows.shape[1] / len(rows))))
