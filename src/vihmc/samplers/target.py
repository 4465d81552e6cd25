"""What the chains of the third stage run on: a density, where they start, and the way back to the selected parameters.

The density of the selected parameters can be written in other ways that are the same posterior exactly: with the output
layer integrated out (:mod:`vihmc.samplers.marginal_last_layer`), with learnt scales integrated out
(:mod:`vihmc.samplers.integrated_scales`), in whitened coordinates
(:mod:`vihmc.posterior.gauss_newton`), vectorised over chains (:mod:`vihmc.models.vectorised`). A sampler sees none of
that. And every chain can have a posterior of its own, given its own values of the frozen parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from vihmc.config.method import SamplerConfig
from vihmc.devices import distribute_chains, gather
from vihmc.errors import InputError
from vihmc.models.vectorised import MIN_CHAINS, VectorisedDensity
from vihmc.posterior.density import Posterior
from vihmc.posterior.gauss_newton import whiten
from vihmc.posterior.mean_field import MeanField, prior_of
from vihmc.posterior.shards import ShardedDensity
from vihmc.posterior.subspace import Subspace
from vihmc.posterior.vectorised import restrict_vectorised
from vihmc.samplers.fisher import mean_curvature
from vihmc.samplers.integrated_scales import IntegratedScales
from vihmc.samplers.marginal_last_layer import MarginalLastLayer
from vihmc.samplers.per_chain import PerChain
from vihmc.samplers.start import draw_starts
from vihmc.types import Key, LogDensity, as_pytree_function

Complete = Callable[..., np.ndarray]
"""``complete(positions, rng_key, start=...)`` adds what was integrated out to positions (chain, draw, dim)."""
_CURVATURE_RANK = 256
"""Gauss–Newton directions of the metric `curvature`."""


@dataclass(frozen=True, eq=False)
class Target:
    """A density and its starts. Build it with :meth:`of`.

    Attributes:
        log_density: What is sampled.
        starts: One position per chain, on as many devices as are worth it.
        initial_var: First guess of the variance of each coordinate.
        to_position: Maps what is sampled to parameters, if they differ.
        complete: Adds what was integrated out to what was sampled: a draw is complete only then.
        curvature: Mean curvature of the density at given positions, for the metric 'fisher'.
        subspace: All selected parameters.
        frozen: Values of all parameters but the selected ones for each chain, if they differ from chain to chain; a
            draw then is of all parameters.
    """

    log_density: LogDensity
    starts: Float[Array, "chains dim"]
    initial_var: Float[Array, " dim"]
    to_position: Callable[[Array], Array] | None
    complete: Complete | None
    curvature: Callable[[np.ndarray], np.ndarray] | None
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
        frozen: Float[Array, "chains params"] | None = None,
    ) -> "Target":
        """Write the posterior of the selected parameters as `config` asks.

        With `frozen` values of its own, every chain starts there too.
        """
        marginal = find_marginal(posterior, subspace, config, differs_per_chain=frozen is not None)
        space = subspace if marginal is None else marginal.below
        prior = prior_of(posterior, like=q)
        starts = draw_starts(key_start, config.start, num_chains=config.num_chains, q=q, prior=prior)
        if frozen is not None and config.start != "prior":
            starts = frozen
        # As wide as floats can be: what a model computes in is its own affair, energies are sums over all data.
        dtype = jnp.result_type(float)
        positions, initial_var = space.extract(starts).astype(dtype), space.extract(q.std**2).astype(dtype)
        if frozen is not None:
            log_density = _restrict_per_chain(posterior, space, config, frozen)
        else:
            log_density = _restrict(posterior, space, config) if marginal is None else marginal.log_density()
        to_position, complete, curvature = None, None if marginal is None else marginal.complete, None
        if config.metric == "fisher":
            integrated, is_plain = None, not isinstance(log_density, VectorisedDensity | ShardedDensity)
            if marginal is None and frozen is None and is_plain and not posterior.scales_are_cut:
                integrated = IntegratedScales.of(posterior, space, space.extract(q.mean).astype(dtype))
            joint = log_density
            if integrated is not None:
                log_density, positions = integrated.log_density(joint), integrated.start(positions)
                initial_var, complete = integrated.initial_var(initial_var), partial(integrated.complete, joint)
            curvature = partial(mean_curvature, posterior, space, joint, integrated, initial_var)
        if config.metric == "curvature":
            whitening = whiten(posterior, space, q, key_metric, rank=_CURVATURE_RANK)
            log_density, initial_var = whitening.log_density(log_density), jnp.ones_like(initial_var)
            positions, to_position = whitening.to_coordinates(positions), whitening.to_position
        if config.chains_at_once != "one":
            at_least = MIN_CHAINS if isinstance(log_density, VectorisedDensity) else 1
            positions = distribute_chains(positions, at_least=at_least)
        return cls(log_density, positions, initial_var, to_position, complete, curvature, subspace, frozen)

    def finish(
        self, sampled: Float[Array, "draws chains dim"], start: int, *, rng_key: Key, dtype: np.dtype
    ) -> Float[np.ndarray, "chains draws selected"]:
        """Turn what was sampled, from draw number `start` on, into draws of all selected parameters."""
        positions = gather(sampled if self.to_position is None else self.to_position(jnp.asarray(sampled)))
        positions = np.swapaxes(positions, 0, 1).astype(dtype)
        if self.frozen is not None:
            return np.stack([
                np.asarray(self.subspace.held_at(center).embed(jnp.asarray(drawn)))
                for center, drawn in zip(self.frozen.astype(dtype), positions, strict=True)
            ])  # fmt: skip
        return positions if self.complete is None else self.complete(positions, rng_key, start=start)


def find_marginal(
    posterior: Posterior, subspace: Subspace, config: SamplerConfig, *, differs_per_chain: bool
) -> MarginalLastLayer | None:
    """The output layer, if it is to be integrated out and can be."""
    is_left_open = config.last_layer == "auto"
    if config.last_layer == "sample" or config.num_shards is not None or (is_left_open and not _are_many(config)):
        return None
    if differs_per_chain:
        return None
    marginal = MarginalLastLayer.of(posterior, subspace)
    if marginal is None and not is_left_open:
        raise InputError(
            "`last_layer` must be 'auto' or 'sample' unless the model is a narrow MLP with selected parameters both in "
            "and below its output layer, got 'marginalise'."
        )
    return marginal


def _restrict_per_chain(
    posterior: Posterior, space: Subspace, config: SamplerConfig, frozen: Float[Array, "chains params"]
) -> LogDensity:
    if _are_many(config):
        vectorised = restrict_vectorised(posterior, space.held_at(frozen.T))
        if vectorised is not None:
            return vectorised
    # Nothing that is frozen is computed beforehand: it would be, once for every chain.
    return PerChain(Partial(_call_held_at, as_pytree_function(posterior.log_density), space), frozen)


def _call_held_at(log_density: LogDensity, space: Subspace, center: Array, position: Array) -> Array:
    return log_density(space.held_at(center).embed(position))


def _are_many(config: SamplerConfig) -> bool:
    return config.chains_at_once == "all" and config.num_chains >= MIN_CHAINS


def _restrict(posterior: Posterior, space: Subspace, config: SamplerConfig) -> LogDensity:
    vectorised = restrict_vectorised(posterior, space) if _are_many(config) and config.num_shards is None else None
    return vectorised or posterior.restrict(space, num_shards=config.num_shards)
