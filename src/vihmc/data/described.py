"""Models, likelihoods and priors as JSON and arrays, and back: no code is stored, and none is run to read it.

Known classes are written field by field. What only code can say (a function, a likelihood of your own, a parameter tree
of your own class) is written as a gap with a name, which whoever reads it has to fill.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vihmc.errors import InputError
from vihmc.models.deeponet import DeepONet
from vihmc.models.features import Chained, PeriodicFeatures, Scaling
from vihmc.models.fno import FNO
from vihmc.models.mlp import MLP
from vihmc.models.model import as_model
from vihmc.models.regular_grid import GridOperator, RegularGrid, Spacing
from vihmc.models.standardised import Standardised
from vihmc.posterior.density import Posterior
from vihmc.posterior.fields import FieldPosterior
from vihmc.posterior.layout import ParamLayout
from vihmc.posterior.likelihoods import LIKELIHOODS, Likelihood
from vihmc.posterior.operator import OperatorPosterior
from vihmc.posterior.pairs import PairTargets
from vihmc.posterior.priors import WeightPrior

KNOWN = {
    kind.__name__: kind
    for kind in (
        *(MLP, DeepONet, FNO, Standardised, Scaling, Chained, PeriodicFeatures),
        *(GridOperator, RegularGrid, Spacing),
        *(Posterior, OperatorPosterior, FieldPosterior, ParamLayout, PairTargets, WeightPrior),
        *LIKELIHOODS.values(),
    )
}
MEANINGS = {
    "apply": "the function `apply(params, inputs)` of the model",
    "likelihood": "the likelihood, an object of your own class",
    "params": "an example tree of parameters",
}
"""What the gaps are for."""


def encode(value: Any, arrays: dict[str, np.ndarray], gap: str = "apply") -> Any:
    """Describe a value by plain JSON; arrays go to `arrays`, and what cannot be described becomes the gap `gap`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | jax.Array | np.generic):
        name = f"array_{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"array": name}
    name = type(value).__name__
    if KNOWN.get(name) is type(value):
        return {"type": name, "fields": {key: _encode_field(value, key, arrays, gap) for key in _names(value)}}
    if type(value) in (list, tuple):
        return {type(value).__name__: [encode(item, arrays, gap) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode(item, arrays, gap) for key, item in value.items()}}
    return {"gap": gap}


def _encode_field(value: Any, name: str, arrays: dict[str, np.ndarray], gap: str) -> Any:
    inner = getattr(value, name)
    if name == "treedef":
        # A tree of numbers has the structure that the tree of parameters has.
        return encode(jax.tree.unflatten(inner, range(inner.num_leaves)), arrays, "params")
    return encode(inner, arrays, "likelihood" if name == "likelihood" else gap)


def decode(described: Any, arrays: Mapping[str, np.ndarray], given: Mapping[str, Any]) -> Any:
    """Rebuild a value; `given` fills the gaps.

    Raises:
        InputError: If a gap has nothing to fill it, or the description is none.
    """
    if not isinstance(described, dict):
        return described
    (kind, content), *_ = described.items()
    if kind == "array":
        return jnp.asarray(arrays[content])
    if kind == "gap":
        if given.get(content) is None:
            raise InputError(f"`{content}` must be given to load this run, got none. It is {MEANINGS[content]}.")
        return as_model(given[content]) if content == "apply" else given[content]
    if kind == "type":
        parts = {key: decode(item, arrays, given) for key, item in described["fields"].items()}
        if "treedef" in parts:
            parts["treedef"] = jax.tree.structure(parts["treedef"])
        return KNOWN[content](**parts)
    items = content.items() if kind == "dict" else enumerate(content)
    decoded = {key: decode(item, arrays, given) for key, item in items}
    return decoded if kind == "dict" else {"list": list, "tuple": tuple}[kind](decoded.values())


def bind_given(posterior: Any, likelihood: Likelihood | None) -> Any:
    """A posterior whose likelihood was given unbound, bound to its targets."""
    if likelihood is None or posterior.likelihood is not likelihood:
        return posterior
    theta = jax.ShapeDtypeStruct((posterior.num_params,), posterior.targets.dtype)
    outputs = jax.eval_shape(posterior.predict, theta, posterior.inputs)
    bound = likelihood.bind(posterior.targets, outputs)
    return type(posterior)(**{name: getattr(posterior, name) for name in _names(posterior)} | {"likelihood": bound})


def _names(value: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(value)) if is_dataclass(value) else value._fields
