"""The figure of the layers: on which entries of every matrix of a network the predictions depend."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vihmc.posterior.layout import ParamLayout
from vihmc.report.style import GREY
from vihmc.selection.second_stage import Selected

DECADES = 6
"""Range of the colours of the scores; smaller ones are all alike."""
FAR_APART = 10
"""Ratio of scores beyond which colours follow their logarithm."""
FEW_LAYERS = 4
"""Up to which there is room for wide images."""
FEW_ENTRIES = 30
"""Rows and columns of images up to which frozen entries are marked one by one."""


def has_layers(layout: ParamLayout) -> bool:
    """Whether the parameters are those of networks that keep their layers in a list: an MLP, or a DeepONet."""
    return all("layers" in name.split(".")[:2] for name in layout.leaf_names if name != "bias")


def layers(layout: ParamLayout, selected: Selected) -> Figure:
    """Scores of every layer as an image: a row per neuron, a column per input, the bias last."""
    values = np.asarray(selected.scores.values)
    is_frozen = ~np.isin(np.arange(values.size), selected.indices)
    scores, frozen = (_networks(layout.unravel(jnp.asarray(vector))) for vector in (values, is_frozen))
    columns = max(map(len, scores.values()))
    norm = _norm(values)
    width, height = (2.3, 2.9) if columns <= FEW_LAYERS else (1.35, 1.95)
    figure = Figure(figsize=(width * columns + 1.2, height * len(scores)), layout="constrained")
    grid = figure.subplots(len(scores), columns, squeeze=False)
    is_marked = max(max(_image(layer).shape) for network in scores.values() for layer in network) <= FEW_ENTRIES
    for row, (name, network) in zip(grid, scores.items(), strict=True):
        row[0].set_ylabel("neurons")
        for index, axes in enumerate(row):
            if index >= len(network):
                axes.set_visible(False)
                continue
            image = _image(network[index])
            axes.imshow(image, norm=norm, cmap="cividis", aspect="auto", interpolation="none")
            axes.set(xticks=[], yticks=[])
            axes.set_title(f"{name} {index + 1}\n{image.shape[0]} × {image.shape[1]}", fontsize=9)
            axes.set_xlabel("inputs | bias" if "bias" in network[index] else "inputs", fontsize=9)
            if "bias" in network[index]:
                axes.axvline(image.shape[1] - 1.5, color="white", linewidth=1)
            if is_marked:
                _cross_out(axes, _image(frozen[name][index]))
    extend = "min" if values.min() < norm.vmin else "neither"
    bar = figure.colorbar(
        ScalarMappable(norm, "cividis"), ax=grid, shrink=0.85, label="Score S² (output²)", extend=extend
    )
    bar.ax.tick_params(labelsize=9)
    if is_marked:
        cross = Line2D([], [], linestyle="", marker="x", color=GREY, markersize=5, label="frozen")
        figure.legend(handles=[cross], loc="outside lower center", frameon=False, fontsize=9)
    return figure


def _norm(values: np.ndarray) -> Normalize:
    """Colours from the smallest score that counts to the largest: by their logarithm if they are far apart."""
    top = float(values.max())
    bottom = max(float(values.min()), top / 10**DECADES)
    return LogNorm(bottom, top, clip=True) if top > FAR_APART * bottom else Normalize(bottom, top, clip=True)


def _networks(params: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The layers of each network, by its name."""
    if "layers" in params:
        return {"layer": params["layers"]}
    return {name: part["layers"] for name, part in params.items() if name != "bias"}


def _image(layer: dict[str, Any]) -> np.ndarray:
    """Weights of a layer, a row per neuron, and its bias as the last column."""
    weight = np.asarray(layer["weight"]).T
    return np.column_stack([weight, np.asarray(layer["bias"])]) if "bias" in layer else weight


def _cross_out(axes: Axes, frozen: np.ndarray) -> None:
    """Mark frozen entries, light on dark or dark on light."""
    rows, columns = np.nonzero(frozen)
    axes.plot(columns, rows, "x", color="white", markersize=4.5, markeredgewidth=1.8)
    axes.plot(columns, rows, "x", color=GREY, markersize=3.5, markeredgewidth=0.9)
