"""Equinox: the parameters are the module's floating-point arrays; it acts on one observation, and is vectorised."""

import inspect
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from vihmc.frameworks.adapted import Adapted, Constants, FrameworkModel, call, refuse_random, tell_evaluation_mode
from vihmc.types import Inputs, Params


def adapt(model: Any, params: Params | None, inputs: Inputs) -> Adapted:
    """Take a module apart, or a pair of a module and its state, switched to evaluation mode."""
    module, state = model if isinstance(model, tuple) else (model, None)
    tell_evaluation_mode(_training_layers(module), with_statistics=state is not None)
    own, static = eqx.partition(eqx.nn.inference_mode(module), eqx.is_inexact_array)
    adapted = FrameworkModel("equinox", Constants((static, state)), _run, _rebuild)
    if _needs_key(module):
        raise refuse_random(f"{type(module).__name__}, which needs a `key`")
    return Adapted(adapted, own if params is None else params, is_start=True)


def _run(constants: tuple, params: Params, inputs: Inputs) -> Array:
    static, state = constants
    module = eqx.combine(params, static)
    if state is None:
        return jax.vmap(lambda row: call(module, row))(inputs)
    return jax.vmap(lambda row: call(lambda *one, **named: module(*one, **named, state=state)[0], row, module))(inputs)


def _rebuild(constants: tuple, params: Params) -> Any:
    static, state = constants
    module = eqx.combine(params, static)
    return module if state is None else (module, state)


def _training_layers(module: Any) -> list[str]:
    layers = jax.tree_util.tree_leaves_with_path(module, is_leaf=lambda node: hasattr(node, "inference"))
    return [
        f"{jax.tree_util.keystr(path, simple=True, separator='.')} ({type(layer).__name__})"
        for path, layer in layers
        if getattr(layer, "inference", True) is False
    ]


def _needs_key(module: Any) -> bool:
    key = inspect.signature(module).parameters.get("key")
    return key is not None and key.default is inspect.Parameter.empty
