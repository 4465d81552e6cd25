r"""A PyTorch module inside a JAX program, by callbacks: values, and products with its Jacobian both ways.

.. math:: \dot y = J \dot\theta \quad\text{and}\quad \bar\theta = J^\top \bar y

by `torch.func.jvp` and `torch.func.vjp`. Both are linear primitives, each the transpose of the other, so gradients and
Gauss–Newton products work. Chains run one after the other, and nothing is compiled with the rest.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from vihmc.frameworks.adapted import call
from vihmc.types import Inputs, Params


class CallbackModule:
    """A module and the callbacks on it."""

    def __init__(self, module: torch.nn.Module) -> None:
        """Take a module in evaluation mode."""
        self.module = module

        @jax.custom_jvp
        def run(params: Params, inputs: Inputs) -> Array:
            return _value.bind(*jax.tree.leaves((params, inputs)), callback=self, structure=_structure(params, inputs))

        @run.defjvp
        def push(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
            (params, inputs), (change, _) = primals, tangents
            leaves, structure = jax.tree.leaves((params, inputs)), _structure(params, inputs)
            tangent = _push.bind(*leaves, *jax.tree.leaves(change), callback=self, structure=structure)
            return run(params, inputs), tangent

        self._run = run

    def __call__(self, params: Params, inputs: Inputs) -> Array:
        """Run the module; only parameters can be differentiated by."""
        return self._run(params, jax.lax.stop_gradient(inputs))

    def value(self, params: dict, inputs: Any) -> torch.Tensor:
        """The outputs."""
        return call(
            lambda *one, **named: torch.func.functional_call(self.module, params, one, named),
            inputs,
            self.module.forward,
        )


def _structure(params: Params, inputs: Inputs) -> Any:
    return jax.tree.structure((params, inputs))


def as_tensors(arrays: Any, module: torch.nn.Module) -> list[torch.Tensor]:
    """Arrays as tensors in the precision of a module, whatever JAX computes in."""
    real = next(iter(module.parameters())).dtype.to_real()
    return [
        torch.from_numpy(np.array(array)).to(real.to_complex() if np.iscomplexobj(array) else real) for array in arrays
    ]


def _on_host(kind: str, callback: CallbackModule, structure: Any, dtype: Any, *arrays: Any) -> Any:
    count = structure.num_leaves
    params, inputs = jax.tree.unflatten(structure, as_tensors(arrays[:count], callback.module))
    others = as_tensors(arrays[count:], callback.module)
    with torch.no_grad():
        if kind == "value":
            return callback.value(params, inputs).numpy().astype(dtype)
    value = lambda params: callback.value(params, inputs)
    if kind == "push":
        tangents = dict(zip(sorted(params), others, strict=True))
        with warnings.catch_warnings():
            # On its first use PyTorch compiles something in a way that it calls deprecated itself.
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.func.jvp(value, (params,), (tangents,))[1].detach().numpy().astype(dtype)
    (gradient,) = torch.func.vjp(value, params)[1](others[0])
    # PyTorch's gradient of a complex number is the conjugate of JAX's.
    return [gradient[name].detach().conj().resolve_conj().numpy().astype(_wide(gradient[name], dtype))
            for name in sorted(params)]  # fmt: skip


def _wide(tensor: torch.Tensor, dtype: Any) -> Any:
    return jnp.result_type(dtype, jnp.complex64) if tensor.is_complex() else dtype


_value, _push, _pull = Primitive("torch_value"), Primitive("torch_push"), Primitive("torch_pull")
_pull.multiple_results = True


def _shape_of(*arrays: Any, callback: CallbackModule, structure: Any) -> Any:
    zeros = [np.zeros(array.shape, array.dtype) for array in arrays[: structure.num_leaves]]
    params, inputs = jax.tree.unflatten(structure, as_tensors(zeros, callback.module))
    with torch.no_grad():
        shape = tuple(callback.value(params, inputs).shape)
    real = [array.dtype for array in arrays if jnp.issubdtype(array.dtype, jnp.floating)]
    return jax.core.ShapedArray(shape, jnp.result_type(*real))


def _shapes_of_params(*arrays: Any, callback: CallbackModule, structure: Any) -> list[Any]:
    params, _ = jax.tree.unflatten(structure, list(arrays[: structure.num_leaves]))
    return [jax.core.ShapedArray(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(params)]


_value.def_abstract_eval(_shape_of)
_push.def_abstract_eval(_shape_of)
_pull.def_abstract_eval(_shapes_of_params)


def _lower(primitive: Any, kind: str, shapes: Callable) -> None:
    def run(*arrays: Array, callback: CallbackModule, structure: Any) -> Any:
        found = shapes(*arrays, callback=callback, structure=structure)
        result = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype), found)
        real = jnp.result_type(*[array.dtype for array in arrays if jnp.issubdtype(array.dtype, jnp.floating)])
        host = lambda *values: _on_host(kind, callback, structure, real, *values)
        return jax.pure_callback(host, result, *arrays)

    def batched(arrays: Any, axes: Any, **settings: Any) -> tuple[Any, Any]:
        size = next(array.shape[axis] for array, axis in zip(arrays, axes, strict=True) if axis is not None)
        rows = [
            jnp.broadcast_to(array, (size, *array.shape)) if axis is None else jnp.moveaxis(array, axis, 0)
            for array, axis in zip(arrays, axes, strict=True)
        ]
        out = jax.lax.map(lambda row: primitive.bind(*row, **settings), tuple(rows))
        return out, [0] * len(out) if primitive.multiple_results else 0

    primitive.def_impl(lambda *arrays, **settings: jax.jit(lambda *given: run(*given, **settings))(*arrays))
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=primitive.multiple_results))
    batching.primitive_batchers[primitive] = batched


_lower(_value, "value", _shape_of)
_lower(_push, "push", _shape_of)
_lower(_pull, "pull", _shapes_of_params)


def _transpose(cotangent: Any, *arrays: Any, callback: CallbackModule, structure: Any) -> list[Any]:
    fixed = arrays[: structure.num_leaves]
    backward = _pull.bind(*fixed, cotangent, callback=callback, structure=structure)
    return [*[None] * len(fixed), *backward]


ad.primitive_transposes[_push] = _transpose
