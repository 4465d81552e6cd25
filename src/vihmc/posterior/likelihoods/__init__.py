"""Likelihoods: how observations scatter around the outputs of a model. :mod:`base` says what each of them offers."""

from vihmc.posterior.likelihoods.base import Likelihood
from vihmc.posterior.likelihoods.classes import Bernoulli, Categorical
from vihmc.posterior.likelihoods.counts import Poisson
from vihmc.posterior.likelihoods.gaussian import Gaussian
from vihmc.posterior.likelihoods.gaussian_with_scale import GaussianWithScale
from vihmc.posterior.likelihoods.student_t import StudentT

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "GaussianWithScale",
    "Likelihood",
    "Poisson",
    "StudentT",
]

LIKELIHOODS = {
    "gaussian": Gaussian,
    "gaussian_with_scale": GaussianWithScale,
    "student_t": StudentT,
    "bernoulli": Bernoulli,
    "categorical": Categorical,
    "poisson": Poisson,
}
"""Likelihoods by the name that settings have for them."""
