"""Generated data on disk: computed once, then read."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np


def cache_directory() -> Path:
    """The folder of generated data: VIHMC_CACHE, or the user's cache directory."""
    if given := os.environ.get("VIHMC_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "vihmc"


def cached(name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return arrays from the file `name` if there is one, else compute and store them.

    The name must differ for anything that changes the arrays.
    """
    path = cache_directory() / name
    # A truncated file, from a full disk, can fail in many ways; in all of them the arrays are computed again.
    with contextlib.suppress(Exception), path.open("rb") as file:
        return dict(np.load(file, allow_pickle=False))
    arrays = make()
    # Written to a temporary file and renamed, so that concurrent runs never read a partial file.
    part = path.with_name(f"{path.stem}-{os.getpid()}.part.npz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(part, **arrays)  # pyrefly: ignore
        part.replace(path)
    except OSError:
        # A cache that cannot be written costs time, not results.
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return arrays
