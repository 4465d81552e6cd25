"""Figures that compare runs: problems, thresholds, rules and fits."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from vihmc.fit.result import FitHistory
from vihmc.report.formats import SUPERSCRIPTS
from vihmc.report.style import BLUE, GREEN, GREY, ORANGE, RED, few_large_numbers, finish, fit_loss
from vihmc.selection.rules import captured_share, count_for

SERIES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (RED, ":"), (GREY, (0, (5, 1, 1, 1, 1, 1))))
"""Colour and style of lines; either alone tells them apart."""
NUM_STDS = 3
NUM_BINS = 40


class FitAndScores(NamedTuple):
    """A fit, its scores and the selected parameters."""

    mean: np.ndarray
    std: np.ndarray
    scores: np.ndarray
    selected: np.ndarray

    @property
    def captured(self) -> np.ndarray:
        """Share of the total score of the n largest, for every n."""
        return captured_share(self.scores)


class Fields(NamedTuple):
    """Predictions of all validation functions at one time."""

    positions: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    truth: np.ndarray


class Training(NamedTuple):
    """History of a fit."""

    history: FitHistory
    loss_name: str


def training_curves(fits: Mapping[str, Training]) -> Figure:
    """Loss and error of the fit of every problem: a row each."""
    figure = Figure(figsize=(9, 2.7 * len(fits)), layout="constrained")
    grid = figure.subplots(len(fits), 2, squeeze=False)
    for (loss_axes, error_axes), (name, (history, loss_name)) in zip(grid, fits.items(), strict=True):
        loss_axes.plot(history.step, history.loss, color=BLUE, label=loss_name)
        fit_loss(loss_axes, history.loss)
        loss_axes.set(ylabel="Loss (nats)", title=f"{name}: loss")
        loss_axes.legend()
        error_axes.plot(history.step, history.training_mse, color=BLUE, label="training")
        if np.any(np.isfinite(history.validation_mse)):
            error_axes.plot(history.step, history.validation_mse, color=RED, linestyle="--", label="validation")
        error_axes.set(ylabel="MSE (output²)", yscale="log", title=f"{name}: error at the mean of q")
        error_axes.legend()
        for axes in (loss_axes, error_axes):
            axes.set_xlabel("Optimiser step")
            few_large_numbers(axes)
    return finish(figure)


def captured_curves(scores: Mapping[str, np.ndarray], threshold: float) -> Figure:
    """Captured variance against the number of parameters of every problem."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    for axes, (name, values) in zip(figure.subplots(2, 2).flat, scores.items(), strict=False):
        share = captured_share(values)
        num_selected = count_for(values, threshold)
        marker = "o" if values.size < 20 else ""
        axes.plot(np.arange(1, values.size + 1), share, color=BLUE, marker=marker, label="captured share")
        axes.axhline(threshold, color=GREY, linestyle=":", label=f"threshold {threshold:g}")
        axes.axvline(num_selected, color=RED, linestyle="--", label=f"{num_selected:,} of {values.size:,}")
        axes.set(
            xlabel="Number of parameters, most sensitive first", ylabel="Share of Σ S²", ylim=(0, 1.04), title=name
        )
        axes.legend(loc="lower right")
        if values.size > 1000:
            few_large_numbers(axes)
    return finish(figure)


def score_histograms(scores: Mapping[str, np.ndarray]) -> Figure:
    """Scores up to their 99th percentile."""
    figure = Figure(figsize=(4 * len(scores), 3.4), layout="constrained")
    for axes, (name, values) in zip(figure.subplots(1, len(scores), squeeze=False)[0], scores.items(), strict=True):
        exponent = math.floor(math.log10(values.max()))
        values = values / 10.0**exponent
        limit = np.quantile(values, 0.99)
        axes.hist(
            values[values <= limit], bins=NUM_BINS, color=BLUE, edgecolor="white", linewidth=0.4, label="parameters"
        )
        axes.axvline(np.median(values), color=RED, linestyle="--", label="median")
        unit = f"10{str(exponent).translate(SUPERSCRIPTS)} output²"
        axes.set(xlabel=f"Score S² ({unit}), to its 99th percentile", ylabel="Number of parameters", title=name)
        axes.set_yscale("log")
        axes.legend()
    return finish(figure)


