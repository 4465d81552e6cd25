"""Generated data on disk: made once, then read."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np


def cache_directory() -> Path:
    """Where generated data live: VIHMC_CACHE, or the user's cache directory."""
    if given := os.environ.get("VIHMC_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "vihmc"


def cached(name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return arrays from the file `name` if they were made before, else make and keep them.

    Whatever changes the arrays must change the name.
    """
    path = cache_directory() / name
    # Half a file, from a disk that ran full, can be broken in many ways: whatever is wrong, it is made again.
    with contextlib.suppress(Exception), path.open("rb") as file:
        return dict(np.load(file, allow_pickle=False))
    arrays = make()
    # Written beside and renamed, so that two runs at once never read half a file.
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
