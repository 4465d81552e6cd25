"""When a noisy loss has stopped falling."""

import math

import numpy as np

_NEGLIGIBLE_NATS, _NEGLIGIBLE_SHARE = 0.5, 1e-3
"""A smaller change over a window is none, whatever the noise."""
_JUDGED_SHARE = 2 / 3
"""After this share of the steps a cosine schedule is at a quarter of its learning rate."""
_WINDOW_STEPS = 1000


def has_converged(losses: np.ndarray, steps: np.ndarray, *, num_steps: int, record_every: int) -> bool | None:
    """Whether the last window of steps is no better than the one before; None if there are too few records to tell.

    "No better" is judged against the scatter of the recorded losses, three standard errors of the difference. A cosine
    schedule makes any loss flat in the end, so it is judged while the rate is above a quarter of its start.

    Args:
        losses: Mean losses of the records.
        steps: Steps done at each of them.
        num_steps: Steps of the whole fit.
        record_every: Steps between two records.
    """
    window = max(5, _WINDOW_STEPS // record_every)
    judged = losses[steps <= _JUDGED_SHARE * num_steps]
    if len(judged) < 2 * window:
        return None
    before, after = judged[-2 * window : -window], judged[-window:]
    noise = math.sqrt((before.var(ddof=1) + after.var(ddof=1)) / window)
    # A share of what was gained in all: the loss itself has a constant in it that grows with the data.
    gained = abs(losses[0] - after.mean())
    negligible = max(3 * noise, _NEGLIGIBLE_NATS, _NEGLIGIBLE_SHARE * gained)
    return bool(abs(before.mean() - after.mean()) < negligible)
