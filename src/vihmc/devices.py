"""Chains over the cores of the machine.

XLA sees a processor as one device, and loops as small as a step through a narrow network keep one core busy. The
command makes a device of every core before JAX starts, and the chains are dealt out to them; they meet only where the
warm-up averages over all chains.
"""

import math
import os
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


def deal_out(chains: Float[Array, "chains dim"]) -> Float[Array, "chains dim"]:
    """Put an equal number of chains on each of as many devices as go into their number."""
    num_devices = math.gcd(len(chains), jax.local_device_count())
    if num_devices == 1:
        return chains
    devices = jax.local_devices()[:num_devices]
    mesh = jax.make_mesh((num_devices,), (_AXIS,), axis_types=(AxisType.Auto,), devices=devices)
    return jax.device_put(chains, NamedSharding(mesh, PartitionSpec(_AXIS)))
