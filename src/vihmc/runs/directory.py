"""The run directory: what is in it, who may write to it, and whether its run may be resumed.

::

    config.toml       every setting, resolved; `vihmc run config.toml` repeats the run
    run.json          what the run began with: versions, devices, checksums of the settings and of the data
    progress.json     progress of every stage; `vihmc monitor` shows it
    vi.npz            mean and std of q, history of the fit and its bounds; written as soon as the fit has ended
    scores.npz        sensitivity of every parameter, indices of the selected parameters
    draws.zarr        draws of the selected parameters, in ArviZ's layout; grows while the chains run
    reference.zarr    the same for HMC on all parameters, if it was run
    checkpoints/      the state of each stage a few seconds ago, and how many draws are stored
    parts/            the same for leave-out runs, and for the second and further fits
    predictions.npz   mean, std and quantiles of every method at the validation inputs
    slices.npz        what the report lets a reader look at piece by piece
    figures/*.png
    report.html       the results on one page
    posterior.npz     of a result that was saved from Python: model, prior, likelihood and data, without code
    summary.json      written last: a directory that has it holds a finished run
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
from filelock import FileLock, Timeout

from vihmc.config.files import read_toml, to_toml
from vihmc.data import Problem
from vihmc.devices import is_first_process
from vihmc.errors import InputError
from vihmc.runs.config import RunConfig, build_config
from vihmc.runs.files import load_json, remove_parts, save_json, write_atomically

DECIDING_PACKAGES = ("vihmc", "jax", "jaxlib", "blackjax", "optax", "numpy")
"""Packages whose versions determine every bit of the draws."""
_BEGUN_WITH = {"config.toml", "run.json", "progress.json", "lock"}


def create_run_directory(path: Path, config: RunConfig) -> Path:
    """Make the directory of a new run and store its settings; a directory that is not empty is refused."""
    try:
        if path.exists() and not path.is_dir():
            raise InputError(f"`out` must be a directory, got the file {path}.")
        if path.exists() and any(path.iterdir()):
            what = "another run" if (path / "config.toml").exists() else "other files"
            raise InputError(
                f"`out` must be a new or empty directory, got {path}, which holds {what}. It was not changed."
            )
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / "config.toml", to_toml(config))
    except OSError as error:
        raise InputError(f"`out` must be a writable directory, got {path}: {error.strerror}.") from None
    return path


def discard_run_directory(path: Path) -> None:
    """Remove the directory of a run without any result; one with a result stays, with its settings."""
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
    """Hold a run directory for writing; the lock goes with the process, however that ends.

    Of several processes the first holds it for all.
    """
    if not is_first_process():
        yield
        return
    lock = FileLock(path / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"`{path}` must have one writer at a time, got a second one: {_writer(path)} is writing to it. "
            f"Show its progress with: vihmc monitor {path}"
        ) from None
    except OSError as error:
        raise InputError(f"`{path}` must be a writable directory, got: {error.strerror}.") from None
    try:
        with suppress(OSError):  # where locks are mandatory, nobody can write to the file or read it
            (path / "lock").write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        remove_parts(path)
        yield
    finally:
        lock.release()


def is_being_written(path: Path) -> bool:
    """Whether a process holds the directory."""
    if not (path / "lock").exists():
        return False
    try:
        with FileLock(path / "lock").acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def _writer(path: Path) -> str:
    try:
        return (path / "lock").read_text(encoding="utf-8").strip() or "another process"
    except (OSError, UnicodeDecodeError):
        return "another process"


def read_config(path: Path) -> RunConfig:
    """Return the settings of the run in a directory, if they are those it began with, under this version of vihmc."""
    if not (path / "config.toml").is_file():
        what = "no such directory" if not path.exists() else "one without config.toml"
        raise InputError(f"`directory` must hold a run of vihmc, got {path}: {what}.")
    begun, this_version = read_begun(path), version("vihmc")
    if begun and begun["versions"].get("vihmc") != this_version:
        raise InputError(
            f"`directory` must hold a run of vihmc {this_version}, got {path} of version "
            f"{begun['versions'].get('vihmc')}. Use that version to read it."
        )
    config = build_config(read_toml(path / "config.toml"))
    if begun and _checksum(config) not in begun["config_sha256"]:
        raise InputError(
            f"`{path / 'config.toml'}` must be unchanged since the run began, got other settings. Restore the file, or "
            f"start a new run: vihmc run {path / 'config.toml'} --out NEW_DIRECTORY"
        )
    return _with_own_data(path, config)


def _with_own_data(path: Path, config: RunConfig) -> RunConfig:
    """Settings whose data file, if the run directory holds it, is found from anywhere."""
    name = getattr(config.problem, "data_file", None)
    if name is None or Path(name).is_absolute() or not (path / name).is_file():
        return config
    found = {"data_file": str((path / name).absolute())}
    return config.model_copy(update={"problem": config.problem.model_copy(update=found)})


def read_begun(path: Path) -> dict[str, Any]:
    """Return what the run began with; empty if it was interrupted before that was stored."""
    file = path / "run.json"
    if not file.exists():
        return {}
    begun = load_json(file)
    kinds = {"config_sha256": list, "data_sha256": str, "num_devices": int, "versions": dict, "machine": str}
    wrong = [name for name, kind in kinds.items() if not isinstance(begun.get(name), kind)]
    if wrong or begun["num_devices"] < 1 or not isinstance(begun.get("fit_from"), str | None):
        raise InputError(f"`{file}` must hold what the run began with, got an invalid {(wrong or ['number'])[0]}.")
    return begun


def begin(path: Path, config: RunConfig, problem: Problem, *, fit_from: Path | None = None) -> None:
    """Store what the run begins with."""
    save_json(
        path / "run.json",
        {
            "config_sha256": [_checksum(config)],
            "data_sha256": fingerprint(problem),
            "fit_from": None if fit_from is None else str(fit_from.absolute()),
            "num_devices": jax.device_count(),
            **_place(),
        },
    )


def check_unchanged(path: Path, problem: Problem, *, any_version: bool = False) -> None:
    """Refuse to resume where the draws would not be those of an uninterrupted run."""
    begun = read_begun(path)
    if begun["data_sha256"] != fingerprint(problem):
        raise InputError(f"`data` must be the same as when the run in {path} began, got different values.")
    if any_version:
        return
    for name, now in _flat(_place()).items():
        before = _flat(begun).get(name)
        if before != now:
            raise InputError(
                f"`{name}` must be {before}, as when the run in {path} began, got {now}. Nothing was changed. With "
                "--any-version the run continues, but its draws are not those of an uninterrupted run."
            )


def allow_config(path: Path, config: RunConfig) -> None:
    """Change the settings of a run; the run can be resumed if this is interrupted at any moment."""
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
        problem.calibration,
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
