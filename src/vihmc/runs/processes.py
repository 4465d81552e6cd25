"""Several processes for one run: started here, or by a cluster's own launcher.

``vihmc run … --processes 2`` is the first process itself and starts the others, with the same words. Under ``srun``,
``mpirun`` or in an indexed job of Kubernetes all processes are there, and JAX knows how they find each other. Anywhere
else three variables tell: the address of the first process, how many there are, and the number of this one.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax

from vihmc.config.method import SamplerConfig
from vihmc.devices import chain_devices, count_cores, join_processes, use_cores
from vihmc.errors import InputError
from vihmc.models.vectorised import MIN_CHAINS
from vihmc.runs.config import RunConfig

ADDRESS, NUMBER, PROCESS = "JAX_COORDINATOR_ADDRESS", "VIHMC_NUM_PROCESSES", "VIHMC_PROCESS_ID"
"""Environment variables: address and port of the first process, number of processes, number of this process."""
LOST = 3
"""Exit code of a process that has lost another one."""
_SECONDS_FOR_THE_FIRST = 5.0
_SECONDS_TO_END = 30.0
_LOST_WORDS = ("gloo", "coordination service", "connection closed by peer", "connection reset", "heartbeat")

_others: list[subprocess.Popen] = []


def join(num_processes: int | None, *, num_cores: int | None) -> None:
    """Start the processes that are asked for, or meet those that the environment tells of, and make devices of cores.

    Args:
        num_processes: How many to start; None for those that the environment tells of, or one.
        num_cores: Cores of all processes together; all that they may use if not given.

    Raises:
        InputError: If so many processes cannot be started.
    """
    found = find_processes(os.environ)
    if num_processes is not None and num_processes < 1:
        raise InputError(f"`processes` must be at least 1, got {num_processes}. It is the number of processes.")
    if found is None and num_processes in (None, 1):
        use_cores(num_cores)
        return
    if found is None:
        assert num_processes is not None
        cores_of_each(num_cores, num_processes)
        found = _start_others(num_processes)
    elif num_processes not in (None, found.get("num_processes")):
        raise InputError(
            f"`processes` must be left out where a launcher has started the processes, got {num_processes}."
        )
    try:
        join_processes(**found, num_cores=partial(cores_of_each, num_cores))
    except InputError:
        raise
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"`processes` must be able to reach each other, got: {str(error).splitlines()[0]} Where JAX does not find "
            f"them, set {ADDRESS}, {NUMBER} and {PROCESS}."
        ) from None


def find_processes(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """What the environment says of several processes, as arguments of JAX; None if there is one."""
    names = (ADDRESS, NUMBER, PROCESS)
    if any(name in environment for name in (NUMBER, PROCESS)):
        missing = [name for name in names if name not in environment]
        if missing:
            raise InputError(f"`{missing[0]}` must be set where {NUMBER} or {PROCESS} is, got none.")
        try:
            number, process = int(environment[NUMBER]), int(environment[PROCESS])
        except ValueError:
            raise InputError(f"`{NUMBER}` and `{PROCESS}` must be whole numbers, got something else.") from None
        if not 0 <= process < number:
            raise InputError(f"`{PROCESS}` must be from 0 to {number - 1}, got {process}.")
        given = {"coordinator_address": environment[ADDRESS], "num_processes": number, "process_id": process}
        return given if number > 1 else None
    # Of the step, not of the job: a command that is typed into an allocation is alone.
    counts = [environment.get(name, "1") for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")]
    # Jobs of Kubernetes are often unrelated runs; JAX finds those of one run by the package that it needs for it.
    in_indexed_job = "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment
    in_indexed_job = in_indexed_job and find_spec("kubernetes") is not None
    return {} if in_indexed_job or any(count.isdigit() and int(count) > 1 for count in counts) else None


def _start_others(num_processes: int) -> dict[str, Any]:
    """Start the same command in further processes, each with its share of the cores."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    # As many threads as one process would have: how a large sum is divided among threads changes its last bits.
    shared = {ADDRESS: address, NUMBER: str(num_processes), "NPROC": os.environ.get("NPROC", str(count_cores()))}
    shares = _shares_of_cores(num_processes)
    words = [sys.executable, *sys.orig_argv[1:]]
    for number in range(1, num_processes):
        _others.append(
            subprocess.Popen(
                words,
                env=os.environ | shared | {PROCESS: str(number)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        )
        _keep_to(shares[number], process=_others[-1].pid)
    _keep_to(shares[0], process=0)
    os.environ["NPROC"] = shared["NPROC"]
    return {"coordinator_address": address, "num_processes": num_processes, "process_id": 0}


def _shares_of_cores(num_processes: int) -> list[set[int]]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < num_processes:
        return [set(cores)] * num_processes
    size = len(cores) // num_processes
    return [set(cores[number * size : (number + 1) * size]) for number in range(num_processes)]


def _keep_to(cores: set[int], *, process: int) -> None:
    if cores:
        with suppress(OSError):
            os.sched_setaffinity(process, cores)


def cores_of_each(num_cores: int | None, num_processes: int) -> int | None:
    """Cores of one of the processes, given those of all.

    Raises:
        InputError: If they cannot be divided equally.
    """
    if num_cores is None or num_processes == 1:
        return num_cores
    if num_cores % num_processes:
        raise InputError(
            f"`processes` must divide the {num_cores} devices that chains are distributed over, got {num_processes}. "
            "A run keeps the number of devices that it began with (num_cores)."
        )
    return num_cores // num_processes


def check_processes(config: RunConfig) -> None:
    """Refuse chains that cannot be divided over the processes."""
    if jax.process_count() == 1:
        return
    samplers = {"hmc": config.hmc_per_fit}
    if config.reference.enabled:
        samplers["reference"] = config.reference_sampler
    if config.leave_out.num_folds:
        samplers["leave_out"] = config.leave_out_sampler
    for section, sampler in samplers.items():
        _check_sampler(section, sampler, jax.process_count())


def _check_sampler(section: str, sampler: SamplerConfig, num_processes: int) -> None:
    if sampler.chains_at_once == "one":
        raise InputError(
            f"`{section}.chains_at_once` must be 'all' or 'one_per_core' with {num_processes} processes, got 'one'."
        )
    is_vectorised = sampler.chains_at_once == "all" and sampler.num_chains >= MIN_CHAINS
    if len(chain_devices(sampler.num_chains, at_least=MIN_CHAINS if is_vectorised else 1)) < num_processes:
        least = f", {MIN_CHAINS} at least in each" if is_vectorised else ""
        raise InputError(
            f"`{section}.num_chains` must be a multiple of the {num_processes} processes{least}, got "
            f"{sampler.num_chains} chains for each fit."
        )


def is_lost_process(error: BaseException) -> bool:
    """Whether an error says that another process of this run has gone."""
    if jax.process_count() == 1 or not isinstance(error, RuntimeError | ValueError):
        return False
    return any(word in str(error).lower() for word in _LOST_WORDS)


def is_joined() -> bool:
    """Whether there are, or were to be, other processes."""
    return bool(_others) or PROCESS in os.environ or jax.distributed.is_initialized()


def leave(code: int) -> None:
    """End this process at once, and those that it started, unless it is the only one.

    JAX would first wait for processes that may be gone.
    """
    if not is_joined():
        return
    for other in _others:
        if code == 0:
            with suppress(subprocess.TimeoutExpired):
                other.wait(_SECONDS_TO_END)
        other.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def let_the_first_speak() -> None:
    """In any other process, wait: if the first has the same to say, it ends this process before that is said twice."""
    if is_joined() and not _others and os.environ.get(PROCESS, "0") != "0":
        time.sleep(_SECONDS_FOR_THE_FIRST)
