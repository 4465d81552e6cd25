"""The results of a run as files: predictions, figures and the summary (:mod:`vihmc.runs.directory` lists all files)."""

from pathlib import Path
from typing import Any

import jax
import zarr
from matplotlib.figure import Figure

from vihmc.errors import InputError
from vihmc.fit.result import FitResult
from vihmc.pipeline import part_name
from vihmc.posterior.density import Posterior
from vihmc.runs.config import RunConfig
from vihmc.runs.directory import read_config
from vihmc.runs.disk_chains import STORES, reading
from vihmc.runs.evaluation import HMC, VI, VIHMC, RunResult
from vihmc.runs.files import replacing, save_arrays, save_json
from vihmc.runs.stage_files import load_fit
from vihmc.samplers.third_stage import Sampled


def save_predictions(path: Path, result: RunResult) -> None:
    """Store predictions of all methods, and the targets."""
    problem = result.problem
    arrays: dict[str, Any] = {"targets": problem.validation_targets}
    leaves = jax.tree_util.tree_flatten_with_path(problem.validation_inputs)[0]
    for keys, leaf in leaves:
        arrays[".".join(["inputs", *([jax.tree_util.keystr(keys, simple=True, separator=".")] if keys else [])])] = leaf
    if problem.locations is not None:
        arrays["locations"] = problem.locations
    if problem.validation_weights is not None:
        arrays["weights"] = problem.validation_weights
    predictions = {name: method.prediction for name, method in result.methods.items()}
    if result.left_out is not None:
        predictions |= {f"left_out.{VI}": result.left_out.vi, f"left_out.{VIHMC}": result.left_out.vihmc}
    for name, prediction in predictions.items():
        arrays |= {f"{name}.{field}": value for field, value in prediction.arrays().items()}
    save_arrays(path / "predictions.npz", arrays)
    for number, sampled in enumerate(result.inference.sampled_per_fit):
        _note_left_out((path / "parts" / part_name(number) if number else path) / STORES["hmc"], sampled)
    reference = result.methods[HMC].sampled if HMC in result.methods else None
    if reference is not None:
        _note_left_out(path / STORES["reference"], reference)


def _note_left_out(store: Path, sampled: Sampled) -> None:
    left_out = list(sampled.bad_chains) if sampled.dropped else []
    with reading(store):
        zarr.open_group(store, mode="r+")["posterior"].attrs["chains_left_out"] = left_out


def save_figures(path: Path, figures: dict[str, Figure]) -> None:
    """Store figures as PNG."""
    folder = path / "figures"
    folder.mkdir(exist_ok=True)
    for name, figure in figures.items():
        with replacing(folder / f"{name}.png") as file:
            figure.savefig(file, format="png", dpi=150)


def save_summary(path: Path, summary: dict[str, Any]) -> None:
    """Store the summary; the run is then finished."""
    save_json(path / "summary.json", summary)


def load_fit_of(path: Path, posterior: Posterior, config: RunConfig) -> FitResult:
    """Load the first stage of an earlier run, to be used under other settings.

    Raises:
        InputError: If the directory has none, or one of another model.
    """
    if not (path / "vi.npz").is_file():
        found = f"{path}, which has none"
        if (path / "config.toml").exists():
            found = f"{path}, whose fit has not finished. Finish it with: vihmc resume {path}"
        raise InputError(f"`fit-from` must be a run directory with a fit, got {found}.")
    if (path / "config.toml").exists():
        name = read_config(path).problem.name
        if name != config.problem.name:
            raise InputError(f"`fit-from` must hold a fit of {config.problem.name}, got one of {name} in {path}.")
    fitted = load_fit(path / "vi.npz")
    if fitted.q.mean.shape != (posterior.dim,):
        raise InputError(
            f"`fit-from` must hold a fit of this model, {posterior.num_params} parameters, "
            f"got {fitted.q.mean.size} in {path}."
        )
    return fitted
