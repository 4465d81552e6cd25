"""The cores and the memory of the machine.

XLA sees a processor as one device, and loops as small as a step through a narrow network keep one core busy. The
command makes a device of every core before JAX starts, and the chains are distributed over them; they meet only where
the warm-up averages over all chains.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

_AXIS = "chains"


def use_cores(num_cores: int | None = None) -> None:
    """Make a device of every core, or of so many of them; of no effect once JAX has started."""
    with suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", num_cores or count_cores())


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def distribute_chains(chains: Float[Array, "chains dim"], *, at_least: int = 1) -> Float[Array, "chains dim"]:
    """Put an equal number of chains, and no fewer than `at_least`, on each of as many devices as that allows."""
    num_chains, available = len(chains), jax.local_device_count()
    allowed = (n for n in range(available, 0, -1) if num_chains % n == 0 and num_chains // n >= at_least)
    num_devices = next(allowed, 1)
    if num_devices == 1:
        return chains
    devices = jax.local_devices()[:num_devices]
    mesh = jax.make_mesh((num_devices,), (_AXIS,), axis_types=(AxisType.Auto,), devices=devices)
    return jax.device_put(chains, NamedSharding(mesh, PartitionSpec(_AXIS)))


class Memory(NamedTuple):
    """Memory of the machine, in gigabytes; nan where the system does not tell."""

    total: float
    available: float


def machine_memory(proc: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")) -> Memory:
    """Memory of the machine and how much of it a new process could have, by the files in which Linux tells them.

    A container may have less than its machine, and then `limit` holds a number of bytes.
    """
    try:
        lines = (line.split() for line in proc.read_text(encoding="utf-8").splitlines())
        kilobytes = {words[0]: int(words[1]) for words in lines if len(words) > 1}
        total, available = (kilobytes[name] * 1024 / 1e9 for name in ("MemTotal:", "MemAvailable:"))
    except (OSError, ValueError, KeyError):
        return Memory(float("nan"), float("nan"))
    with suppress(OSError, ValueError):
        total = min(total, int(limit.read_text(encoding="utf-8")) / 1e9)
    return Memory(total, min(total, available))


def peak_memory_gb() -> float:
    """Largest resident memory of this process so far; nan where the system does not tell."""
    try:
        import resource
    except ImportError:
        return float("nan")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
