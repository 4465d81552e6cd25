"""The cores and the memory of the machine.

XLA sees a processor as one device, and loops as small as a step through a narrow network keep one core busy. The
command makes a device of every core before JAX starts, and the chains are distributed over them; they meet only where
the warm-up averages over all chains.
"""

import os
import sys
from contextlib import suppress

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

_AXIS = "chains"


def use_cores(num_cores: int | None = None) -> None:
    """Make a device of every core, or of so many of them; of no effect once JAX has started."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", num_cores or available)


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


def peak_memory_gb() -> float:
    """Largest resident memory of this process so far; nan where the system does not tell."""
    try:
        import resource
    except ImportError:
        return float("nan")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
