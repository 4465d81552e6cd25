"""The figure of a comparison: how wide the error bars of every run are."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from vihmc.errors import InputError
from vihmc.report.finished import FinishedRun
from vihmc.report.style import BLUE, GREEN, GREY, METHOD_STYLE, ORANGE, RED, finish, log_scale
from vihmc.runs.evaluation import HMC, VI, VIHMC
from vihmc.runs.files import load_arrays

COLORS = (BLUE, RED, GREEN, ORANGE, "#CC79A7", "#56B4E9", "black")
MARKERS = ("", "o", "s", "^", "v", "D")
"""Of the first runs, of those after them, and so on: with the colours they tell 42 runs apart."""
LONGEST_LABEL = 40


class Curve(NamedTuple):
    """Standard deviation of the prediction of a method against a scalar input."""

    method: str
    x: np.ndarray
    std: np.ndarray


def overlay(runs: Sequence[FinishedRun], labels: Sequence[str]) -> Figure | None:
    """Std of the predictions of all runs: lines over the input if they are curves of one problem, else bars."""
    curves = [read_curves(run.path) for run in runs]
    if all(curves) and len({run.summary.problem for run in runs}) == 1:
        return _lines(curves, labels)
    return _bars(runs, labels)


def read_curves(path: Path) -> list[Curve]:
    """The curves of a run; none if it is not about curves, or its predictions cannot be read."""
    file, curves = path / "predictions.npz", []
    try:
        x = load_arrays(file, ["inputs"])["inputs"]
    except InputError:
        return []
    if x.ndim != 2 or x.shape[1] != 1:
        return []  # before anything large is read
    for name in (VI, VIHMC, HMC):
        with suppress(InputError):
            std = load_arrays(file, [f"{name}.epistemic_std"])[f"{name}.epistemic_std"]
            if std.shape == x.shape and np.any(std > 0):
                curves.append(Curve(name, x[:, 0], std[:, 0]))
    return curves


def _lines(curves: list[list[Curve]], labels: Sequence[str]) -> Figure:
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    runs = []
    for index, (found, label) in enumerate(zip(curves, labels, strict=True)):
        color, marker = COLORS[index % len(COLORS)], MARKERS[index // len(COLORS) % len(MARKERS)]
        look = {"color": color, "marker": marker, "markersize": 4, "linewidth": 1.8}
        runs += axes.plot([], [], label=_written(label), **look)
        for curve in found:
            order = np.argsort(curve.x)
            positive = np.where(curve.std > 0, curve.std, np.nan)[order]
            every = max(1, len(order) // 12)
            axes.plot(curve.x[order], positive, linestyle=METHOD_STYLE[curve.method][1], markevery=every, **look)
    names = [name for name in METHOD_STYLE if any(curve.method == name for found in curves for curve in found)]
    methods = [axes.plot([], [], color=GREY, linestyle=METHOD_STYLE[name][1], label=name)[0] for name in names]
    axes.set(xlabel="Input x", ylabel="Epistemic std of y", title="Epistemic uncertainty")
    log_scale(axes)
    columns = 3 if max(map(len, labels)) < 20 else 2
    figure.legend(handles=[*runs, *methods], loc="outside lower center", ncols=columns, handlelength=3)
    return finish(figure)


def _bars(runs: Sequence[FinishedRun], labels: Sequence[str]) -> Figure | None:
    bars = [
        (index, method.name, value)
        for index, run in enumerate(runs)
        for method in run.methods
        if (value := method.predictive.mean_epistemic_std) is not None and math.isfinite(value)
    ]
    if not bars:
        return None
    names = [name for name in METHOD_STYLE if any(method == name for _, method, _ in bars)]
    figure = Figure(figsize=(8, 1.4 + 0.28 * len(runs) * (len(names) + 1)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(names)
    for place, name in enumerate(names):
        own = [(index, value) for index, method, value in bars if method == name]
        positions = [index + (place - (len(names) - 1) / 2) * height for index, _ in own]
        drawn = axes.barh(positions, [value for _, value in own], 0.9 * height, color=METHOD_STYLE[name][0], label=name)
        axes.bar_label(drawn, fmt="{:.3g}", padding=3, fontsize=9)
    axes.set_yticks(range(len(runs)), [_written(label) for label in labels])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel="Mean epistemic std, in the units of each problem's output", title="Epistemic uncertainty")
    figure.legend(loc="outside lower center", ncols=len(names))
    return finish(figure)


def _written(label: str) -> str:
    """A label that is drawn as it is: a dollar would begin a formula, and a leading underscore hide it."""
    short = label if len(label) <= LONGEST_LABEL else f"…{label[1 - LONGEST_LABEL :]}"
    return f" {short}".replace("$", r"\$")
