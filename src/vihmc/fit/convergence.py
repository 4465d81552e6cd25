"""When a noisy loss has stopped falling."""

import math

import numpy as np

from vihmc.config.method import VIConfig

_NEGLIGIBLE_NATS, _NEGLIGIBLE_SHARE = 0.5, 1e-3
"""A smaller change over the patience is none, whatever the noise."""
_COSINE_SHARE = 2 / 3
"""After this share of the steps a cosine schedule is at a quarter of its rate."""


class Plateau:
    """Tells when the loss has stopped falling: the last `patience` steps are no better than the ones before.

    "No better" is judged against the scatter of the recorded losses, three standard errors of the difference. A cosine
    schedule makes any loss flat in the end, so there it is judged while the rate is above a quarter of its start.
    """

    def __init__(self, config: VIConfig) -> None:
        """Begin with no losses seen."""
        self.scale = 1.0
        self.converged = False
        self._config = config
        self._window = max(5, config.plateau_patience // config.record_every)
        self._losses: list[float] = []
        self._first_loss: float | None = None
        self._drops_left = config.plateau_drops if config.schedule == "plateau" else 0

    @property
    def is_flat(self) -> bool | None:
        """Whether the loss has stopped changing; None if there are too few records to tell."""
        if self._first_loss is None or len(self._losses) < 2 * self._window:
            return None
        before = np.asarray(self._losses[-2 * self._window : -self._window])
        after = np.asarray(self._losses[-self._window :])
        noise = math.sqrt((before.var(ddof=1) + after.var(ddof=1)) / self._window)
        # A share of what was gained in all: the loss itself has a constant in it that grows with the data.
        gained = abs(self._first_loss - after.mean())
        negligible = max(3 * noise, _NEGLIGIBLE_NATS, _NEGLIGIBLE_SHARE * gained)
        return bool(abs(before.mean() - after.mean()) < negligible)

    def update(self, loss: float, num_steps: int) -> None:
        """Hear the mean loss of the last records, and lower the rate or end the fit on a plateau."""
        self._first_loss = loss if self._first_loss is None else self._first_loss
        if self._config.schedule == "cosine":
            if num_steps <= _COSINE_SHARE * self._config.num_steps:
                self._losses.append(loss)
            return
        self._losses.append(loss)
        if not self.is_flat:
            return
        if self._drops_left:
            self._drops_left -= 1
            self.scale *= self._config.plateau_factor
            self._losses.clear()
        else:
            self.converged = self._config.stop_when_converged
