"""How the process of the command returns memory to the system; imports nothing heavy, so that help answers at once."""

import ctypes
import sys
from contextlib import suppress

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE = 2**18


def give_back_large_arrays() -> None:
    """Let freed arrays of a quarter of a megabyte return to the system at once, and have one heap for the rest.

    The C library of Linux raises its own limit to the largest array that was freed, up to 32 MB, and stores smaller
    arrays in a heap with holes, one for every thread. A run with many draws would then hold a hundred megabytes without
    using them. Call it before threads start; on other systems it does nothing.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(None)
            library.mallopt(_M_MMAP_THRESHOLD, _LARGE)
            library.mallopt(_M_ARENA_MAX, 1)
