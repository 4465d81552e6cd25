"""What a user should know about the data before trusting anything: sentences, never silence."""

import warnings
from typing import Any

import numpy as np

from vihmc.errors import DataWarning
from vihmc.models.features import is_constant
from vihmc.posterior.density import Posterior

FEW_ROWS = 10
SIZES = (1e-3, 1e3)
"""Sizes of inputs and targets that a prior around one suits; others should be standardised."""
OBSERVATIONS = "validation targets are noisy observations, not the true function"


def find_notices(posterior: Posterior, *, has_held_out: bool = True) -> list[str]:
    """Sentences about few rows, constant columns, and sizes that the prior does not suit."""
    found = []
    count = posterior.num_observations
    if count < FEW_ROWS:
        found.append(f"`inputs` has {count} rows: so few data leave the error bars to the prior.")
    is_standardised = getattr(posterior.model, "inputs", None) is not None
    for name, values in (("inputs", posterior.inputs), ("targets", posterior.targets)):
        columns = _as_columns(values)
        if columns is None or (name == "targets" and posterior.likelihood.is_discrete):
            continue
        if name == "inputs" and count > 1 and (constant := np.flatnonzero(is_constant(columns)).tolist()):
            which = ", ".join(map(str, constant[:5])) + (" and others" if len(constant) > 5 else "")
            plural = "columns" if len(constant) > 1 else "column"
            found.append(f"`inputs` has constant {plural} ({which}): nothing can be learnt about what depends on them.")
        size = float(np.max(np.sqrt(np.mean(np.square(columns), axis=0))))
        if not is_standardised and size and not SIZES[0] <= size <= SIZES[1] and not _has_own_units(posterior):
            found.append(
                f"`{name}` has a root mean square of {size:.2g}, for which weights of size one are no good prior. Pass "
                "standardise=True to Posterior.of."
            )
    if not has_held_out:
        found.append(
            "No data were held out: all scores are of training data, which the model has seen. Pass validation=(x, y)."
        )
    return found


def tell(notices: list[str]) -> None:
    """Give every sentence as a Python warning."""
    for notice in notices:
        warnings.warn(notice, DataWarning, stacklevel=3)


def describe_data(posterior: Posterior, num_validation: int) -> dict[str, Any]:
    """How much data there is, for the summary."""
    return {
        "num_training": posterior.num_observations,
        "num_validation": num_validation,
        "standardised": getattr(posterior.model, "inputs", None) is not None,
        "note": OBSERVATIONS,
    }


def _has_own_units(posterior: Posterior) -> bool:
    """Whether the model itself changes units, as an operator may."""
    model = posterior.model
    scale, features = getattr(model, "output_scale", 1.0), getattr(model, "branch_features", None)
    return scale != 1.0 or features is not None


def _as_columns(values: Any) -> np.ndarray | None:
    """An array as columns of numbers; None for a tree of arrays."""
    if not hasattr(values, "shape"):
        return None
    array = np.asarray(values, dtype=np.float64)
    return array.reshape(len(array), -1)
