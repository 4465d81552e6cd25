"""Names for the kinds of value that pass between the stages.

A *parameter vector* is every weight and bias of a model in one flat array, in
the order that :class:`vihmc.posterior.layout.ParamLayout` defines. All stages work on
parameter vectors; only the model itself sees the tree.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.tree_util import GetAttrKey, Partial, all_leaves, register_pytree_with_keys
from jaxtyping import Array, Float

Params = Any
"""A pytree of arrays: the parameters as the model wants them."""

Inputs = Any
"""An array, or a pytree of arrays, whose leading axis counts the observations."""

Apply = Callable[[Params, Inputs], Array]
"""A model: ``apply(params, inputs)`` returns one prediction per observation."""

Vector = Float[Array, " params"]
"""Parameters in one flat array."""

LogDensity = Callable[[Array], Array]
"""An unnormalised log density of one position vector."""

PredictFn = Callable[[Array, Inputs], Array]
"""``predict_fn(position, inputs)``: the model on one position vector."""

Key = jax.Array
"""A JAX random key, new style (``jax.random.key``)."""


Class = TypeVar("Class", bound=type)
_LONGEST = 60


def readable(cls: Class) -> Class:
    """Make a dataclass or named tuple print in one short line: arrays by type and shape, long values cut."""

    def represent(self: Any) -> str:
        names = self._fields if hasattr(self, "_fields") else [field.name for field in dataclasses.fields(self)]
        return f"{type(self).__name__}({', '.join(f'{name}={short(getattr(self, name))}' for name in names)})"

    cls.__repr__ = represent  # pyrefly: ignore[bad-assignment]
    return cls


def short(value: Any) -> str:
    """A value in a few characters."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        if not value.shape and not isinstance(value, jax.core.Tracer):
            return f"{value.item():.4g}"
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    text = repr(value)
    is_collection = isinstance(value, tuple | list | dict | str) and not hasattr(value, "_fields")
    if "\n" in text or (len(text) > _LONGEST and not is_collection and not dataclasses.is_dataclass(value)):
        return f"{type(value).__name__}(…)"
    return text if len(text) <= _LONGEST or not is_collection else f"{text[: _LONGEST - 1]}…"


def as_pytree_function(function: Callable) -> Callable:
    """Make a callable that ``jit`` can take as an argument.

    A closure bakes the arrays it holds into the compiled program as constants: ten million targets would be copied into
    it, and a new data set would compile it again. A :class:`jax.tree_util.Partial` is a pytree whose arrays are
    arguments, and one compiled program serves every data set of one shape.

    A callable that is a pytree already stays as it is, and a bound method of a
    pytree (``posterior.log_density``) becomes the plain function applied to
    that pytree. Any other function is wrapped, and what it closes over stays
    constant.
    """
    if not all_leaves([function]):
        return function
    if inspect.ismethod(function) and not all_leaves([function.__self__]):
        return Partial(function.__func__, function.__self__)
    return Partial(function)


def register_pytree(cls: type, *, data_fields: list[str], meta_fields: list[str]) -> None:
    """Register a frozen dataclass as a pytree that JAX rebuilds without calling its constructor.

    JAX fills trees with marks of its own, which a constructor that checks shapes would refuse.
    """

    def flatten(tree: Any) -> tuple[tuple, tuple]:
        return tuple(getattr(tree, name) for name in data_fields), tuple(getattr(tree, name) for name in meta_fields)

    def flatten_with_keys(tree: Any) -> tuple[tuple, tuple]:
        children, meta = flatten(tree)
        return tuple((GetAttrKey(name), child) for name, child in zip(data_fields, children, strict=True)), meta

    def unflatten(meta: tuple, children: Any) -> Any:
        tree = object.__new__(cls)
        for name, value in zip((*data_fields, *meta_fields), (*children, *meta), strict=True):
            object.__setattr__(tree, name, value)
        return tree

    register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
