"""The first two stages of a run as files: ``vi.npz`` and ``scores.npz``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from vihmc.errors import InputError
from vihmc.fit.result import FitHistory, FitResult
from vihmc.posterior.mean_field import Bound, MeanField
from vihmc.runs.files import check_has, load_arrays, reason, save_arrays
from vihmc.selection.linear_model import Captured
from vihmc.selection.second_stage import Selected
from vihmc.selection.sensitivity import Scores

_CONVERGED = {None: -1, False: 0, True: 1}


def save_selected(file: Path, selected: Selected) -> None:
    """Store a second stage."""
    arrays = {**selected.scores._asdict(), "selected": selected.indices}
    if selected.captured is not None:
        arrays |= {f"captured_{name}": value for name, value in selected.captured._asdict().items()}
    save_arrays(file, arrays)


def load_selected(file: Path) -> Selected:
    """Load a second stage.

    Raises:
        InputError: If the file is damaged or holds something else.
    """
    arrays = load_arrays(file)
    check_has(file, arrays, ("values", "standard_error", "selected"))
    if arrays["selected"].ndim != 1 or arrays["selected"].dtype.kind not in "iu":
        raise InputError(f"`{file}` must hold indices of parameters, got {arrays['selected'].dtype}.")
    scores = Scores(jnp.asarray(arrays["values"]), jnp.asarray(arrays["standard_error"]))
    captured = None
    if "captured_shares" in arrays:
        captured = Captured(arrays["captured_shares"], float(arrays["captured_left_out"]))
    return Selected(scores, arrays["selected"], captured)


def save_fit(file: Path, fitted: FitResult) -> None:
    """Store a first stage."""
    history = {f"history_{name}": value for name, value in fitted.history._asdict().items()}
    bounds = {"elbo": fitted.elbo, "elbo_of_prior": fitted.elbo_of_prior, "kl_weight": fitted.kl_weight}
    kind = {"converged": _CONVERGED[fitted.converged], "is_laplace": fitted.is_laplace}
    save_arrays(file, {"mean": fitted.q.mean, "std": fitted.q.std, "mode": fitted.mode, **kind, **bounds, **history})


def load_fit(file: Path) -> FitResult:
    """Load a first stage.

    Raises:
        InputError: If the file is damaged or holds something else.
    """
    arrays = load_arrays(file)
    names = [f"history_{name}" for name in FitHistory._fields]
    known = ("mean", "std", "mode", "elbo", "elbo_of_prior", "converged", "kl_weight", "is_laplace")
    check_has(file, arrays, (*known, *names))
    try:
        return FitResult(
            q=MeanField(jnp.asarray(arrays["mean"]), jnp.asarray(arrays["std"])),
            mode=jnp.asarray(arrays["mode"]),
            history=FitHistory(*(arrays[name] for name in names)),
            elbo=Bound(*arrays["elbo"].tolist()),
            elbo_of_prior=Bound(*arrays["elbo_of_prior"].tolist()),
            converged={value: key for key, value in _CONVERGED.items()}[int(arrays["converged"])],
            kl_weight=float(arrays["kl_weight"]),
            is_laplace=bool(arrays["is_laplace"]),
        )
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"`{file}` must hold a fit, got invalid contents: {reason(error)}.") from None


STAGES: dict[str, tuple[str, Callable[[Path], Any], Callable[..., None]]] = {
    "fit": ("vi.npz", load_fit, save_fit),
    "selected": ("scores.npz", load_selected, save_selected),
}
"""Stages that are stored when they end: their file, and how it is read and written."""
