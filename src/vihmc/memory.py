"""How much memory this process has taken, and how to take no more than it needs."""

import ctypes
import sys
from contextlib import suppress

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE = 2**18


def give_back_large_arrays() -> None:
    """Let freed arrays of a quarter of a megabyte return to the system at once, and have one heap for the rest.

    The C library of Linux raises its own limit to the largest array that was freed, up to 32 MB, and keeps what is
    smaller in a heap with holes, one for every thread: a run with many draws would hold a hundred megabytes that nobody
    uses. To be called before there are threads; elsewhere it does nothing.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(None)
            library.mallopt(_M_MMAP_THRESHOLD, _LARGE)
            library.mallopt(_M_ARENA_MAX, 1)


def peak_memory_gb() -> float:
    """Largest resident memory of this process so far; nan where the system does not tell."""
    try:
        import resource
    except ImportError:
        return float("nan")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
