"""``vihmc doctor``: what a bug report needs to know of a machine, and whether the method gives exact answers on it."""

import math
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

LIBRARIES = ("jax", "jaxlib", "blackjax", "optax", "numpy", "scipy", "pydantic", "zarr", "xarray", "matplotlib")
EXTRAS = ("flax", "equinox", "dm-haiku", "torch", "torchax", "scikit-learn")
ENVIRONMENT = ("JAX_", "XLA_", "VIHMC_", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables, or their beginnings, that change how the package computes."""
FREE_GB = 1.0
"""Memory and disk space below which small runs may fail already."""
Z_LIMIT = 5.0
"""Standard errors: a correct installation exceeds it with probability 6e-7 per number."""


class Finding(NamedTuple):
    """One line of the answer.

    Attributes:
        title: What was looked at.
        text: What was found.
        remedy: What to do, in one sentence; None if all is well.
    """

    title: str
    text: str
    remedy: str | None = None


def examine(tell: Callable[[Finding], None], *, self_test: bool = True) -> bool:
    """Look at everything, tell each finding when it is known, and return whether all is well."""
    remedies = []
    looks = (_versions, _requirements, _machine, _memory, _disk, _environment, _devices, _precision)
    for look in (*looks, _self_test) if self_test else looks:
        for finding in look():
            tell(finding)
            remedies += [finding.remedy] if finding.remedy else []
    return not remedies


def print_finding(console: Console, finding: Finding) -> None:
    """Print a finding, and below it what to do if something is wrong."""
    console.print(f"{finding.title + ':':20}{finding.text}", markup=False, highlight=False, soft_wrap=True)
    if finding.remedy is not None:
        console.print(f"{'':20}PROBLEM. {finding.remedy}", style="bold", markup=False, highlight=False, soft_wrap=True)


def _versions() -> Iterator[Finding]:
    yield Finding("vihmc", f"{_version('vihmc')} on Python {platform.python_version()}, {platform.platform()}")
    yield Finding("Libraries", ", ".join(f"{name} {_version(name)}" for name in LIBRARIES))
    extras = [f"{name} {found}" for name in EXTRAS if (found := _version(name)) != "missing"]
    yield Finding("Extras", ", ".join(extras) or "none")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _requirements() -> Iterator[Finding]:
    """Whether all packages that this one needs are there, in versions that it accepts."""
    from packaging.requirements import Requirement

    wrong = []
    for line in requires("vihmc") or ():
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        found = _version(needed.name)
        if found == "missing" or not needed.specifier.contains(found, prereleases=True):
            wrong.append(f"{needed.name}{needed.specifier} is needed, found {found}")
    if wrong:
        yield Finding("Requirements", "; ".join(wrong), "Install vihmc again, into an environment of its own.")
    else:
        yield Finding("Requirements", "all met")


def _machine() -> Iterator[Finding]:
    from threadpoolctl import threadpool_info

    from vihmc.devices import count_cores  # loads the numerical libraries whose threads are counted

    pools = sorted({f"{pool['internal_api']} {pool['num_threads']}" for pool in threadpool_info()})
    model = platform.machine() + (f", {name}" if (name := _processor()) else "")
    yield Finding("Cores", f"{count_cores()} of {os.cpu_count()} usable ({model})")
    yield Finding("Threads", ", ".join(pools) or "no BLAS or OpenMP library loaded")


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _memory() -> Iterator[Finding]:
    from vihmc.devices import machine_memory

    total, available = machine_memory()
    if math.isnan(total):
        yield Finding("Memory", "this system does not tell")
        return
    remedy = f"Free some memory: small runs need about {FREE_GB:g} GB." if available < FREE_GB else None
    yield Finding("Memory", f"{available:.1f} of {total:.1f} GB available", remedy)


def _disk() -> Iterator[Finding]:
    import shutil
    import tempfile

    try:
        with tempfile.TemporaryFile(dir="."):
            pass
    except OSError as error:
        remedy = "Change to a directory in which you may write: runs are stored below it."
        yield Finding("Current directory", f"not writable: {error.strerror}", remedy)
        return
    free = shutil.disk_usage(".").free / 1e9
    remedy = "Free disk space, or change to a directory that has some." if free < FREE_GB else None
    yield Finding("Current directory", f"writable, {free:.1f} GB free", remedy)


def _environment() -> Iterator[Finding]:
    found = {name: value for name, value in sorted(os.environ.items()) if name.startswith(ENVIRONMENT)}
    yield Finding("Environment", ", ".join(f"{name}={value}" for name, value in found.items()) or "nothing set")


def _devices() -> Iterator[Finding]:
    import jax

    from vihmc.devices import use_cores

    use_cores()
    try:
        devices = jax.devices()
    except RuntimeError as error:
        remedy = "Unset JAX_PLATFORMS, or install the JAX of your accelerator."
        yield Finding("Devices", f"JAX does not start: {_first_line(error)}", remedy)
        return
    yield Finding("Devices", f"{len(devices)} × {devices[0].device_kind} ({jax.default_backend()})")


def _precision() -> Iterator[Finding]:
    import jax
    import jax.numpy as jnp

    from vihmc.runs.config import RunConfig

    default = RunConfig.model_fields["precision"].default
    with jax.enable_x64(True):
        third = jnp.asarray(1.0) / 3
        error = abs(float(third) - 1 / 3)
    remedy = None
    if third.dtype != jnp.float64 or error > 1e-15:
        remedy = 'Set `precision = "float32"` in your settings, or use a device with double precision.'
    yield Finding(
        "Precision", f"runs use {default} unless their settings say otherwise; float64 error {error:.1g}", remedy
    )


def _self_test() -> Iterator[Finding]:
    """Run the whole method on a linear model, and compare with its exact posterior."""
    title, remedy = "Self-test", "Report these lines: the installation does not compute correctly."
    start = time.perf_counter()
    try:
        from vihmc.cli.self_test import largest_deviation

        worst = largest_deviation()
    except Exception as error:  # whatever is broken belongs in the report
        yield Finding(title, f"stopped with {type(error).__name__}: {_first_line(error)}", remedy)
        return
    seconds = time.perf_counter() - start
    text = (
        f"linear model against its closed-form posterior, largest deviation {worst:.1f} standard errors, limit "
        f"{Z_LIMIT:g} ({seconds:.0f} s)"
    )
    yield Finding(title, text, None if worst < Z_LIMIT else remedy)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]
