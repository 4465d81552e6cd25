"""Flax NNX: the parameters are the module's `nnx.Param` variables, all other variables are constants."""

from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array

from vihmc.frameworks.adapted import (
    EVALUATION,
    Adapted,
    Constants,
    FrameworkModel,
    call,
    refuse_random,
    tell_evaluation_mode,
)
from vihmc.types import Inputs, Params


def adapt(module: Any, params: Params | None, inputs: Inputs) -> Adapted:
    """Take a module apart, switched to evaluation mode."""
    evaluated = nnx.merge(*nnx.split(module))
    tell_evaluation_mode(_training_layers(module), with_statistics=bool(nnx.state(module, nnx.BatchStat)))
    evaluated.eval()
    graph, own, rest = nnx.split(evaluated, nnx.Param, ...)
    _check_not_random(graph, own, rest, inputs)
    model = FrameworkModel("flax.nnx", Constants((graph, rest)), _run, _rebuild)
    return Adapted(model, nnx.to_pure_dict(own) if params is None else params, is_start=True)


def _run(constants: tuple, params: Params, inputs: Inputs) -> Array:
    return call(_rebuild(constants, params), inputs)


def _rebuild(constants: tuple, params: Params) -> Any:
    graph, rest = constants
    # Running a module changes counters of random numbers in place: each run has its own.
    return nnx.merge(graph, params, jax.tree.map(lambda leaf: leaf, rest))


def _training_layers(module: Any) -> list[str]:
    found = []
    for path, layer in nnx.iter_modules(module):
        if any(getattr(layer, name, value) is (not value) for name, value in EVALUATION.items()):
            found.append(f"{'.'.join(map(str, path))} ({type(layer).__name__})")
    return found


def _check_not_random(graph: Any, own: Any, rest: Any, inputs: Inputs) -> None:
    module = nnx.merge(graph, own, jax.tree.map(lambda leaf: leaf, rest))
    before = nnx.to_flat_state(nnx.state(module, nnx.RngCount))
    counts = [int(np.asarray(count[...])) for _, count in before]
    call(module, inputs)
    for (path, count), earlier in zip(nnx.to_flat_state(nnx.state(module, nnx.RngCount)), counts, strict=True):
        if int(np.asarray(count[...])) != earlier:
            raise refuse_random("'" + ".".join(str(part) for part in path if part not in ("rngs", "count")) + "'")