def uncertainty_over_x(fields: Mapping[str, Fields]) -> Figure:
    """Mean std over all functions at the last time, a line per selection."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (color, style), (name, field) in zip(SERIES, fields.items(), strict=False):
        axes.plot(
            field.positions, field.std.mean(axis=0), color=color, linestyle=style, linewidth=2, label=_title(name)
        )
    axes.set(
        xlabel="x",
        ylabel="Mean epistemic std of u(x, t = 1)",
        yscale="log",
        title="Uncertainty over x",
    )
    figure.legend(loc="outside lower center", ncols=3)
    return finish(figure)


def one_function(fields: Mapping[str, Fields], names: Sequence[str]) -> Figure:
    """One function under several selections, with bands: the one with the median error under the first."""
    first = fields[names[0]]
    errors = np.linalg.norm(first.mean - first.truth, axis=1) / np.linalg.norm(first.truth, axis=1)
    index = int(np.argsort(errors)[len(errors) // 2])
    figure = Figure(figsize=(4.2 * len(names), 3.9), layout="constrained")
    grid = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(grid, names, strict=True):
        field = fields[name]
        mean, width = field.mean[index], NUM_STDS * field.std[index]
        axes.fill_between(
            field.positions, mean - width, mean + width, color=BLUE, alpha=0.3, linewidth=0, label=f"± {NUM_STDS} std"
        )
        axes.plot(field.positions, mean, color="black", linewidth=1.8, label="mean")
        axes.plot(field.positions, field.truth[index], color=RED, linestyle="--", linewidth=1.6, label="truth")
        error = np.linalg.norm(mean - field.truth[index]) / np.linalg.norm(field.truth[index])
        axes.set(xlabel="x", title=f"{_title(name)}\nrelative L2 at t = 1: {error:.1%}")
    grid[0].set_ylabel("u(x, t = 1)")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return finish(figure)


def _title(name: str) -> str:
    return "random, size of 0.3" if name == "random" else f"threshold {name}"


def rule_errors(cases: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Errors of every rule: a panel per case, a row per rule, a dot per seed."""
    figure = Figure(figsize=(4.2 * len(cases) + 0.8, 3.4), layout="constrained")
    grid = figure.subplots(1, len(cases), sharey=True, squeeze=False)[0]
    for axes, (title, rules) in zip(grid, cases.items(), strict=True):
        for row, (values, (color, _)) in enumerate(zip(rules.values(), SERIES, strict=False)):
            axes.plot(values, np.full(len(values), row), "o", color=color, alpha=0.6, markersize=7, label="one seed")
            axes.plot(
                [np.median(values)], [row], "|", color="black", markersize=24, markeredgewidth=2.5, label="median"
            )
        axes.set_yticks(range(len(rules)), rules.keys())
        axes.set(xlabel="RMS log ratio of std to HMC on all", xscale="log", title=title)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(y=0.2)
    grid[0].invert_yaxis()
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles[:2], labels[:2], loc="outside lower center", ncols=2)
    return finish(figure)


def robustness(cases: Mapping[str, Mapping[str, FitAndScores]], title: str) -> Figure:
    """Densities of means and stds of q, and captured variance: a row for the noise, a row for the amount of data."""
    figure = Figure(figsize=(11, 3.4 * len(cases) + 0.3), layout="constrained")
    grid = figure.subplots(len(cases), 3, squeeze=False)
    for (mean_axes, std_axes, share_axes), fits in zip(grid, cases.values(), strict=True):
        stds = np.concatenate([fit.std for fit in fits.values()])
        means = np.concatenate([fit.mean for fit in fits.values()])
        for (color, style), (label, fit) in zip(SERIES, fits.items(), strict=False):
            line = {"color": color, "linestyle": style, "linewidth": 1.8, "label": label}
            mean_axes.plot(*_density(fit.mean, means), **line)
            positions, values = _density(np.log10(fit.std), np.log10(stds))
            std_axes.plot(10**positions, values, **line)
            share_axes.plot(np.arange(1, fit.scores.size + 1), fit.captured, **line)
        mean_axes.set(xlabel="Mean of q, μ", ylabel="Density over parameters")
        std_axes.set(xlabel="Std of q, σ", ylabel="Density of log₁₀ σ", xscale="log")
        share_axes.set(xlabel="Number of parameters", ylabel="Share of Σ S²", ylim=(0, 1.04))
        share_axes.legend(loc="lower right")
    figure.suptitle(title, fontsize=11)
    return finish(figure)


def _density(values: np.ndarray, together: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian kernel density with Silverman's bandwidth, on a range for all of `together`."""
    low, high = together.min(), together.max()
    margin = 0.1 * (high - low)
    positions = np.linspace(low - margin, high + margin, 200)
    spread = min(values.std(ddof=1), float(np.subtract(*np.quantile(values, (0.75, 0.25)))) / 1.34)
    width = 0.9 * max(spread, 1e-3 * (high - low)) * values.size**-0.2
    kernels = np.exp(-0.5 * ((positions[:, None] - values) / width) ** 2)
    return positions, kernels.mean(axis=1) / (width * np.sqrt(2 * np.pi))
