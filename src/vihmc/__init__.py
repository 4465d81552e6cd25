"""vihmc: error bars for networks and neural operators, by variational inference and Hamiltonian Monte Carlo.

The stages are modules, each usable alone: :mod:`vihmc.vi`, :mod:`vihmc.sensitivity`, :mod:`vihmc.selection`,
:mod:`vihmc.samplers`, :mod:`vihmc.predict`, :mod:`vihmc.diagnostics`. :func:`infer` joins them.
Names are loaded when they are first used: importing the package computes and configures nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vihmc.config import MethodConfig, PredictionConfig, SamplerConfig, SelectionConfig, SensitivityConfig, VIConfig
    from vihmc.errors import InputError
    from vihmc.layout import ParamLayout
    from vihmc.models.deeponet import DeepONet
    from vihmc.models.features import PeriodicFeatures
    from vihmc.models.mlp import MLP
    from vihmc.operator import OperatorPosterior
    from vihmc.pipeline import Inference, Observer, infer
    from vihmc.posterior import Posterior
    from vihmc.predict import Prediction
    from vihmc.stored_run import StoredRun, load
    from vihmc.subspace import Subspace

_HOMES = {
    "DeepONet": "models.deeponet",
    "Inference": "pipeline",
    "InputError": "errors",
    "MLP": "models.mlp",
    "MethodConfig": "config",
    "Observer": "pipeline",
    "OperatorPosterior": "operator",
    "ParamLayout": "layout",
    "PeriodicFeatures": "models.features",
    "Posterior": "posterior",
    "Prediction": "predict",
    "PredictionConfig": "config",
    "SamplerConfig": "config",
    "SelectionConfig": "config",
    "SensitivityConfig": "config",
    "StoredRun": "stored_run",
    "Subspace": "subspace",
    "VIConfig": "config",
    "infer": "pipeline",
    "load": "stored_run",
}

_STAGES = {"diagnostics", "predict", "laplace", "samplers", "selection", "sensitivity", "subspace", "vi"}

__all__ = [
    "MLP",
    "DeepONet",
    "Inference",
    "InputError",
    "MethodConfig",
    "Observer",
    "OperatorPosterior",
    "ParamLayout",
    "PeriodicFeatures",
    "Posterior",
    "Prediction",
    "PredictionConfig",
    "SamplerConfig",
    "SelectionConfig",
    "SensitivityConfig",
    "StoredRun",
    "Subspace",
    "VIConfig",
    "infer",
    "load",
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
    return getattr(import_module(f"vihmc.{_HOMES[name]}"), name)
