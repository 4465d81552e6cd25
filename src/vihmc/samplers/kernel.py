"""What a kernel is: a pair of pure functions on the state of one chain.

A new kernel is one new file that builds a :class:`Kernel`, and one line in the table of :mod:`vihmc.samplers.sample`.
Everything a kernel can be tuned by is in :class:`Tuning`, whose numbers are traced, so that tuning never compiles
anything again.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from vihmc.types import Key, LogDensity


class Tuning(NamedTuple):
    """What the warm-up finds and the draws use."""

    step_size: Array
    inverse_mass_matrix: Array
    """Its diagonal, in squared units of the parameters."""
    num_integration_steps: Array
    """Leapfrog steps of a trajectory; NUTS finds its own number."""
    jitter: Array | float = 0.0
    """How far, as a share of it, the number of steps is drawn from around `num_integration_steps`."""


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
        sequential: Whether chains step one after the other instead of all at once: a model that fills the machine by
            itself is then not copied once per chain.
    """

    init: Callable[[Array, LogDensity], Any]
    step: Callable[[Key, Any, LogDensity, Tuning], tuple[Any, StepInfo]]
    sequential: bool = False

    def for_all_chains(self, function: Callable) -> Callable:
        """Map a function of one chain over all of them."""
        if not self.sequential:
            return jax.vmap(function)
        return lambda *stacked: jax.lax.map(lambda one: function(*one), stacked)
