"""Figures of the chains: do they move, do they agree, and do they reach the tails?"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vihmc.data import Problem
from vihmc.diagnostics.convergence import effective_draws, find_energies
from vihmc.report.style import BLUE, GREEN, GREY, ORANGE, RED, finish, output_name
from vihmc.runs.assessment import ChainsResult
from vihmc.runs.evaluation import RunResult

COLORS = (BLUE, RED, GREEN, ORANGE)
"""Of the chains that are highlighted; the others are grey."""
NUM_POINTS = 400
"""Drawn of a trace at most."""
FALSE_ALARMS = 0.05
"""Share of runs without fault in which some chain leaves the band of its ranks."""


def traces(result: RunResult) -> Figure:
    """Draws of the slowest and of a typical prediction in their order: a row per prediction, a column per method."""
    return traces_of(result.problem, _methods(result))


def traces_of(problem: Problem, methods: dict[str, ChainsResult]) -> Figure:
    """Traces of the chains of some methods."""
    default = (f"Predicted {output_name(problem)}", 0.0, 1.0)
    name, offset, scale = problem.units or default

    def panel(axes: Axes, values: np.ndarray, looks: list[dict[str, Any]]) -> None:
        draws = np.unique(np.linspace(0, values.shape[1] - 1, NUM_POINTS).round().astype(int))
        for chain, look in zip(values, looks, strict=True):
            axes.plot(draws, offset + scale * chain[draws], **look)
        axes.set(xlabel="Draw", ylabel=name)

    return _draw_panels(methods, panel)


def ranks(result: RunResult) -> Figure:
    """ECDF difference plots: the distribution of each chain's ranks among all draws, minus the uniform one.

    Unlike a histogram of the ranks (Säilynoja et al. 2022) they need no bins, and their band is narrow for few draws.
    """

    def panel(axes: Axes, values: np.ndarray, looks: list[dict[str, Any]]) -> None:
        rank = np.empty(values.size)
        rank[np.argsort(values.ravel(), kind="stable")] = (np.arange(values.size) + 0.5) / values.size
        points = np.linspace(0, 1, 101)
        for chain, look in zip(np.sort(rank.reshape(values.shape), axis=1), looks, strict=True):
            share = np.searchsorted(chain, points) / len(chain)
            axes.plot(points, share - points, **look | {"linewidth": 1.3})
        # Kolmogorov's bound, for all chains together.
        draws = float(np.median(effective_draws(values[..., None])))
        band = math.sqrt(math.log(2 * len(values) / FALSE_ALARMS) / (2 * draws))
        axes.axhspan(-band, band, color=GREY, alpha=0.2, linewidth=0, label="95 % band")
        axes.set(xlabel="Fractional rank among all draws", ylabel="ECDF difference", xlim=(0, 1))

    return _draw_panels(_methods(result), panel)


def energy(result: RunResult) -> Figure:
    """Energies, and their changes from draw to draw: chains whose changes are narrow seldom reach the tails."""
    methods = _methods(result)
    figure = Figure(figsize=(4.5 * len(methods), 3.8), layout="constrained")
    for axes, (name, found) in zip(figure.subplots(1, len(methods), squeeze=False)[0], methods.items(), strict=True):
        marginal, changes = find_energies(found.sampled.chains)
        if changes.size:
            low, high = np.quantile(np.concatenate([marginal, changes]), [0.001, 0.999])
            bins = np.linspace(low, high, 41)
            axes.hist(marginal, bins, density=True, color=BLUE, alpha=0.35, label="energy minus its mean")
            axes.hist(
                changes, bins, density=True, histtype="step", color=RED, linewidth=1.6, label="change between draws"
            )
        ebfmi = found.transitions.ebfmi
        is_known = np.all(np.isfinite(ebfmi))
        label = f"E-BFMI {np.median(ebfmi):.2f}, worst chain {ebfmi.min():.2f}" if is_known else "E-BFMI not known"
        axes.plot([], [], " ", label=label)
        axes.set(xlabel="Energy (nats)", ylabel="Density (1/nat)", title=name)
        axes.set_ylim(top=1.5 * axes.get_ylim()[1])
        axes.legend(loc="upper center", frameon=False)
    return finish(figure)


def _draw_panels(
    methods: dict[str, ChainsResult], panel: Callable[[Axes, np.ndarray, list[dict[str, Any]]], None]
) -> Figure:
    """A panel for each trace of each method: methods in columns, each with a legend below."""
    figure = Figure(figsize=(max(7.0, 5.2 * len(methods)), 6.0), layout="constrained")
    grid = figure.subplots(2, len(methods), squeeze=False, sharex="col")
    for column, (name, found) in zip(grid.T, methods.items(), strict=True):
        looks = _looks(found)
        for axes, trace in zip(column, found.traces, strict=True):
            panel(axes, trace.values, looks)
            axes.set_title(f"{name}: {trace.title}", fontsize=10)
        column[0].set_xlabel("")
        ncols = 4 if len(column[-1].get_legend_handles_labels()[1]) == 4 else 3
        column[-1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=ncols, frameon=False)
    return finish(figure)


def _looks(found: ChainsResult) -> list[dict[str, Any]]:
    """How to draw each chain: a few with colours, from the lowest mean of the slowest prediction to the highest."""
    order = np.argsort(found.traces[0].values.mean(axis=1))
    told_apart = order[np.unique(np.linspace(0, len(order) - 1, len(COLORS)).round().astype(int))].tolist()
    others = [chain for chain in range(len(order)) if chain not in told_apart]
    looks: list[dict[str, Any]] = [{"color": GREY, "alpha": 0.3, "linewidth": 0.6, "zorder": 1} for _ in order]
    for color, chain in zip(COLORS, told_apart, strict=False):
        looks[chain] = {"color": color, "alpha": 0.9, "linewidth": 0.9, "label": f"chain {found.numbers[chain]}"}
    if others:
        looks[others[0]]["label"] = "other chains"
    return looks


def _methods(result: RunResult) -> dict[str, ChainsResult]:
    return {name: method.chains for name, method in result.methods.items() if method.chains is not None}
