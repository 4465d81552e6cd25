"""The run directory: everything a run leaves behind, in formats that need no pickle and no vihmc to read.

::

    config.toml       every setting, resolved; `vihmc run config.toml` repeats the run
    vi.npz            mean and std of q, history of the fit and its bounds; written as soon as the fit has ended
    vi_checkpoint.npz where a fit that has not ended was a few minutes ago; gone when it has
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
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from vihmc import vi
from vihmc.config import Config, Settings, VIConfig, build_config, read_toml, to_toml
from vihmc.diagnostics import to_datatree
from vihmc.errors import InputError
from vihmc.evaluation import HMC, VI, VIHMC, RunResult
from vihmc.mean_field import Bound, MeanField
from vihmc.operator import OperatorPosterior
from vihmc.pipeline import Sampled
from vihmc.posterior import Posterior
from vihmc.vi import VICheckpoint, VIHistory, VIResult

MANY_NAMES = 10_000


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
    if len(list(path.iterdir())) > 1:
        return  # a fit was kept: the settings belong to it
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
    save_fit(path, inference.vi)
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
    if isinstance(problem.posterior, OperatorPosterior):
        arrays["locations"] = problem.posterior.locations
    if problem.validation_weights is not None:
        arrays["weights"] = problem.validation_weights
    predictions = {name: method.prediction for name, method in result.methods.items()}
    if result.left_out is not None:
        predictions |= {f"left_out.{VI}": result.left_out.vi, f"left_out.{VIHMC}": result.left_out.vihmc}
    for name, prediction in predictions.items():
        fields = {field: value for field, value in prediction._asdict().items() if value is not None}
        arrays |= {f"{name}.{field}": value for field, value in fields.items()}
    np.savez(path / "predictions.npz", **arrays)


def save_fit(path: Path, fitted: VIResult) -> None:
    """Store the first stage, so that a later run can begin after it."""
    history = {f"history_{name}": value for name, value in fitted.history._asdict().items()}
    bounds = {"elbo": fitted.elbo, "elbo_of_prior": fitted.elbo_of_prior}
    converged = {None: -1, False: 0, True: 1}[fitted.converged]
    _save_arrays(
        path / "vi.npz", {"mean": fitted.q.mean, "std": fitted.q.std, "converged": converged, **bounds, **history}
    )
    (path / "vi_checkpoint.npz").unlink(missing_ok=True)


def save_checkpoint(path: Path, checkpoint: VICheckpoint) -> None:
    """Store where a fit is; the file of the last time is replaced only when the new one is whole."""
    leaves = {f"state_{index}": leaf for index, leaf in enumerate(jax.tree.leaves(checkpoint.state))}
    _save_arrays(path / "vi_checkpoint.npz", {"records": checkpoint.records, **leaves})


def load_fit(path: Path, posterior: Posterior, config: Config) -> VIResult | VICheckpoint:
    """Load the first stage of an earlier run: as it ended, or else its last checkpoint.

    A fit that has ended can be used under other settings; one under way goes on under its own.

    Raises:
        InputError: If the directory has neither, they belong to another model, or a checkpoint to other settings.
    """
    ended = (path / "vi.npz").exists()
    file = path / ("vi.npz" if ended else "vi_checkpoint.npz")
    try:
        with file.open("rb") as opened:
            arrays = dict(np.load(opened, allow_pickle=False))
        needed = ("mean", "std", "elbo", "elbo_of_prior", "converged") if ended else ("records",)
        missing = [name for name in needed if name not in arrays]
    except Exception as error:  # a broken file can be broken in many ways
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"`fit-from` must be a run directory with a fit or a checkpoint of one, got {path}: {reason}."
        ) from None
    if missing:
        raise InputError(f"`fit-from` must hold a fit of this version, got {path} without {', '.join(missing)}.")
    if not ended:
        _check_same_settings(path, config)
        return _restore_checkpoint(arrays, path, posterior, config.vi)
    if (path / "config.toml").exists():
        begun = build_config(read_toml(path / "config.toml")).problem.name
        if begun != config.problem.name:
            raise InputError(f"`fit-from` must hold a fit of {config.problem.name}, got one of {begun} in {path}.")
    if arrays["mean"].shape != (posterior.num_params,):
        raise InputError(
            f"`fit-from` must hold a fit of this model, {posterior.num_params} parameters, "
            f"got {arrays['mean'].size} in {path}."
        )
    return VIResult(
        q=MeanField(jnp.asarray(arrays["mean"]), jnp.asarray(arrays["std"])),
        history=VIHistory(*(arrays[f"history_{name}"] for name in VIHistory._fields)),
        elbo=Bound(*arrays["elbo"].tolist()),
        elbo_of_prior=Bound(*arrays["elbo_of_prior"].tolist()),
        converged={-1: None, 0: False, 1: True}[int(arrays["converged"])],
    )


def _restore_checkpoint(arrays: dict, path: Path, posterior: Posterior, config: VIConfig) -> VICheckpoint:
    mean = jnp.zeros(posterior.num_params, posterior.targets.dtype)
    template = jax.eval_shape(lambda: vi.init(mean, 0.01, posterior.layout, config))
    leaves, structure = jax.tree.flatten(template)
    stored = [arrays.get(f"state_{index}") for index in range(len(leaves))]
    shapes = [None if leaf is None else leaf.shape for leaf in stored]
    if len(arrays) != len(leaves) + 1 or shapes != [leaf.shape for leaf in leaves]:
        raise InputError(f"`fit-from` must hold a fit of this model with this optimizer, got another in {path}.")
    return VICheckpoint(jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in stored]), arrays["records"])


def _check_same_settings(path: Path, config: Config) -> None:
    """A fit that goes on must be the fit that was begun."""
    begun = build_config(read_toml(path / "config.toml"))
    for branch in ("seed", "problem", "vi"):
        before, now = getattr(begun, branch), getattr(config, branch)
        if before == now:
            continue
        name, pair = branch, (before, now)
        if isinstance(now, Settings):
            values = [settings.model_dump() for settings in (before, now)]
            key = next(key for key in values[1] if values[0].get(key) != values[1][key])
            name, pair = f"{branch}.{key}", (values[0].get(key), values[1][key])
        raise InputError(f"`{name}` must be {pair[0]} to go on with the fit in {path}, got {pair[1]}.")


def _save_arrays(path: Path, arrays: dict[str, Any]) -> None:
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


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
    if len(kept) > MANY_NAMES:
        kept = []  # a megabyte of names in an attribute; scores.npz has the indices
    to_datatree(sampled.chains, kept).to_zarr(path, consolidated=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
