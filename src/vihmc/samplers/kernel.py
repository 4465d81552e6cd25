"""What a kernel is: a pair of pure functions on the state of one chain.

A new kernel is one new file that builds a :class:`Kernel`, and one line in the table of :mod:`vihmc.samplers.sample`.
Everything a kernel can be tuned by is in :class:`Tuning`, whose numbers are traced, so that tuning never compiles
anything again.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding
from jaxtyping import Array

from vihmc.types import Key, LogDensity


class Tuning(NamedTuple):
    """What the warm-up finds and the draws use."""

    step_size: Array
    inverse_mass_matrix: Array
    """In squared units of the parameters; only its diagonal where it is diagonal."""
    num_integration_steps: Array
    """Leapfrog steps of a trajectory; NUTS finds its own number."""
    jitter: Array | float = 0.0
    """How far, as a share of it, the number of steps is drawn from around `num_integration_steps`."""
    mass_root: Array | None = None
    """L with mass matrix L Lᵀ, where the mass matrix is dense."""


class StepInfo(NamedTuple):
    """What a person looks at, one number per step and chain."""

    acceptance_rate: Array
    is_divergent: Array
    energy: Array
    num_gradients: Array


class Kernel(NamedTuple):
    """A Markov transition.

    Attributes:
        init: ``init(position, logdensity_fn)`` gives the state of a chain; it has `position` and `logdensity`.
        step: ``step(rng_key, state, logdensity_fn, tuning)`` gives the next state and a :class:`StepInfo`.
        in_turn: Whether the chains of a device step one after the other, and not all at once: the arrays of one chain
            stay in the cache of a core.
        sharding: How chains lie on several devices, each of which steps its own; None for one device.
    """

    init: Callable[[Array, LogDensity], Any]
    step: Callable[[Key, Any, LogDensity, Tuning], tuple[Any, StepInfo]]
    in_turn: bool = False
    sharding: NamedSharding | None = None

    def for_all_chains(self, function: Callable) -> Callable:
        """Map a function of one chain over all of them."""

        def for_chains_of_device(*stacked: Any) -> Any:
            if self.in_turn:
                return jax.lax.map(lambda one: function(*one), stacked)
            return jax.vmap(function)(*stacked)

        if self.sharding is None:
            return for_chains_of_device
        spec = self.sharding.spec
        # The compiler is not asked to divide the work of all chains: it cannot where their networks have convolutions.
        return jax.shard_map(
            for_chains_of_device, mesh=self.sharding.mesh, in_specs=spec, out_specs=spec, check_vma=False
        )
