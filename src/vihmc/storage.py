"""The run directory: everything a run leaves behind, in formats that need no pickle and no vihmc to read.

::

    config.toml       every setting, resolved; `vihmc run config.toml` repeats the run
    vi.npz            mean and std of q, history of the fit
    scores.npz        sensitivity of every parameter, indices of the kept ones
    draws.zarr        draws of the kept parameters, in ArviZ's layout
    reference.zarr    the same for full-space HMC, if it was run
    predictions.npz   mean, std and quantiles of every method at the validation inputs
    figures/*.png
    summary.json      written last: a directory that has it is a finished run
"""

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from vihmc.config import Config, to_toml
from vihmc.diagnostics import to_datatree
from vihmc.errors import InputError
from vihmc.evaluation import HMC, RunResult
from vihmc.pipeline import Sampled


def create_run_directory(path: Path, config: Config) -> Path:
    """Make the directory of a new run and store its settings; a directory with anything in it is left alone."""
    try:
        if path.exists() and not path.is_dir():
            raise InputError(f"`out` must be a directory, got the file {path}.")
        if path.exists() and any(path.iterdir()):
            what = "another run" if (path / "config.toml").exists() else "other files"
            raise InputError(f"`out` must be a new or empty directory, got {path}, which holds {what}. Left as it is.")
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / "config.toml", to_toml(config))
    except OSError as error:
        raise InputError(f"`out` must be a directory that can be written, got {path}: {error.strerror}.") from None
    return path


def discard_run_directory(path: Path) -> None:
    """Remove the directory of a run that never began; anything but its settings stays, and so does the directory."""
    (path / "config.toml").unlink()
    if not any(path.iterdir()):
        path.rmdir()


def next_run_directory(problem: str, preset: str) -> Path:
    """Return the first of ``runs/NAME-PRESET-1``, ``-2``, … that does not exist yet."""
    number = 1
    while (path := Path("runs") / f"{problem}-{preset}-{number}").exists():
        number += 1
    return path


def save_result(path: Path, result: RunResult) -> None:
    """Store the numbers of a run: all but figures and summary."""
    inference, problem = result.inference, result.problem
    q = inference.vi.q
    history = {f"history_{name}": value for name, value in inference.vi.history._asdict().items()}
    np.savez(path / "vi.npz", mean=q.mean, std=q.std, **history)
    np.savez(
        path / "scores.npz",
        values=inference.scores.values,
        standard_error=inference.scores.standard_error,
        kept=inference.subspace.kept,
    )
    _save_draws(path / "draws.zarr", inference.sampled, problem.param_names)
    if HMC in result.methods and (reference := result.methods[HMC].sampled) is not None:
        _save_draws(path / "reference.zarr", reference, problem.param_names)
    arrays: dict[str, Any] = {"targets": problem.validation_targets}
    leaves = jax.tree_util.tree_flatten_with_path(problem.validation_inputs)[0]
    for keys, leaf in leaves:
        arrays[".".join(["inputs", *([jax.tree_util.keystr(keys, simple=True, separator=".")] if keys else [])])] = leaf
    for name, method in result.methods.items():
        arrays |= {f"{name}.{field}": value for field, value in method.prediction._asdict().items()}
    np.savez(path / "predictions.npz", **arrays)


def save_figures(path: Path, figures: dict[str, Figure]) -> None:
    """Store figures as PNG."""
    folder = path / "figures"
    folder.mkdir(exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=150)


def save_summary(path: Path, summary: dict[str, Any]) -> None:
    """Store the summary; the run is then finished. A number that is not finite becomes null, as JSON has no NaN."""
    write_atomically(path / "summary.json", json.dumps(_finite(summary), indent=2, ensure_ascii=False) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that it is either whole or not there."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _save_draws(path: Path, sampled: Sampled, names: tuple[str, ...]) -> None:
    kept = [names[index] for index in sampled.subspace.kept.tolist()]
    to_datatree(sampled.chains, kept).to_zarr(path, consolidated=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
