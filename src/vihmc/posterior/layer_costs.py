r"""What a gradient costs, as far as it depends on which layers of an operator have selected parameters.

Layers below the first selected one are computed once (:mod:`vihmc.posterior.cached_layers`). With
n rows through a network, functions or locations, and its first selected parameter in layer `start`, a gradient takes
about

.. math:: \sum_{l \ge \text{start}} 6\, n\, \text{width}_l\, \text{width}_{l+1}

operations: forth, back to the inputs, back to the weights. A side with nothing selected costs nothing.
"""

from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from vihmc.models.deeponet import DeepONet
from vihmc.models.mlp import MLP
from vihmc.posterior.layout import ParamLayout


class FrozenLayers(NamedTuple):
    """A way to leave whole layers frozen.

    Attributes:
        starts: First layers of branch and of trunk that may have a selected parameter.
        may_be_selected: For every parameter, whether that leaves these layers frozen.
        num_operations: What a gradient then costs.
    """

    starts: tuple[int, int]
    may_be_selected: Bool[np.ndarray, " params"]
    num_operations: float

    def allow(self, selected: Int[np.ndarray, " selected"]) -> bool:
        """Whether all of these may be selected."""
        return bool(self.may_be_selected[selected].all())


def frozen_layers(
    model: DeepONet, layout: ParamLayout, *, num_functions: int, num_locations: int
) -> list[FrozenLayers]:
    """Ways to leave whole layers of an operator frozen, the cheapest first; the last freezes none."""
    sides = {"branch": model.branch, "trunk": model.trunk}
    rows = {"branch": num_functions, "trunk": num_locations}
    first = {side: _layer_numbers(layout, side, network) for side, network in sides.items()}
    ways = []
    for starts in product(*(_starts(network) for network in sides.values())):
        start_of = dict(zip(sides, starts, strict=True))
        if all(start == sides[side].num_layers for side, start in start_of.items()):
            continue
        may_be_selected = np.all([first[side] >= start for side, start in start_of.items()], axis=0)
        cost = sum(_operations(sides[side], start, rows[side]) for side, start in start_of.items())
        ways.append(FrozenLayers((starts[0], starts[1]), may_be_selected, cost))
    return sorted(ways, key=lambda way: way.num_operations)


def _starts(network: MLP) -> list[int]:
    """All of it, its upper half, its last layer, nothing."""
    depth = network.num_layers
    return sorted({0, depth // 2, depth - 1, depth})


def _layer_numbers(layout: ParamLayout, side: str, network: MLP) -> Int[np.ndarray, " params"]:
    """For every parameter its layer on this side; a layer beyond the last for those of the other side."""
    layers = []
    for name, size in zip(layout.leaf_names, layout.leaf_sizes, strict=True):
        head, _, rest = name.partition(".layers.")
        layers.append(np.full(size, int(rest.split(".")[0]) if head == side else network.num_layers))
    return np.concatenate(layers)


def _operations(network: MLP, start: int, num_rows: int) -> float:
    return float(sum(6 * num_rows * one * other for one, other in list(pairwise(network.widths))[start:]))
