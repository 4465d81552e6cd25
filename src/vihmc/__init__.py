"""vihmc: error bars for networks and neural operators, by variational inference and Hamiltonian Monte Carlo.

The stages are packages, each usable alone: :mod:`vihmc.fit`, :mod:`vihmc.selection`, :mod:`vihmc.samplers`,
:mod:`vihmc.predict`, :mod:`vihmc.diagnostics`. :func:`infer` joins them.
Names are loaded when they are first used: importing the package computes and configures nothing. The first use makes a
device of every core for the chains, if JAX has not started and was not told how many devices it has.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vihmc.api.cross_validation import CrossValidation, cross_validate
    from vihmc.api.infer import infer
    from vihmc.api.load import load
    from vihmc.api.result import Result
    from vihmc.checkpointing import Observer
    from vihmc.config.method import MethodConfig, PredictionConfig, SamplerConfig, SelectionConfig, VIConfig
    from vihmc.diagnostics.scores import scores
    from vihmc.errors import DataWarning, InputError, UntrustedWarning
    from vihmc.models.deeponet import DeepONet
    from vihmc.models.features import PeriodicFeatures
    from vihmc.models.fno import FNO
    from vihmc.models.mlp import MLP
    from vihmc.posterior.density import Posterior
    from vihmc.posterior.layout import ParamLayout
    from vihmc.posterior.likelihoods import (
        Bernoulli,
        Categorical,
        Gaussian,
        GaussianWithScale,
        Likelihood,
        Poisson,
        StudentT,
    )
    from vihmc.posterior.operator import OperatorPosterior
    from vihmc.posterior.priors import Prior
    from vihmc.posterior.shared import Shared
    from vihmc.posterior.subspace import Subspace
    from vihmc.predict import Prediction

_HOMES = {
    "Bernoulli": "posterior.likelihoods",
    "Categorical": "posterior.likelihoods",
    "CrossValidation": "api.cross_validation",
    "DataWarning": "errors",
    "DeepONet": "models.deeponet",
    "FNO": "models.fno",
    "Gaussian": "posterior.likelihoods",
    "GaussianWithScale": "posterior.likelihoods",
    "InputError": "errors",
    "Likelihood": "posterior.likelihoods",
    "MLP": "models.mlp",
    "MethodConfig": "config.method",
    "Observer": "checkpointing",
    "OperatorPosterior": "posterior.operator",
    "ParamLayout": "posterior.layout",
    "PeriodicFeatures": "models.features",
    "Poisson": "posterior.likelihoods",
    "Posterior": "posterior.density",
    "Prediction": "predict",
    "PredictionConfig": "config.method",
    "Prior": "posterior.priors",
    "Result": "api.result",
    "SamplerConfig": "config.method",
    "SelectionConfig": "config.method",
    "Shared": "posterior.shared",
    "StudentT": "posterior.likelihoods",
    "Subspace": "posterior.subspace",
    "UntrustedWarning": "errors",
    "VIConfig": "config.method",
    "cross_validate": "api.cross_validation",
    "infer": "api.infer",
    "load": "api.load",
    "scores": "diagnostics.scores",
}

_STAGES = ("diagnostics", "fit", "predict", "samplers", "selection")

__all__ = [
    "FNO",
    "MLP",
    "Bernoulli",
    "Categorical",
    "CrossValidation",
    "DataWarning",
    "DeepONet",
    "Gaussian",
    "GaussianWithScale",
    "InputError",
    "Likelihood",
    "MethodConfig",
    "Observer",
    "OperatorPosterior",
    "ParamLayout",
    "PeriodicFeatures",
    "Poisson",
    "Posterior",
    "Prediction",
    "PredictionConfig",
    "Prior",
    "Result",
    "SamplerConfig",
    "SelectionConfig",
    "Shared",
    "StudentT",
    "Subspace",
    "UntrustedWarning",
    "VIConfig",
    "cross_validate",
    "infer",
    "load",
    "scores",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name == "__version__":
        from importlib.metadata import version

        return version("vihmc")
    if name in _STAGES:
        return import_module(f"vihmc.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'vihmc' has no attribute '{name}'")
    import_module("vihmc.devices").use_cores_unless_told()
    return getattr(import_module(f"vihmc.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names, before any of them has been loaded."""
    return sorted({*globals(), *__all__, *_STAGES, "__version__"})
