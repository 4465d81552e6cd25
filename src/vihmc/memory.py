"""How much memory this process has taken."""

import sys


def peak_memory_gb() -> float:
    """Largest resident memory of this process so far; nan where the system does not tell."""
    try:
        import resource
    except ImportError:
        return float("nan")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
