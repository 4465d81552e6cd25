"""Haiku: a transformed function, with or without state; the state is a constant."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import haiku as hk
import jax
from jaxtyping import Array

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


def adapt(transformed: Any, params: Params | None, inputs: Inputs) -> Adapted:
    """Take given parameters, or a pair of them and the state; or fresh ones."""
    has_state = isinstance(transformed, hk.TransformedWithState)
    arguments = evaluation_arguments(transformed.apply)
    given = params
    if given is None:
        key = jax.random.key(0)
        given = call(lambda *one, **named: transformed.init(key, *one, **named), inputs, _model_of(transformed),
                     **arguments)  # fmt: skip
    weights, state = given if has_state and isinstance(given, tuple) else (given, None)
    told = [f"{name}={value}" for name, value in arguments.items()]
    tell_evaluation_mode([f"what depends on {', '.join(told)}"] if told else [], with_statistics=bool(state))
    model = FrameworkModel("haiku", Constants((transformed, state)), _run, _rebuild)
    weights = _as_dicts(weights)
    _check_not_random(model, weights, inputs)
    return Adapted(model, weights, is_start=True)


def _run(constants: tuple, params: Params, inputs: Inputs) -> Array:
    transformed, state = constants
    leading = [params] if state is None else [params, state]
    if "rng" in inspect.signature(transformed.apply).parameters:
        leading.append(None)
    arguments = evaluation_arguments(transformed.apply)
    outputs = call(lambda *one, **named: transformed.apply(*leading, *one, **named), inputs, _model_of(transformed),
                   **arguments)  # fmt: skip
    return outputs if state is None else outputs[0]


def _rebuild(constants: tuple, params: Params) -> Any:
    return params if constants[1] is None else (params, constants[1])


def _model_of(transformed: Any) -> Callable:
    """A function with the signature of what was transformed."""
    signature = inspect.signature(transformed.apply)
    own = [one for one in signature.parameters.values() if one.name not in ("params", "state", "rng")]

    def model(*_: Any, **__: Any) -> None: ...

    model.__signature__ = signature.replace(parameters=own)  # pyrefly: ignore
    return model


def _as_dicts(params: Params) -> Params:
    """Plain dicts instead of mappings of Haiku's own."""
    return {name: _as_dicts(value) for name, value in params.items()} if isinstance(params, Mapping) else params


def _check_not_random(model: FrameworkModel, params: Params, inputs: Inputs) -> None:
    entered = []

    def remember(run: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        if context.method_name != "__init__":
            entered.append(context.module.module_name)
        return run(*args, **kwargs)

    try:
        with hk.intercept_methods(remember):
            jax.eval_shape(model.apply, params, inputs)
    except ValueError as error:
        if "PRNGKey" not in str(error) and "rng" not in str(error).lower():
            raise
        raise refuse_random(f"in or after '{entered[-1]}'" if entered else "in the transformed function") from error
