"""Files that are complete or absent, in formats that hold no code: JSON, and NumPy archives without pickle."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np

from vihmc.devices import put
from vihmc.errors import InputError

PART = ".part"
"""Suffix of a file while it is being written."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that it is either complete or unchanged."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Store named arrays, all or nothing."""
    with replacing(path) as file:
        np.savez(file, **arrays)


def load_arrays(path: Path, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Load named arrays, all of them if no names are given; the archive's checksums are verified.

    Raises:
        InputError: If the file is not there or damaged, in one sentence.
    """
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            return {name: archive[name] for name in (archive.files if names is None else names)}
    except Exception as error:  # a damaged archive raises many kinds of error
        raise InputError(f"`{path}` must be a readable NumPy archive, got: {reason(error)}.") from None


def check_has(file: Path, arrays: Mapping[str, Any], needed: tuple[str, ...]) -> None:
    """Refuse an archive in which something is missing."""
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise InputError(f"`{file}` must hold {', '.join(needed)}, got one without {', '.join(missing)}.")


def save_json(path: Path, value: Any) -> None:
    """Store plain values; a number that is not finite becomes null, as JSON has no NaN."""
    write_atomically(path, json.dumps(_finite(value), indent=2, ensure_ascii=False) + "\n")


def load_json(path: Path) -> dict[str, Any]:
    """Load a JSON object.

    Raises:
        InputError: If the file is not there, damaged or something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"`{path}` must be a readable JSON file, got: {reason(error)}.") from None
    if not isinstance(value, dict):
        raise InputError(f"`{path}` must hold a JSON object, got {type(value).__name__}.")
    return value


def save_tree(path: Path, tree: Any) -> None:
    """Store a tree of arrays and numbers; names in the archive are paths in the tree."""
    save_arrays(path, {_name(keys): leaf for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]})


def load_tree(path: Path, like: Any) -> Any:
    """Load a tree with the structure of `like`, with leaves of the same types and on the same devices.

    Raises:
        InputError: If the file is damaged, or holds another tree.
    """
    arrays = load_arrays(path)
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [_name(keys) for keys, _ in leaves]
    if set(names) != set(arrays):
        differing = sorted(set(names) ^ set(arrays))[0]
        raise InputError(f"`{path}` must hold the state of this run, got another one, which differs in '{differing}'.")
    return jax.tree_util.tree_unflatten(
        structure, [_restore(path, name, arrays[name], leaf) for name, (_, leaf) in zip(names, leaves, strict=True)]
    )


def remove_parts(path: Path) -> None:
    """Remove what an interrupted write left in a directory."""
    for pattern in (f"*{PART}", "*.partial"):  # ours and zarr's
        for file in path.rglob(pattern):
            file.unlink(missing_ok=True)


def _name(keys: tuple) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator=".") or "value"


def _restore(path: Path, name: str, stored: np.ndarray, like: Any) -> Any:
    wanted = like if isinstance(like, jax.Array) else np.asarray(like)
    # The first axis of a NumPy array may have any length, as the records of a fit do.
    skip = 1 if isinstance(like, np.ndarray) and wanted.ndim else 0
    if stored.dtype != wanted.dtype or stored.ndim != wanted.ndim or stored.shape[skip:] != wanted.shape[skip:]:
        raise InputError(
            f"`{path}` must hold the state of this run, got '{name}' of {stored.dtype} and shape {stored.shape} "
            f"instead of {wanted.dtype} and {wanted.shape}."
        )
    if isinstance(like, jax.Array):
        return put(stored, like.sharding) if like.committed else jnp.asarray(stored)
    return stored if isinstance(like, np.ndarray) else type(like)(stored)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def reason(error: Exception) -> str:
    """The message of a library's error, in one line."""
    text = getattr(error, "strerror", None) or str(error).strip()
    return (text.splitlines() or [type(error).__name__])[0].rstrip(".")[:200]


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file beside `path` that replaces it once it is complete and on the disk.

    This is the only place that writes a file of a run.
    """
    temporary = path.with_name(path.name + PART)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        # Already gone if it has replaced `path`.
        temporary.unlink(missing_ok=True)
