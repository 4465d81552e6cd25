"""The first two stages of a run as files: ``vi.npz`` and ``scores.npz``."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from vihmc.errors import InputError
from vihmc.runs.files import check_has, load_arrays, reason, save_arrays
from vihmc.fit.result import VIHistory, VIResult
from vihmc.runs.journal import Selected
from vihmc.selection.linear_model import Captured
from vihmc.posterior.mean_field import Bound, MeanField
from vihmc.selection.sensitivity import Scores

_CONVERGED = {None: -1, False: 0, True: 1}


def save_selected(file: Path, selected: Selected) -> None:
    """Store a second stage."""
    captured = {f"captured_{name}": value for name, value in selected.captured._asdict().items()}
    save_arrays(file, {**selected.scores._asdict(), "kept": selected.kept, **captured})


def load_selected(file: Path) -> Selected:
    """Load a second stage.

    Raises:
        InputError: If the file is damaged or something else.
    """
    arrays = load_arrays(file)
    check_has(file, arrays, ("values", "standard_error", "kept"))
    if arrays["kept"].ndim != 1 or arrays["kept"].dtype.kind not in "iu":
        raise InputError(f"`{file}` must hold indices of parameters, got {arrays['kept'].dtype}.")
    scores = Scores(jnp.asarray(arrays["values"]), jnp.asarray(arrays["standard_error"]))
    # A file of an older version has no captured variance.
    captured = Captured(arrays.get("captured_shares", np.zeros(0)), float(arrays.get("captured_left_out", 0.0)))
    return Selected(scores, arrays["kept"], captured)


def save_fit(file: Path, fitted: VIResult) -> None:
    """Store a first stage."""
    history = {f"history_{name}": value for name, value in fitted.history._asdict().items()}
    bounds = {"elbo": fitted.elbo, "elbo_of_prior": fitted.elbo_of_prior, "kl_weight": fitted.kl_weight}
    kind = {"converged": _CONVERGED[fitted.converged], "is_laplace": fitted.is_laplace}
    save_arrays(file, {"mean": fitted.q.mean, "std": fitted.q.std, **kind, **bounds, **history})


def load_fit(file: Path) -> VIResult:
    """Load a first stage.

    Raises:
        InputError: If the file is damaged or something else.
    """
    arrays = load_arrays(file)
    names = [f"history_{name}" for name in VIHistory._fields]
    check_has(file, arrays, ("mean", "std", "elbo", "elbo_of_prior", "converged", *names))
    try:
        return VIResult(
            q=MeanField(jnp.asarray(arrays["mean"]), jnp.asarray(arrays["std"])),
            history=VIHistory(*(arrays[name] for name in names)),
            elbo=Bound(*arrays["elbo"].tolist()),
            elbo_of_prior=Bound(*arrays["elbo_of_prior"].tolist()),
            converged={value: key for key, value in _CONVERGED.items()}[int(arrays["converged"])],
            kl_weight=float(arrays.get("kl_weight", 1.0)),
            is_laplace=bool(arrays.get("is_laplace", False)),
        )
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"`{file}` must hold a fit, got something else: {reason(error)}.") from None
