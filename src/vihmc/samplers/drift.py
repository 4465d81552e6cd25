r"""Whether chains still drift: all of them in one direction, by more than they move anyway.

Of a quantity a and every chain c, d_c is its mean over the second half of the steps less that over the first. Chains
that have arrived have d of both signs; a common drift shows in

.. math:: t = \frac{\bar d}{s_d / \sqrt C} \qquad \text{and} \qquad \frac{|\bar d|}{s_a},

with s_d the standard deviation of d over the C chains and s_a that of the quantity within half a chain. The quantities
are the log density and the logarithm of the squared length of the position, which holds the scale of the weights.
Chains that have arrived are found to drift by chance in about one of ten looks, which costs them one more window.
"""

import numpy as np
from jaxtyping import Array, Float

MOST_ERRORS = 3.0
"""Largest t: for four chains that have arrived, beyond it with a probability of 6 %."""
MOST_STDS = 0.3
"""A smaller drift, in standard deviations, is none."""
LEAST_STEPS = 8


def traces_of(
    positions: Float[Array | np.ndarray, "steps chains dim"], log_density: Float[Array | np.ndarray, "steps chains"]
) -> Float[np.ndarray, "steps chains 2"]:
    """What must not drift, at every step of every chain."""
    squares = np.sum(np.square(np.asarray(positions, np.float64)), axis=-1)
    return np.stack([np.asarray(log_density, np.float64), np.log(np.maximum(squares, np.finfo(float).tiny))], axis=-1)


def is_drifting(traces: Float[np.ndarray, "steps chains quantities"]) -> bool:
    """Whether a quantity drifts in all chains together; of one chain, or of few steps, nothing is known."""
    num_steps, num_chains = traces.shape[:2]
    if num_chains < 2 or num_steps < LEAST_STEPS:
        return False
    half = num_steps // 2
    first, second = traces[:half], traces[-half:]
    change = second.mean(axis=0) - first.mean(axis=0)
    within = np.sqrt((first.var(axis=0) + second.var(axis=0)).mean(axis=0) / 2)
    drift, error = np.abs(change.mean(axis=0)), change.std(axis=0, ddof=1) / np.sqrt(num_chains)
    return bool(np.any((drift > MOST_ERRORS * error) & (drift > MOST_STDS * within)))
