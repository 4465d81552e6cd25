"""When a run writes its checkpoints."""

import time

from vihmc.devices import any_process


class Pace:
    """Decides when to write: every few seconds, and at once if the run is asked to stop."""

    def __init__(self, seconds: float = 10.0) -> None:
        """Write every `seconds` seconds."""
        self._seconds, self._last, self._asked_to_stop = seconds, time.monotonic(), False

    def ask_to_stop(self) -> None:
        """Stop at the next checkpoint."""
        self._asked_to_stop = True

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether the run was asked to stop; it still finishes if no checkpoint follows."""
        return self._asked_to_stop

    def is_due(self) -> bool:
        """Whether a checkpoint is due, in any of the processes."""
        is_due = time.monotonic() - self._last >= self._seconds
        is_due, self._asked_to_stop = any_process(is_due, self._asked_to_stop)
        return self._asked_to_stop or is_due

    def on_written(self) -> None:
        """Register that a checkpoint was written; ends the run if it was asked to stop."""
        self._last = time.monotonic()
        if self._asked_to_stop:
            raise KeyboardInterrupt
