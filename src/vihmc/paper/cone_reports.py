"""The data that errors on the cone are reported for, and a linear baseline on each.

Errors are reported for the published validation records, many of which are training records; for inputs that are not in
the training set; and for training inputs left out in turn. The baseline, the floor to beat, is a ridge regression in
the latent variables, one for each point, on the same data.
"""

import numpy as np
from jaxtyping import Float

from vihmc.data.problem import Folds, Split
from vihmc.errors import InputError
from vihmc.paper.cone_data import Spectra

_RIDGE = 1.0


def is_among(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For each row, whether it is one of the others."""
    return (rows[:, None] == others[None]).all(axis=2).any(axis=1)


def splits(training: Spectra, validation: Spectra, unseen: np.ndarray, *, scale: float) -> tuple[Split, ...]:
    """The distinct points of unseen inputs, and the published records where some of these are training records."""
    known = (validation.counts > 0).astype(float)
    of_unseen = known * unseen[:, None]
    both = {
        "unseen": (f"{int(unseen.sum())} inputs never trained on, {int(of_unseen.sum())} distinct points", of_unseen)
    }
    if not unseen.all():
        leaked = int((validation.counts * is_known(training, validation)).sum())
        total = int(validation.counts.sum())
        both = {
            "published": (f"{total} records as published, {leaked} of them training points", validation.counts)
        } | both
    linear = predict_linear(training, validation.inputs)
    return tuple(
        Split(name, title, weights, {"linear": rms_error(linear, validation.values, weights) / scale})
        for name, (title, weights) in both.items()
    )


def is_known(training: Spectra, validation: Spectra) -> np.ndarray:
    """Which pairs of the validation set are in the training set."""
    same = (validation.inputs[:, None] == training.inputs[None]).all(axis=2).astype(float)
    return same @ (training.counts > 0) > 0


def predict_linear(training: Spectra, inputs: Float[np.ndarray, "n latents"]) -> Float[np.ndarray, "n points"]:
    """Ridge regression in the latent variables, one for each point, on its distinct values."""

    def features(latents: np.ndarray) -> np.ndarray:
        return np.concatenate([np.ones((len(latents), 1)), latents], axis=1)

    design, known = features(training.inputs.astype(float)), (training.counts > 0).astype(float)
    penalty = _RIDGE * np.eye(design.shape[1])
    penalty[0, 0] = 0
    gram = np.einsum("np,ni,nj->pij", known, design, design) + penalty
    moment = np.einsum("np,ni,np->pi", known, design, training.values)
    coefficients = np.linalg.solve(gram, moment[..., None])[..., 0]
    return features(inputs.astype(float)) @ coefficients.T


def fold(training: Spectra, num_folds: int, *, scale: float) -> Folds:
    """Leave out every `num_folds`-th input together, in turn."""
    if not 2 <= num_folds <= len(training.inputs):
        raise InputError(
            f"`leave_out.num_folds` must be from 2 to the number of inputs, {len(training.inputs)}, or 0 for none, "
            f"got {num_folds}."
        )
    number = np.arange(len(training.inputs)) % num_folds
    predicted = np.zeros_like(training.values)
    for left_out in (number == index for index in range(num_folds)):
        others = training._replace(counts=training.counts * ~left_out[:, None])
        predicted[left_out] = predict_linear(others, training.inputs[left_out])
    known = (training.counts > 0).astype(float)
    return Folds(number, known, {"linear": rms_error(predicted, training.values, known) / scale})


def rms_error(predicted: np.ndarray, values: np.ndarray, weights: np.ndarray) -> float:
    """Square root of the weighted mean square error."""
    return float(np.sqrt(np.average((predicted - values) ** 2, weights=weights)))
