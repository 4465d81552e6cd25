"""Which library a model is from, by the name of its class's module: nothing is imported to find out."""

from importlib import import_module
from typing import Any

import jax

from vihmc.errors import InputError
from vihmc.frameworks.adapted import Adapted
from vihmc.models.model import as_model
from vihmc.types import Inputs, Params

_ADAPTERS = {
    "flax.nnx": "flax_nnx",
    "flax.linen": "flax_linen",
    "equinox": "equinox",
    "haiku": "haiku",
    "torch.nn": "torch",
}


def adapt_model(model: Any, params: Params | None, inputs: Inputs) -> Adapted:
    """Make a pure function and its parameters of any model.

    Args:
        model: A Flax, Equinox or PyTorch module, a Haiku transform, an object with `apply`, or a function.
        params: Its parameters; the model's own, or fresh ones, if not given.
        inputs: Some observations, to try it on.

    Raises:
        InputError: If it has no parameters, or is random.
    """
    adapter = _adapter_of(model)
    if adapter is not None:
        return import_module(f"vihmc.frameworks.{adapter}").adapt(model, params, inputs)
    if params is not None:
        return Adapted(as_model(model), params, is_start=False)
    if not callable(getattr(model, "init", None)):
        raise InputError(
            f"`params` must be given for a {type(model).__name__}, got nothing: Posterior.of(apply, params, inputs, "
            "targets). Modules of Flax, Equinox, Haiku and PyTorch bring theirs."
        )
    return Adapted(as_model(model), model.init(jax.random.key(0)), is_start=True)


def to_module(model: Any, params: Params, *, framework: str | None = None) -> Any:
    """The object of another library that a model was made from, with these parameters.

    Raises:
        InputError: If the model is from no library, or from another one than is asked for.
    """
    found = getattr(model, "framework", None)
    if found is None or framework not in (None, found):
        what = f"a {framework} module" if framework else "a module of a library"
        raise InputError(f"`model` must have been {what}, got {found or type(model).__name__}.")
    return model.to_module(params)


def _adapter_of(model: Any) -> str | None:
    first = model[0] if type(model) is tuple and model else model
    for cls in type(first).__mro__:
        for library, adapter in _ADAPTERS.items():
            if cls.__module__ == library or cls.__module__.startswith(f"{library}."):
                return adapter
    return None
