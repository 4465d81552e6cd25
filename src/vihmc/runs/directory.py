"""The run directory: what is in it, who may write to it, and whether a run in it may go on.

::

    config.toml       every setting, resolved; `vihmc run config.toml` repeats the run
    run.json          what the run was begun with: versions, devices, checksums of the settings and of the data
    progress.json     how far it is; `vihmc monitor` shows it
    vi.npz            mean and std of q, history of the fit and its bounds; written as soon as the fit has ended
    scores.npz        sensitivity of every parameter, indices of the kept ones
    draws.zarr        draws of the kept parameters, in ArviZ's layout; grows while the chains run
    reference.zarr    the same for full-space HMC, if it was run
    checkpoints/      where each stage was a few seconds ago: the draws that one of these counts are committed
    parts/            the same for further fits and for inputs left out
    predictions.npz   mean, std and quantiles of every method at the validation inputs
    figures/*.png
    report.html       all of it on one page
    summary.json      written last: a directory that has it is a finished run
    lock              held by the process that writes
"""

import hashlib
import os
import platform
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vihmc.config.files import read_toml, to_toml
from vihmc.data import Problem
from vihmc.errors import InputError
from vihmc.runs.config import RunConfig, build_config
from vihmc.runs.files import load_json, remove_parts, save_json, write_atomically

try:
    import fcntl
except ImportError:  # not on Windows, where a second writer goes unnoticed
    fcntl = None

DECIDING_PACKAGES = ("vihmc", "jax", "jaxlib", "blackjax", "optax", "numpy")
"""Whose versions decide on every bit of the draws."""
_BEGUN_WITH = {"config.toml", "run.json", "progress.json", "lock"}


def create_run_directory(path: Path, config: RunConfig) -> Path:
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
    """Remove the directory of a run that never got anywhere; one that holds any result stays, with its settings."""
    if all(file.is_dir() or file.name in _BEGUN_WITH for file in path.rglob("*")):
        shutil.rmtree(path)


def next_run_directory(problem: str, preset: str) -> Path:
    """Return the first of ``runs/NAME-PRESET-1``, ``-2``, … that does not exist yet."""
    number = 1
    while (path := Path("runs") / f"{problem}-{preset}-{number}").exists():
        number += 1
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a run directory for writing; the lock goes with the process, however that ends."""
    if fcntl is None:
        yield
        return
    try:
        file = (path / "lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise InputError(f"`{path}` must be a directory that can be written, got: {error.strerror}.") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            writer = file.read().strip() or "another process"
            raise InputError(
                f"`{path}` must have one writer at a time, got a second one: {writer} is at work. "
                f"Watch it with `vihmc monitor {path}`."
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        remove_parts(path)
        yield


def is_being_written(path: Path) -> bool:
    """Whether a process holds the directory."""
    if fcntl is None or not (path / "lock").exists():
        return False
    with suppress(OSError), (path / "lock").open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def read_config(path: Path) -> RunConfig:
    """Return the settings of the run in a directory, if they are those it was begun with."""
    if not (path / "config.toml").is_file():
        what = "no such directory" if not path.exists() else "one without config.toml"
        raise InputError(f"`directory` must hold a run of vihmc, got {path}: {what}.")
    config = build_config(read_toml(path / "config.toml"))
    begun = read_begun(path)
    # The file as it is, too: a later version has settings that it lacks, and would write it in another way.
    checksums = {_checksum(config), hashlib.sha256((path / "config.toml").read_bytes()).hexdigest()}
    if begun and checksums.isdisjoint(begun["config_sha256"]):
        raise InputError(
            f"`{path / 'config.toml'}` must be as it was when the run began, got a changed one. Change it back, or "
            f"start anew: vihmc run {path / 'config.toml'} --out ANOTHER."
        )
    return config


def read_begun(path: Path) -> dict[str, Any]:
    """Return what the run was begun with; nothing if it was interrupted before it began."""
    file = path / "run.json"
    if not file.exists():
        return {}
    begun = load_json(file)
    kinds = {"config_sha256": list, "data_sha256": str, "num_devices": int, "versions": dict, "machine": str}
    wrong = [name for name, kind in kinds.items() if not isinstance(begun.get(name), kind)]
    if wrong or begun["num_devices"] < 1 or not isinstance(begun.get("fit_from"), str | None):
        raise InputError(f"`{file}` must say what the run was begun with, got a wrong {(wrong or ['number'])[0]}.")
    return begun


def begin(path: Path, config: RunConfig, problem: Problem, *, fit_from: Path | None = None) -> None:
    """Store what the run is begun with."""
    save_json(
        path / "run.json",
        {
            "config_sha256": [_checksum(config)],
            "data_sha256": fingerprint(problem),
            "fit_from": None if fit_from is None else str(fit_from.absolute()),
            "num_devices": jax.local_device_count(),
            **_place(),
        },
    )


def check_unchanged(path: Path, problem: Problem, *, any_version: bool = False) -> None:
    """Refuse to go on where the numbers would not be those of a run without interruption."""
    begun = read_begun(path)
    if begun["data_sha256"] != fingerprint(problem):
        raise InputError(f"`data` must be the same as when the run in {path} began, got others. Nothing was changed.")
    if any_version:
        return
    for name, now in _flat(_place()).items():
        before = _flat(begun).get(name)
        if before != now:
            raise InputError(
                f"`{name}` must be {before}, with which the run in {path} began, got {now}. Nothing was changed; "
                f"--any-version goes on all the same, and the draws are then not those of an uninterrupted run."
            )


def allow_config(path: Path, config: RunConfig) -> None:
    """Change the settings of a run; at any moment in between the directory is that of a run that may go on."""
    begun = read_begun(path)
    checksums = dict.fromkeys([*begun["config_sha256"], _checksum(config)])
    save_json(path / "run.json", begun | {"config_sha256": list(checksums)})
    write_atomically(path / "config.toml", to_toml(config))


def fingerprint(problem: Problem) -> str:
    """Checksum of all data that a run sees."""
    posterior, total = problem.posterior, hashlib.sha256()
    data = (
        (posterior.inputs, posterior.targets, posterior.weights),
        (problem.validation_inputs, problem.validation_targets, problem.validation_weights),
    )
    for leaf in jax.tree.leaves(data):
        array = np.ascontiguousarray(leaf)
        total.update(f"{array.dtype} {array.shape}".encode())
        total.update(array.data.cast("B") if array.size else b"")
    return total.hexdigest()


def _checksum(config: RunConfig) -> str:
    return hashlib.sha256(to_toml(config).encode()).hexdigest()


def _place() -> dict[str, Any]:
    return {
        "versions": {name: version(name) for name in DECIDING_PACKAGES},
        "machine": f"{platform.machine()}, {jax.default_backend()}",
    }


def _flat(place: dict[str, Any]) -> dict[str, str]:
    versions = {f"version of {name}": value for name, value in place["versions"].items()}
    return versions | {"machine": place["machine"]}
