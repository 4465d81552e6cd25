r"""What a gradient costs, as far as it depends on which layers of an operator have kept parameters.

Layers below the first kept one are computed once (:mod:`vihmc.posterior.cached_layers`). With n rows through a network, functions or
locations, and its first kept parameter in layer `start`, a gradient takes about

.. math:: \sum_{l \ge \text{start}} 6\, n\, \text{width}_l\, \text{width}_{l+1}

operations: forth, back to the inputs, back to the weights. A side with nothing kept costs nothing.
"""

from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from vihmc.models.mlp import MLP
from vihmc.posterior.density import Posterior
from vihmc.posterior.operator import OperatorPosterior


class Allowed(NamedTuple):
    """Parameters that may be kept without paying for more.

    Attributes:
        starts: First layers of branch and of trunk that may have a kept parameter.
        is_allowed: For every parameter, whether it may be kept.
        num_operations: What a gradient then costs.
    """

    starts: tuple[int, int]
    is_allowed: Bool[np.ndarray, " params"]
    num_operations: float

    def holds(self, kept: Int[np.ndarray, " kept"]) -> bool:
        """Whether all of these are allowed."""
        return bool(self.is_allowed[kept].all())


def layers_allowed(posterior: Posterior) -> list[Allowed]:
    """Ways to leave whole layers frozen, the cheapest first; the last allows everything. None but for an operator."""
    if not isinstance(posterior, OperatorPosterior):
        return []
    sides = {"branch": posterior.model.branch, "trunk": posterior.model.trunk}
    rows = {"branch": posterior.targets.shape[0], "trunk": posterior.targets.shape[1]}
    first = {side: _first_layers(posterior, side, network) for side, network in sides.items()}
    ways = []
    for starts in product(*(_starts(network) for network in sides.values())):
        start_of = dict(zip(sides, starts, strict=True))
        if all(start == sides[side].num_layers for side, start in start_of.items()):
            continue
        is_allowed = np.all([first[side] >= start for side, start in start_of.items()], axis=0)
        cost = sum(_operations(sides[side], start, rows[side]) for side, start in start_of.items())
        ways.append(Allowed((starts[0], starts[1]), is_allowed, cost))
    return sorted(ways, key=lambda way: way.num_operations)


def _starts(network: MLP) -> list[int]:
    """All of it, its upper half, its last layer, nothing."""
    depth = network.num_layers
    return sorted({0, depth // 2, depth - 1, depth})


def _first_layers(posterior: OperatorPosterior, side: str, network: MLP) -> Int[np.ndarray, " params"]:
    """For every parameter its layer on this side; of what is not on this side, a layer beyond the last."""
    layers = []
    for name, size in zip(posterior.layout.leaf_names, posterior.layout.leaf_sizes, strict=True):
        head, _, rest = name.partition(".layers.")
        layers.append(np.full(size, int(rest.split(".")[0]) if head == side else network.num_layers))
    return np.concatenate(layers)


def _operations(network: MLP, start: int, num_rows: int) -> float:
    return float(sum(6 * num_rows * one * other for one, other in list(pairwise(network.widths))[start:]))
