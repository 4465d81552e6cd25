r"""A log density that is a sum over shards of the data.

.. math:: \log p(\theta \mid D) = \sum_{m=1}^{M} \Big( \log p(D_m \mid \theta) + \tfrac1M \log p(\theta) \Big)
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array

from vihmc.errors import InputError
from vihmc.types import register_pytree


@dataclass(frozen=True, eq=False)
class ShardedDensity:
    """Calls like a log density; :meth:`shard` gives one term of it, so that only one shard of data is in use.

    Attributes:
        shard_fn: ``shard_fn(position, index, num_shards)``, one term.
        num_shards: Number of terms, at least two.
    """

    shard_fn: Partial
    num_shards: int

    def shard(self, position: Array, index: Array | int) -> Array:
        """One term of the sum."""
        return self.shard_fn(position, index, self.num_shards)

    def __call__(self, position: Array) -> Array:
        """The whole sum, one term after the other."""
        zero = jnp.zeros((), jnp.result_type(float))
        return jax.lax.fori_loop(0, self.num_shards, lambda index, total: total + self.shard(position, index), zero)


def check_shards(name: str, num_observations: int, num_shards: int) -> None:
    """Refuse shards of different sizes: every step of the integrator weighs them alike."""
    if num_shards < 2 or num_observations % num_shards:
        raise InputError(
            f"`{name}` must be at least 2 and divide the number of observations, {num_observations}, got {num_shards}."
        )


register_pytree(ShardedDensity, data_fields=["shard_fn"], meta_fields=["num_shards"])
