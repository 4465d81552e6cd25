"""What calibration data must be: rows that nothing was fitted to, each counted once. Recognised by their content."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from vihmc.errors import InputError


class CheckedRows(NamedTuple):
    """Calibration rows that count.

    Attributes:
        index: Which, ascending.
        notes: Sentences about those that do not.
    """

    index: Int[np.ndarray, " rows"]
    notes: tuple[str, ...]


def check_rows(
    inputs: np.ndarray,
    targets: np.ndarray,
    *,
    training_inputs: np.ndarray,
    training_targets: np.ndarray,
    what: str = "rows",
) -> CheckedRows:
    """Refuse rows that were trained on, and leave out copies of others.

    Args:
        inputs: Of the calibration rows, or functions.
        targets: What was observed there.
        training_inputs: Of the training rows.
        training_targets: Theirs.
        what: The word for rows.

    Raises:
        InputError: If some were trained on: the residuals there are smaller than at new ones.
    """
    rows, trained = _contents(inputs, targets), set(_contents(training_inputs, training_targets))
    count = sum(one in trained for one in rows)
    if count:
        raise InputError(
            f"`data` must hold {what} that the model was not trained on, got {count} of {len(rows)} that are among the "
            f"{len(training_targets)} training {what}. Their residuals are too small to calibrate with: leave them out."
        )
    index = np.sort(np.unique(np.asarray(rows, dtype=object), return_index=True)[1]) if rows else np.zeros(0, int)
    if len(index) == len(rows):
        return CheckedRows(index, ())
    note = (
        f"{len(rows) - len(index)} of {len(rows)} calibration {what} are copies of others: they say nothing new, and "
        f"the {len(index)} different ones are used."
    )
    return CheckedRows(index, (note,))


def _contents(inputs: np.ndarray, targets: np.ndarray) -> list[bytes]:
    """Every row as bytes, in the single precision that all files and posteriors share."""
    parts = [np.asarray(part, np.float32).reshape(len(targets), -1) for part in (inputs, targets)]
    return [row.tobytes() for row in np.concatenate(parts, axis=1) + np.float32(0)]
