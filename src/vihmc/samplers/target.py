"""What the chains of the third stage run on: a density, where they start, and the way back to the kept parameters.

The density of the kept parameters can be put in other ways that are the same posterior exactly: with the last layer
integrated out (:mod:`vihmc.samplers.marginal_last_layer`), in round coordinates (:mod:`vihmc.posterior.gauss_newton`), with many chains side by side
(:mod:`vihmc.models.vectorised`). A sampler sees none of that. And every chain can have a posterior of its own, given its own draw
of the frozen parameters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from vihmc.config.method import SamplerConfig
from vihmc.devices import deal_out
from vihmc.errors import InputError
from vihmc.models.vectorised import MIN_CHAINS, LanesDensity
from vihmc.posterior.density import Posterior, restrict_in_lanes
from vihmc.posterior.gauss_newton import whiten
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.subspace import Subspace
from vihmc.samplers.marginal_last_layer import IntegratedHead
from vihmc.samplers.per_chain import PerChain
from vihmc.samplers.start import draw_starts
from vihmc.tracing import as_pytree_function
from vihmc.types import Key, LogDensity

_STREAM_FROZEN = 3000  # away from the draws of the starts


@dataclass(frozen=True, eq=False)
class Target:
    """A density and its starts. Build it with :meth:`of`.

    Attributes:
        log_density: What is sampled.
        starts: One position per chain, on as many devices as are worth it.
        initial_var: First guess of the variance of each coordinate.
        to_position: Maps what is sampled to parameters, if they differ.
        head: The last layer, if it is integrated out: a draw is complete only when it has one.
        subspace: All kept parameters.
        frozen: What each chain holds all parameters at but the kept ones, if they differ from chain to chain; a draw
            then is of all parameters.
    """

    log_density: LogDensity
    starts: Float[Array, "chains dim"]
    initial_var: Float[Array, " dim"]
    to_position: Callable[[Array], Array] | None
    head: IntegratedHead | None
    subspace: Subspace
    frozen: Float[Array, "chains params"] | None = None

    @classmethod
    def of(
        cls,
        posterior: Posterior,
        q: MeanField,
        subspace: Subspace,
        config: SamplerConfig,
        *,
        key_start: Key,
        key_metric: Key,
        fits: Sequence[MeanField] = (),
        anchored: Float[Array, "chains params"] | None = None,
    ) -> "Target":
        """Put the posterior of the kept parameters as `config` asks; chains start from `fits` in turn, or from q.

        With frozen parameters that are `anchored`, these are what chains hold them at, and where they start.
        """
        head = find_head(posterior, subspace, config)
        space = subspace if head is None else head.below
        starts = draw_starts(
            key_start,
            config.start,
            num_chains=config.num_chains,
            means=[fit.mean for fit in fits or (q,)],
            stds=[fit.std for fit in fits or (q,)],
            prior_std=posterior.prior_std,
            scale=config.start_scale,
        )
        frozen = _find_frozen(q, subspace, config, key_start, anchored)
        if anchored is not None and config.start != "prior":
            starts = anchored
        # As wide as floats can be: what a model computes in is its own affair, energies are sums over all data.
        dtype = jnp.result_type(float)
        positions, initial_var = space.extract(starts).astype(dtype), space.extract(q.std**2).astype(dtype)
        if frozen is not None:
            log_density = _restrict_per_chain(posterior, space, config, frozen)
        else:
            log_density = _restrict(posterior, space, config) if head is None else head.log_density()
        to_position = None
        if config.metric == "curvature":
            whitening = whiten(posterior, space, q.mean, key_metric, rank=config.curvature_rank)
            log_density, initial_var = whitening.log_density(log_density), jnp.ones_like(initial_var)
            positions, to_position = whitening.to_coordinates(positions), whitening.to_position
        if config.chains_at_once == "all":
            positions = deal_out(positions, at_least=MIN_CHAINS if isinstance(log_density, LanesDensity) else 1)
        return cls(log_density, positions, initial_var, to_position, head, subspace, frozen)

    def finish(
        self, sampled: Float[Array, "draws chains dim"], start: int, *, rng_key: Key, dtype: np.dtype
    ) -> Float[np.ndarray, "chains draws kept"]:
        """Turn what was sampled, from draw number `start` on, into draws of all kept parameters."""
        positions = np.asarray(sampled if self.to_position is None else self.to_position(jnp.asarray(sampled)))
        positions = np.swapaxes(positions, 0, 1).astype(dtype)
        if self.frozen is not None:
            return np.stack([
                np.asarray(self.subspace.held_at(center).embed(jnp.asarray(drawn)))
                for center, drawn in zip(self.frozen.astype(dtype), positions, strict=True)
            ])  # fmt: skip
        return positions if self.head is None else self.head.complete(positions, rng_key, start=start)


def find_head(posterior: Posterior, subspace: Subspace, config: SamplerConfig) -> IntegratedHead | None:
    """The last layer, if it is to be integrated out and can be."""
    if config.head == "sample" or config.num_shards is not None or (config.head == "auto" and not _are_many(config)):
        return None
    if differs_per_chain(subspace, config):
        return None
    head = IntegratedHead.of(posterior, subspace)
    if head is None and config.head == "integrate":
        raise InputError(
            "`head` must be 'auto' or 'sample' unless the model is a narrow MLP of which parameters both in and below "
            "its last layer are kept, got 'integrate'."
        )
    return head


def differs_per_chain(subspace: Subspace, config: SamplerConfig) -> bool:
    """Whether each chain holds the frozen parameters at values of its own; if any are frozen."""
    return config.frozen != "mean" and subspace.num_kept < len(subspace.center)


def is_anchored(subspace: Subspace, config: SamplerConfig) -> bool:
    """Whether it has to be found beforehand what chains hold the frozen parameters at."""
    return config.frozen == "anchored" and differs_per_chain(subspace, config)


def _find_frozen(
    q: MeanField, subspace: Subspace, config: SamplerConfig, key: Key, anchored: Array | None
) -> Float[Array, "chains params"] | None:
    if not differs_per_chain(subspace, config):
        return None
    if is_anchored(subspace, config):
        if anchored is None:
            raise ValueError("`anchored` is needed where frozen parameters are anchored, got None.")
        return anchored
    return q.sample(jax.random.fold_in(key, _STREAM_FROZEN), config.num_chains)


def _restrict_per_chain(
    posterior: Posterior, space: Subspace, config: SamplerConfig, frozen: Float[Array, "chains params"]
) -> LogDensity:
    if _are_many(config):
        in_lanes = restrict_in_lanes(posterior, space.held_at(frozen.T))
        if in_lanes is not None:
            return in_lanes
    # Nothing that is frozen is computed beforehand: it would be, once for every chain.
    return PerChain(Partial(_call_held_at, as_pytree_function(posterior.log_density), space), frozen)


def _call_held_at(log_density: LogDensity, space: Subspace, center: Array, position: Array) -> Array:
    return log_density(space.held_at(center).embed(position))


def _are_many(config: SamplerConfig) -> bool:
    return config.chains_at_once == "all" and config.num_chains >= MIN_CHAINS


def _restrict(posterior: Posterior, space: Subspace, config: SamplerConfig) -> LogDensity:
    in_lanes = restrict_in_lanes(posterior, space) if _are_many(config) and config.num_shards is None else None
    return in_lanes or posterior.restrict(space, num_shards=config.num_shards)
