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
from vihmc.posterior.likelihoods import Gaussian
from vihmc.posterior.normal import log_normal_of_chains
from vihmc.posterior.subspace import Subspace


class BarePosterior(NamedTuple):
    """A posterior of the same parameters whose model is the network alone, on standardised data.

    Attributes:
        posterior: Of the network; its noise is still in the units of the data.
        unit: Units of the targets, one per output.
    """

    posterior: Posterior
    unit: Float[Array, " outputs"]

    @property
    def log_units(self) -> Float[Array, ""]:
        """What the log density lacks: the logarithm of the units of the targets, a constant."""
        return -self.posterior.num_observations * jnp.sum(jnp.log(self.unit))

    def noise_std(self, theta: Float[Array, "dim chains"]) -> Float[Array, "outputs chains"]:
        """Noise of every output and chain, in units of the network."""
        likelihood = self.posterior.likelihood
        assert isinstance(likelihood, Gaussian)
        std = likelihood.std(self.posterior.scales(theta).likelihood)
        of_outputs = std[:, None] if jnp.ndim(std) == 1 and not likelihood.num_scales else std
        return jnp.broadcast_to(of_outputs, (len(self.unit), theta.shape[1])) / self.unit[:, None]

    def prior_std(self, theta: Float[Array, "dim chains"]) -> Float[Array, "params chains"]:
        """Prior std of every parameter and chain."""
        std = self.posterior.prior.std(self.posterior.scales(theta).prior)
        of_params = std[:, None] if jnp.ndim(std) == 1 else std
        return jnp.broadcast_to(of_params, (self.posterior.num_params, theta.shape[1]))

    def log_hyperprior(self, theta: Float[Array, "dim chains"]) -> Float[Array, " chains"]:
        """Log density of the learnt scales of every chain."""
        return self.posterior.log_hyperprior(self.posterior.scales(theta))


def without_units(posterior: Posterior) -> BarePosterior:
    """Standardise the data instead of the model, if it is a network with units; else nothing changes."""
    model, num_outputs = posterior.model, posterior.targets.shape[-1]
    if not isinstance(model, HasUnits) or model.targets is None:
        return BarePosterior(posterior, jnp.ones(num_outputs, posterior.targets.dtype))
    bare = replace(
        posterior,
        model=model.network,
        inputs=model.inputs(posterior.inputs),
        targets=model.targets(posterior.targets),
    )
    return BarePosterior(bare, jnp.asarray(model.targets.stds, posterior.targets.dtype))


def suits_vectorised_chains(posterior: Posterior) -> bool:
    """Whether many chains run through the model best as one vectorised program."""
    model = posterior.model
    return (
        isinstance(posterior.likelihood, Gaussian)
        and not posterior.likelihood.is_per_observation
        and isinstance(model, VectorisedChains)
        and model.suits_vectorised_chains(posterior.num_observations)
    )


def restrict_vectorised(posterior: Posterior, subspace: Subspace) -> VectorisedDensity | None:
    """The log density of the selected parameters for many chains at once, if the model is narrow."""
    bare = without_units(posterior)
    if not suits_vectorised_chains(bare.posterior):
        return None
    return subspace.restrict_vectorised(Partial(_log_density, bare))


def _log_density(bare: BarePosterior, theta: Float[Array, "dim chains"]) -> Float[Array, " chains"]:
    posterior = bare.posterior
    weights = theta[: posterior.num_params]
    predicted = posterior.model.apply_vectorised(posterior.layout.unravel(theta), posterior.inputs)
    residual = posterior.targets[..., None] - predicted
    noise_std = jnp.broadcast_to(bare.noise_std(theta), residual.shape)
    num_chains = residual.shape[-1]
    log_likelihood = log_normal_of_chains(residual.reshape(-1, num_chains), std=noise_std.reshape(-1, num_chains))
    from_prior = weights - jnp.broadcast_to(posterior.prior.mean, weights.shape[:1])[:, None]
    log_prior = log_normal_of_chains(from_prior, std=bare.prior_std(theta)) + bare.log_hyperprior(theta)
    return log_prior + log_likelihood + bare.log_units
