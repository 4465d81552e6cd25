"""The cores and the memory of the machine, and the processes of a run that has several, here or on other machines.

XLA sees a processor as one device, and loops as small as a step through a narrow network keep one core busy. Before
JAX starts a device is made of every core, and the chains are distributed over them; they meet only where the warm-up
averages over all chains.

Of several processes each has its own devices, and one mesh is over the devices of all. Every process runs the same
program (JAX calls that multi-controller): it begins the same computations in the same order, and has its share of the
chains. What leaves the chains is gathered, so that every process goes on with the same numbers. Draws depend on the
number of devices in all, not on how these are spread over processes.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src.distributed import global_state
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array, Float

_AXIS = "chains"
_SHARE_OF_MAPS = 1 / 3


def use_cores(num_cores: int | None = None) -> None:
    """Make a device of every core, or of so many of them; of no effect once JAX has started."""
    with suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", num_cores or count_cores())


def use_cores_unless_told() -> None:
    """Make a device of every core, unless JAX has been told how many devices it has."""
    told = jax.config.values["jax_num_cpu_devices"] > 0
    if not told and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        use_cores()


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def join_processes(*, num_cores: Callable[[int], int | None], **address: Any) -> None:
    """Meet the other processes of this run, and make devices of the cores of this one; before JAX starts.

    Args:
        num_cores: Gives the cores of one process, all if None, for the number of processes.
        address: `coordinator_address`, `num_processes` and `process_id` of :func:`jax.distributed.initialize`, which
            finds them by itself under SLURM, Open MPI and Kubernetes.
    """
    # A process that is lost shall be an error here, not the end of this process; and SIGTERM belongs to the command.
    jax.config.update("jax_enable_recoverability", True)
    jax.config.update("jax_enable_preemption_service", False)
    with _silent_libraries():
        jax.distributed.initialize(**address)
        # The only place that has their number before the devices are made.
        use_cores(num_cores(global_state.num_processes))
        any_process(False)


def _are_several() -> bool:
    # JAX need not have started to know, if there is one.
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first_process() -> bool:
    """Whether this process writes and prints what there must be one of."""
    return not _are_several() or jax.process_index() == 0


def any_process(*flags: bool) -> tuple[bool, ...]:
    """Whether each of the flags is set in any process. All processes wait here for each other."""
    if not _are_several():
        return flags
    set_in = np.count_nonzero(_from_all(np.asarray(flags, np.uint8)), axis=0)
    return tuple(bool(count) for count in set_in)


def as_in_first_process(*numbers: float) -> tuple[float, ...]:
    """The numbers that the first process has. All processes wait here for each other."""
    if not _are_several():
        return numbers
    # As bytes: JAX may be set to floats of 32 bits.
    return tuple(map(float, _from_all(np.asarray(numbers, np.float64).view(np.uint8))[0].view(np.float64)))


def text_of_first_process(text: str) -> str:
    """The text that the first process has, of 4096 bytes at most. All processes wait here for each other."""
    if not _are_several():
        return text
    padded = np.frombuffer(text.encode().ljust(4096, b"\0"), np.uint8)
    return _from_all(padded)[0].tobytes().rstrip(b"\0").decode()


def in_first_process(act: Callable[[], Any]) -> None:
    """Do something in the first process alone, while the others wait."""
    if is_first_process():
        act()
    wait_for_all()


def wait_for_all() -> None:
    """Return when all processes have come here."""
    any_process(False)


def gather(tree: Any) -> Any:
    """Turn a tree of arrays into NumPy's, with the chains of all processes. All processes wait here for each other."""
    leaves, structure = jax.tree.flatten(tree)
    far = [leaf for leaf in leaves if isinstance(leaf, jax.Array) and not _is_readable(leaf)]
    if far:
        jax.block_until_ready(far)  # two programs at once, with several devices in a process, may wait for each other
        sharding = far[0].sharding
        assert isinstance(sharding, NamedSharding)
        near = iter(_replicate(sharding.mesh)(far))
        leaves = [next(near) if isinstance(leaf, jax.Array) and not _is_readable(leaf) else leaf for leaf in leaves]
    return structure.unflatten([np.asarray(leaf) for leaf in leaves])


def put(values: Array | np.ndarray, sharding: Sharding) -> Array:
    """Put an array that all processes have on the devices of all."""
    if not _are_several():
        return jax.device_put(values, sharding)
    held = np.asarray(values)
    return jax.make_array_from_callback(held.shape, sharding, lambda index: held[index])


def _is_readable(leaf: Array) -> bool:
    return leaf.is_fully_addressable or leaf.is_fully_replicated


def _from_all(values: np.ndarray) -> np.ndarray:
    """The values of every process, one process after the other."""
    num_processes = jax.process_count()
    firsts = np.asarray(jax.devices()).reshape(num_processes, -1)[:, 0]
    mesh = _mesh(tuple(firsts))
    rows = jax.make_array_from_callback(
        (num_processes, *values.shape), NamedSharding(mesh, PartitionSpec(_AXIS)), lambda _: values[None]
    )
    return np.asarray(_replicate(mesh)(rows))


@lru_cache
def _replicate(mesh: Mesh) -> Any:
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _mesh(devices: tuple) -> Mesh:
    return jax.make_mesh((len(devices),), (_AXIS,), axis_types=(AxisType.Auto,), devices=devices)


def distribute_chains(chains: Float[Array, "chains dim"], *, at_least: int = 1) -> Float[Array, "chains dim"]:
    """Put an equal number of chains, and no fewer than `at_least`, on each of as many devices as that allows."""
    devices = chain_devices(len(chains), at_least=at_least)
    if len(devices) == 1:
        return chains
    return put(chains, NamedSharding(_mesh(devices), PartitionSpec(_AXIS)))


def chain_devices(num_chains: int, *, at_least: int = 1) -> tuple:
    """Devices, of all processes evenly, on which chains are put."""
    everywhere = jax.devices()
    allowed = (n for n in range(len(everywhere), 0, -1) if num_chains % n == 0 and num_chains // n >= at_least)
    number = next(allowed, 1)
    if not _are_several():
        return tuple(everywhere[:number])
    return tuple(everywhere[index * len(everywhere) // number] for index in range(number))


@contextmanager
def _silent_libraries() -> Iterator[None]:
    """Without the lines that gloo and the coordination service write when processes meet."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (1, 2):
            os.dup2(nowhere, number)
        yield
    finally:
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)


def drop_programs_if_many(
    maps: Path = Path("/proc/self/maps"), limit: Path = Path("/proc/sys/vm/max_map_count")
) -> None:
    """Drop what JAX has compiled if this process has used much of the memory maps that Linux allows it.

    A compiled program holds three and more, an inference with new shapes some hundreds. When there are none left, the
    compiler does not raise an error: it ends the process. What is needed again is compiled again.
    """
    with suppress(OSError, ValueError):
        if maps.read_bytes().count(b"\n") > _SHARE_OF_MAPS * int(limit.read_text(encoding="utf-8")):
            jax.clear_caches()


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
