"""Flax Linen: the parameters are the collection `params`, all other collections are constants."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import errors
from jaxtyping import Array

from vihmc.errors import InputError
from vihmc.frameworks.adapted import (
    Adapted,
    Constants,
    FrameworkModel,
    call,
    evaluation_arguments,
    refuse_random,
    tell_evaluation_mode,
)
from vihmc.types import Inputs, Params


def adapt(module: Any, params: Params | None, inputs: Inputs) -> Adapted:
    """Take variables apart: those given, or fresh ones of the module."""
    arguments = evaluation_arguments(type(module).__call__)
    variables = params
    if variables is None:
        key = jax.random.key(0)
        variables = call(lambda *given, **named: module.init(key, *given, **named), inputs, module, **arguments)
    collections = dict(variables) if isinstance(variables, Mapping) and "params" in variables else {"params": variables}
    weights = collections.pop("params")
    told = [f"{name}={value}" for name, value in arguments.items()]
    tell_evaluation_mode([f"what depends on {', '.join(told)}"] if told else [], with_statistics=bool(collections))
    model = FrameworkModel("flax.linen", Constants((module, collections)), _run, _rebuild)
    _check_runs(model, weights, inputs)
    return Adapted(model, weights, is_start=True)


def _run(constants: tuple, params: Params, inputs: Inputs) -> Array:
    module, collections = constants
    variables, arguments = {"params": params, **collections}, evaluation_arguments(type(module).__call__)
    return call(lambda *given, **named: module.apply(variables, *given, **named), inputs, module, **arguments)


def _rebuild(constants: tuple, params: Params) -> Any:
    return {"params": params, **constants[1]}


def _check_runs(model: FrameworkModel, params: Params, inputs: Inputs) -> None:
    try:
        jax.eval_shape(model.apply, params, inputs)
    except errors.InvalidRngError as error:
        raise refuse_random(str(error).split(" needs ")[0].strip()) from error
    except errors.ModifyScopeVariableError as error:
        reason = str(error).split(" (http")[0]
        raise InputError(
            f"`model` must leave its variables as they are, got an error: {reason} Switch it to evaluation mode."
        ) from error
