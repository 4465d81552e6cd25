"""The posterior of a narrow network for many chains at once (:mod:`vihmc.models.vectorised`).

A model that offers :class:`vihmc.models.model.VectorisedChains` gets this; every other has the plain density, which is
the same function.
"""

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from vihmc.models.model import HasUnits, VectorisedChains
from vihmc.models.vectorised import VectorisedDensity
from vihmc.posterior.density import Posterior
from vihmc.posterior.normal import log_normal_of_chains
from vihmc.posterior.subspace import Subspace


class BarePosterior(NamedTuple):
    """A posterior of the same parameters whose model is the network alone, on standardised data.

    Attributes:
        posterior: Of the network.
        log_units: What its log density lacks: the logarithm of the units of the targets, a constant.
    """

    posterior: Posterior
    log_units: Float[Array, ""]


def without_units(posterior: Posterior) -> BarePosterior:
    """Standardise the data instead of the model, if it is a network with units; else nothing changes."""
    model = posterior.model
    if not isinstance(model, HasUnits):
        return BarePosterior(posterior, jnp.zeros((), posterior.targets.dtype))
    unit = jnp.asarray(model.targets.stds, posterior.targets.dtype)
    bare = replace(
        posterior,
        model=model.network,
        inputs=model.inputs(posterior.inputs),
        targets=model.targets(posterior.targets),
        noise_std=posterior.noise_std / unit,
    )
    return BarePosterior(bare, -posterior.num_observations * jnp.sum(jnp.log(unit)))


def suits_vectorised_chains(posterior: Posterior) -> bool:
    """Whether many chains run through the model best as one vectorised program."""
    model = posterior.model
    return isinstance(model, VectorisedChains) and model.suits_vectorised_chains(posterior.num_observations)


def restrict_vectorised(posterior: Posterior, subspace: Subspace) -> VectorisedDensity | None:
    """The log density of the selected parameters for many chains at once, if the model is narrow."""
    bare = without_units(posterior)
    if not suits_vectorised_chains(bare.posterior):
        return None
    return subspace.restrict_vectorised(Partial(_log_density, bare))


def _log_density(bare: BarePosterior, theta: Float[Array, "params chains"]) -> Float[Array, " chains"]:
    posterior = bare.posterior
    predicted = posterior.model.apply_vectorised(posterior.layout.unravel(theta), posterior.inputs)
    residual = posterior.targets[..., None] - predicted
    noise_std = jnp.broadcast_to(posterior.noise_std, posterior.targets.shape)
    log_likelihood = log_normal_of_chains(residual.reshape(-1, residual.shape[-1]), std=noise_std.reshape(-1))
    return log_normal_of_chains(theta, std=posterior.prior_std) + log_likelihood + bare.log_units
