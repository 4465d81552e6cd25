"""PyTorch: parameters and buffers by name; the module is compiled by torchax with the rest, or called from JAX.

A complex tensor is a complex parameter. A module that torchax cannot translate, or translates into other numbers, runs
in PyTorch itself (:mod:`vihmc.frameworks.torch_callback`).
"""

import copy
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Array

from vihmc.errors import InputError
from vihmc.frameworks.adapted import Adapted, Constants, FrameworkModel, call, refuse_random, tell_evaluation_mode
from vihmc.frameworks.torch_callback import CallbackModule, as_tensors
from vihmc.types import Inputs, Params

_TOLERANCE = 1e-4
"""Largest difference between PyTorch and torchax, relative to the largest output."""


def adapt(module: Any, params: Params | None, inputs: Inputs) -> Adapted:
    """Take a module apart, switched to evaluation mode; the one that is given stays as it is."""
    tell_evaluation_mode(_training_layers(module), with_statistics=bool(list(module.buffers())))
    evaluated = copy.deepcopy(module).eval().requires_grad_(False)
    own = {name: as_jax(value) for name, value in evaluated.named_parameters()}
    if not own:
        raise InputError("`model` must have parameters, got a module without any.")
    buffers = {name: as_jax(value) for name, value in evaluated.named_buffers()}
    expected = _check_not_random(copy.deepcopy(evaluated), inputs)
    model = FrameworkModel("torch", Constants((evaluated, buffers)), _run, _rebuild)
    reason = _why_not_torchax(model, own, inputs, expected)
    if reason is not None:
        warnings.warn(
            f"`model` runs in PyTorch and is called from JAX, which is many times slower than a compiled model: "
            f"{reason}.",
            stacklevel=4,
        )
        model = FrameworkModel("torch", Constants((CallbackModule(evaluated), buffers)), _run_callback, _rebuild)
    return Adapted(model, own if params is None else params, is_start=True)


def as_jax(tensor: torch.Tensor) -> Array:
    """A tensor as an array."""
    return jnp.asarray(np.asarray(tensor.detach().cpu()))


def _run(constants: tuple, params: Params, inputs: Inputs) -> Array:
    import torchax
    from torchax import interop

    # Modules may keep what they compute, such as a grid; here that would be a value inside of a program.
    module, buffers = copy.deepcopy(constants[0]), constants[1]
    inputs = jax.tree.map(jnp.asarray, inputs)
    with torchax.default_env(), _plain_einsum():
        state, given = interop.torch_view({**params, **buffers}), interop.torch_view(inputs)
        outputs = call(
            lambda *one, **named: torch.func.functional_call(module, state, one, named), given, module.forward
        )
    return interop.jax_view(outputs)


def _run_callback(constants: tuple, params: Params, inputs: Inputs) -> Array:
    callback, _ = constants
    return callback(params, inputs)


def _rebuild(constants: tuple, params: Params) -> torch.nn.Module:
    """A new module with these parameters."""
    module = constants[0].module if isinstance(constants[0], CallbackModule) else constants[0]
    rebuilt = copy.deepcopy(module)
    with torch.no_grad():
        for name, tensor in rebuilt.named_parameters():
            tensor.copy_(torch.from_numpy(np.array(params[name])))
    return rebuilt.requires_grad_(True)


@contextmanager
def _plain_einsum() -> Iterator[None]:
    """Tensorly, which neuraloperator is built on, may have handed its products to a library that wants real tensors."""
    plugins = sys.modules.get("tensorly.plugins")
    if plugins is None or plugins.PREVIOUS_EINSUM is None:
        yield
        return
    plugins.use_default_einsum()
    try:
        yield
    finally:
        plugins.use_opt_einsum()


def _why_not_torchax(model: FrameworkModel, params: Params, inputs: Inputs, expected: np.ndarray) -> str | None:
    try:
        import torchax  # noqa: F401
    except Exception as error:
        return f"torchax cannot be imported ({_first_line(error)}); vihmc[torch] installs a version that can"
    try:
        found = np.asarray(jax.jit(model.apply)(params, inputs))
    except Exception as error:
        return f"torchax cannot translate it ({type(error).__name__}: {_first_line(error)})"
    scale = np.max(np.abs(expected), initial=1e-30)
    if found.shape != expected.shape or not np.max(np.abs(found - expected)) <= _TOLERANCE * scale:
        return "torchax translates it into other numbers"
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:120]


def _training_layers(module: Any) -> list[str]:
    kinds = (torch.nn.modules.batchnorm._NormBase, torch.nn.modules.dropout._DropoutNd, torch.nn.RReLU)
    return [
        f"{name} ({type(layer).__name__})"
        for name, layer in module.named_modules()
        if layer.training and isinstance(layer, kinds)
    ]


def _check_not_random(module: Any, inputs: Inputs) -> np.ndarray:
    """Run twice and compare; return the outputs."""
    seen: list[dict[str, Any]] = [{}, {}]
    handles = []
    for name, layer in module.named_modules():
        hook = lambda layer, args, out, name=name: seen[-1].setdefault(name, out) if torch.is_tensor(out) else None
        handles.append(layer.register_forward_hook(lambda *given, hook=hook: (hook(*given), None)[1]))
    leaves, structure = jax.tree.flatten(inputs)
    tensors = jax.tree.unflatten(structure, as_tensors(leaves, module))
    with torch.no_grad():
        first = call(module.forward, tensors)
        earlier, seen[-1] = seen[-1], {}
        second = call(module.forward, tensors)
    for handle in handles:
        handle.remove()
    if not torch.is_tensor(first):
        raise InputError(f"`model` must return one tensor, got a {type(first).__name__}.")
    if not torch.equal(first, second):
        # Hooks run when a layer is done, so the first that differs is the innermost.
        different = [name for name, out in earlier.items() if not torch.equal(out, seen[-1][name])]
        raise refuse_random(f"'{different[0]}'" if different else f"of {type(module).__name__}")
    return first.numpy()
