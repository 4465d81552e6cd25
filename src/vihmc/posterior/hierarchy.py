r"""The flat vector of weights and learnt scales, and its prior.

.. math:: \log p(\theta, u) = \log N(\theta; m, \text{prior\_std}(u)^2) + \log p(u)

The weights come first, then the logarithms of the likelihood's scales, then those of the prior's. The prior is centred:
weights are sampled as they are, not in units of their scale. On the UCI tables chains mix better so, because the data
know most weights better than their scale does (docs/evidence/decisions/learnt-scales.md).
"""

from typing import NamedTuple

from jaxtyping import Array, Float

from vihmc.posterior.likelihoods import Likelihood
from vihmc.posterior.normal import log_normal
from vihmc.posterior.priors import WeightPrior


class Scales(NamedTuple):
    """Logarithms of the learnt scales."""

    likelihood: Float[Array, "likelihood_scales *chains"]
    prior: Float[Array, "prior_scales *chains"]


def split_scales(theta: Float[Array, "dim *chains"], num_params: int, likelihood: Likelihood) -> Scales:
    """The learnt scales of a vector."""
    learnt, count = theta[num_params:], likelihood.num_scales
    return Scales(learnt[:count], learnt[count:])


def log_hyperprior(scales: Scales, likelihood: Likelihood, prior: WeightPrior) -> Float[Array, "*chains"]:
    """Log density of the learnt scales before the data."""
    return likelihood.log_hyperprior(scales.likelihood) + prior.log_hyperprior(scales.prior)


def log_prior(theta: Float[Array, " dim"], num_params: int, likelihood: Likelihood, prior: WeightPrior) -> Array:
    """Log density of weights and scales before the data, normalised."""
    scales = split_scales(theta, num_params, likelihood)
    weights = theta[:num_params]
    log_density = log_normal(weights - prior.mean.astype(theta.dtype), std=prior.std(scales.prior))
    return log_density + log_hyperprior(scales, likelihood, prior) if theta.size > num_params else log_density
