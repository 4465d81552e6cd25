"""A density that differs from chain to chain in some of its arrays: each chain has a target of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax.tree_util import Partial
from jaxtyping import Array

from vihmc.types import LogDensity, register_pytree


@dataclass(frozen=True, eq=False)
class PerChain:
    """Densities of all chains.

    Attributes:
        function: ``function(part, position)``, the log density of one position of the chain that has `part`.
        parts: A tree of arrays, chains along their first axis.
    """

    function: Partial
    parts: Any

    def of_chain(self, part: Any) -> LogDensity:
        """The density of the chain that has `part`."""
        return Partial(self.function, part)

    def __call__(self, position: Array) -> Array:
        """Refuse: which chain is it?"""
        raise TypeError("A density that differs from chain to chain can be called through `of_chain` alone.")


register_pytree(PerChain, data_fields=["function", "parts"], meta_fields=[])


def map_chains(for_all_chains: Callable, function: Callable, logdensity_fn: LogDensity, *stacked: Any) -> Any:
    """Call ``function(density, *one)`` for every chain, each with its own density if they differ.

    Args:
        for_all_chains: Maps a function of one chain over all of them.
        function: What to do with a chain.
        logdensity_fn: One for all, or a :class:`PerChain`.
        stacked: Whatever else it takes, chains along the first axis.
    """
    if isinstance(logdensity_fn, PerChain):
        of_own = for_all_chains(lambda part, *one: function(logdensity_fn.of_chain(part), *one))
        return of_own(logdensity_fn.parts, *stacked)
    return for_all_chains(lambda *one: function(logdensity_fn, *one))(*stacked)
