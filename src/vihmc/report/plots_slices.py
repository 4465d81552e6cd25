"""Figures of the slices: what remains of the interactive ones on paper and without scripts."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vihmc.report.style import BLUE, RED, finish, legend_below
from vihmc.runs.held_out_functions import Functions
from vihmc.runs.partial_dependence import LEVELS, Dependence
from vihmc.runs.slices import Slices

MAX_SHOWN = 6
ALPHAS = (0.18, 0.25, 0.35)
"""Of bands that lie on each other, the widest first."""
FIELD, ERROR = "viridis", "PuOr"
"""Colour maps that people with any colour vision can read."""


def slices(found: Slices) -> Figure:
    """Partial dependence on the first inputs, or the best and the worst function."""
    if isinstance(found, Dependence):
        return _dependence(found)
    return functions(found, [0, len(found.index) - 1] if len(found.index) > 1 else [0])


def _dependence(found: Dependence) -> Figure:
    """A panel per input, of the first output."""
    count = min(len(found.inputs), MAX_SHOWN)
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(3.1 * columns, 4.8), 2.7 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for number, axes in enumerate(grid.ravel()):
        if number >= count:
            axes.set_visible(False)
            continue
        x = found.points[number]
        _lines(axes, x, found.mean[number, :, 0], found.low[:, number, :, 0], found.high[:, number, :, 0])
        axes.plot(found.marks[number], np.full(found.marks.shape[1], 0.02), "|", color="black", markersize=5,
                  transform=axes.get_xaxis_transform(), label="training rows")  # fmt: skip
        axes.set_xlabel(found.inputs[number])
    for row in grid:
        row[0].set_ylabel(found.outputs[0])
    legend_below(figure, ncols=3 if columns < 3 else 5)
    return finish(figure)


def functions(found: Functions, shown: list[int]) -> Figure:
    """Some of the functions, a row each."""
    return _images(found, shown) if found.is_image else _curves(found, shown)


def _curves(found: Functions, shown: list[int]) -> Figure:
    columns = min(len(found.rows), 4)
    figure = Figure(
        figsize=(max(2.6 * columns, 4.8), 2.7 * len(shown) + (0.7 if len(shown) > 1 else 1.7)), layout="constrained"
    )
    grid = figure.subplots(len(shown), columns, squeeze=False, sharex=True, sharey=True)
    for line, number in zip(grid, shown, strict=True):
        for panel, axes in enumerate(line):
            ends = (values[:, number, panel] for values in (found.low, found.high))
            _lines(axes, found.columns, found.mean[number, panel], *ends)
            lines = {"linestyle": "--", "linewidth": 1.5, "marker": "."} if columns > 1 else {"linestyle": "--"}
            axes.plot(found.columns, found.truth[number, panel], color=RED, label="held-out field", **lines)
            if len(found.rows) > 1:
                axes.set_title(f"{found.row_name} = {found.rows[panel]:.4g}", fontsize=9)
        line[0].set_ylabel(f"{found.output}\n{describe(found, number)}")
    for axes in grid[-1]:
        axes.set_xlabel(found.column_name)
    legend_below(figure, ncols=3 if columns < 3 else 5)
    return finish(figure)


def _images(found: Functions, shown: list[int]) -> Figure:
    """Truth, mean, error and half the width of the band, in a row, or two by two for one function."""
    across = 2 if len(shown) == 1 else 4
    figure = Figure(figsize=(3.2 * across, 2.75 * len(shown) * 4 // across), layout="constrained")
    grid = figure.subplots(len(shown) * 4 // across, across, squeeze=False, sharex=True, sharey=True)
    for panels, number in zip(grid.reshape(len(shown), 4), shown, strict=True):
        truth, mean = found.truth[number], found.mean[number]
        half = (found.high[0, number] - found.low[0, number]) / 2
        low, high = np.nanmin([truth, mean]), np.nanmax([truth, mean])
        largest = np.nanmax(np.abs(mean - truth))
        drawn = (
            ("held-out field", truth, {"vmin": low, "vmax": high, "cmap": FIELD}),
            ("predicted mean", mean, {"vmin": low, "vmax": high, "cmap": FIELD}),
            ("error: mean - held-out", mean - truth, {"vmin": -largest, "vmax": largest, "cmap": ERROR}),
            ("half width of 95 % band", half, {"vmin": 0, "vmax": np.nanmax(half), "cmap": FIELD}),
        )
        for axes, (title, values, look) in zip(panels, drawn, strict=True):
            image = axes.pcolormesh(found.columns, found.rows, values, shading="nearest", rasterized=True, **look)
            axes.set_title(title, fontsize=9.5)
            bar = figure.colorbar(image, ax=axes, fraction=0.06)
            bar.ax.tick_params(labelsize=8)
            bar.locator = MaxNLocator(nbins=4)
            bar.update_ticks()
        panels[0].set_ylabel(f"{describe(found, number)}\n{found.row_name}" if len(shown) > 1 else found.row_name)
    for line in grid:
        line[0].set_ylabel(line[0].get_ylabel() or found.row_name)
    for axes in grid[-1]:
        axes.set_xlabel(found.column_name)
    if len(shown) == 1:
        figure.suptitle(f"{found.output}: {describe(found, shown[0])}", fontsize=10.5)
    return figure


def describe(found: Functions, number: int) -> str:
    """A function in words: its number, and its place among all."""
    last = len(found.index) - 1
    places = {0: "smallest error", last: "largest error", last // 2: "median error"}
    if last == 0:
        places = {0: "the only one"}
    place = f", {places[number]}" if number in places else ""
    return f"function {found.index[number] + 1}{place}"


def _lines(axes: Axes, x: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    for level, alpha, *ends in zip(LEVELS, ALPHAS, low, high, strict=False):
        axes.fill_between(x, *ends, color=BLUE, alpha=alpha, linewidth=0, label=f"{100 * level:.0f} % band")
    axes.plot(x, mean, color="black", linewidth=1.6, label="mean")
