"""Figures of a run. Each function takes results and returns a Figure; none shows or saves it."""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vihmc.predict import Prediction
from vihmc.report.plots_answer import answer
from vihmc.report.plots_bands import coverage, spread
from vihmc.report.plots_chains import energy, ranks, traces
from vihmc.report.plots_layers import has_layers, layers
from vihmc.report.plots_operator import fields, spectra
from vihmc.report.plots_slices import slices as draw_slices
from vihmc.report.style import (
    BLUE,
    GREY,
    METHOD_STYLE,
    RED,
    SAMPLES,
    few_large_numbers,
    finish,
    fit_loss,
    legend_below,
    log_scale,
    output_name,
    row_of_axes,
)
from vihmc.runs.evaluation import HMC, VI, VIHMC, MethodResult, RunResult
from vihmc.runs.scoring import class_probabilities, is_of_classes
from vihmc.runs.slices import Slices
from vihmc.selection.rules import captured_share

FEW_PARAMETERS = 20
MAX_BINS = 10
MAX_TARGETS = 4
"""Targets that a figure shows, the first ones."""


def run_figures(result: RunResult, found: Slices | None = None) -> dict[str, Figure]:
    """All figures that a run can have, by name; `found` are its slices, if they were computed."""
    builders: dict[str, Callable[[RunResult], Figure]] = {"answer": partial(answer, found=found)}
    if found is not None:
        builders["slices"] = lambda _: draw_slices(found)
    if result.problem.locations is not None:
        builders |= {"coverage": coverage, "spread": spread}
    elif not result.problem.has_truth and not is_of_classes(result.problem.posterior.likelihood):
        builders["coverage"] = coverage
    builders |= {"training": training, "sensitivity": sensitivity}
    if _is_curve(result):
        builders |= {"predictions": predictions, "uncertainty": uncertainty}
    elif is_of_classes(result.problem.posterior.likelihood):
        builders["reliability"] = reliability
    elif result.problem.locations is None:
        builders["parity"] = parity
    if result.problem.posterior.num_params > FEW_PARAMETERS and has_layers(result.problem.posterior.layout):
        builders["layers"] = lambda run: layers(run.problem.posterior.layout, run.inference.selected)
    if result.problem.grid is not None:
        builders["fields"] = fields
    if result.problem.curves is not None:
        builders |= {f"spectra_{case.title.split()[0]}": partial(spectra, case=case) for case in result.cases}
    if result.problem.labels and result.inference.subspace.num_selected > 1:
        builders["joint"] = joint
    builders |= {"traces": traces, "ranks": ranks, "energy": energy}
    return {name: build(result) for name, build in builders.items()}


def training(result: RunResult) -> Figure:
    """Loss and error of the fit, step by step."""
    history = result.inference.fit.history
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    loss_axes, error_axes = figure.subplots(1, 2)
    config = result.config.vi
    name = "Negative ELBO" if config.objective == "elbo" else "Published loss"
    if result.inference.fit.is_laplace:
        name = "Negative log posterior"
    if config.kl_weight < 1:
        name += f", KL weight {config.kl_weight:g}"
    loss_axes.plot(history.step, history.loss, color=BLUE)
    loss_axes.set(xlabel="Optimiser step", ylabel=f"{name} (nats)", title="Loss of the fit")
    fit_loss(loss_axes, history.loss)
    error_axes.plot(history.step, history.training_mse, color=BLUE, label="training")
    if np.any(np.isfinite(history.validation_mse)):
        error_axes.plot(history.step, history.validation_mse, color=RED, linestyle="--", label="validation")
    error_axes.set(
        xlabel="Optimiser step",
        ylabel=f"Mean square error ({_squared(result)})",
        yscale="log",
        title="Error at the mean of q",
    )
    error_axes.legend()
    for axes in figure.axes:
        few_large_numbers(axes)
    return finish(figure)


def sensitivity(result: RunResult) -> Figure:
    """Share of the total sensitivity that the n most sensitive parameters hold, and the distribution of scores."""
    values = np.asarray(result.inference.selected.scores.values, dtype=float)
    num_selected, threshold = len(result.inference.selected.indices), result.selection.threshold
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    share_axes, histogram_axes = figure.subplots(1, 2)
    numbers = np.arange(1, values.size + 1)
    marker = "o" if values.size < FEW_PARAMETERS else ""
    share_axes.plot(numbers, captured_share(values), color=BLUE, marker=marker, label="cumulative share")
    share_axes.axhline(threshold, color=GREY, linestyle=":", label=f"threshold {threshold:g}")
    label = f"{num_selected:,} of {values.size:,} selected"
    share_axes.axvline(num_selected, color=RED, linestyle="--", label=label)
    share_axes.set(
        xlabel="Number of parameters, most sensitive first",
        ylabel="Share of total sensitivity Σ S²",
        ylim=(0, 1.04),
        title="Cumulative sensitivity",
    )
    share_axes.legend(loc="lower right")
    if values.size > FEW_PARAMETERS:
        few_large_numbers(share_axes)
    if values.size <= FEW_PARAMETERS:
        _score_bars(histogram_axes, result, values)
    else:
        limit = np.quantile(values, 0.99)
        histogram_axes.hist(values[values <= limit], bins=40, color=BLUE, edgecolor="white", linewidth=0.4)
        histogram_axes.set(
            xlabel=f"Score S² ({_squared(result)}), up to the 99th percentile", ylabel="Number of parameters"
        )
        histogram_axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    histogram_axes.set_title("Sensitivity scores")
    histogram_axes.ticklabel_format(axis="x", scilimits=(-2, 3))
    return finish(figure)


def _score_bars(axes: Axes, result: RunResult, values: np.ndarray) -> None:
    order = np.argsort(values)
    chosen = np.isin(order, result.inference.selected.indices)
    axes.barh(np.flatnonzero(chosen), values[order][chosen], color=BLUE, label="selected")
    frozen = {"color": "white", "edgecolor": GREY, "hatch": "//", "label": "frozen"}
    axes.barh(np.flatnonzero(~chosen), values[order][~chosen], **frozen)
    axes.set_yticks(range(values.size), [result.problem.param_names[index] for index in order])
    axes.set(xlabel=f"Sensitivity score S² ({_squared(result)})", xlim=(0, 1.5 * values.max()))
    axes.legend(loc="center right")


def _squared(result: RunResult) -> str:
    """The unit of a variance of the output."""
    name = output_name(result.problem)
    return f"{name}²" if len(name) == 1 else "output²"


def predictions(result: RunResult) -> Figure:
    """Mean, band and draws of every method, with the data and the truth."""
    methods = _ordered(result)
    figure = Figure(figsize=(4.4 * len(methods), 3.9), layout="constrained")
    for axes, (name, method) in zip(row_of_axes(figure, len(methods)), methods.items(), strict=True):
        _prediction_panel(axes, result, method)
        axes.set_title(result.title(name))
    figure.axes[0].set_ylabel(result.problem.target_name)
    legend_below(figure)
    return finish(figure)


def parity(result: RunResult) -> Figure:
    """Predictions against validation targets, with bands: a row per target, a column per method."""
    problem, methods = result.problem, _ordered(result)
    targets = np.asarray(problem.validation_targets).reshape(len(problem.validation_targets), -1)
    num_rows = min(targets.shape[1], MAX_TARGETS)
    names = problem.target_names or tuple(f"target {index}" for index in range(targets.shape[1]))
    figure = Figure(figsize=(4.2 * len(methods), 3.7 * num_rows + 0.4), layout="constrained")
    grid = figure.subplots(num_rows, len(methods), squeeze=False, sharex="row", sharey="row")
    for column, (name, method) in zip(grid.T, methods.items(), strict=True):
        predicted = method.prediction
        quantiles = predicted.total_quantiles if len(predicted.total_quantiles) else predicted.epistemic_quantiles
        level = f"{_level(predicted)} predictive interval"
        for row, axes in enumerate(column):
            mean, *ends = (values.reshape(targets.shape)[:, row] for values in (predicted.mean, *quantiles[[0, -1]]))
            truth = targets[:, row]
            axes.vlines(truth, *ends, color=BLUE, alpha=0.35, linewidth=1, label=level)
            axes.plot(truth, mean, ".", color="black", markersize=5, label="posterior mean")
            axes.axline((truth[0], truth[0]), slope=1, color=GREY, linestyle=":", label="observed = predicted")
            axes.set(xlabel=f"Observed {names[row]}")
        column[0].set_title(result.title(name))
    for row, axes in enumerate(grid[:, 0]):
        axes.set_ylabel(f"Predicted {names[row]}")
    legend_below(figure)
    return finish(figure)


def reliability(result: RunResult) -> Figure:
    """How often the most probable class was observed against its probability, a panel per method."""
    methods = _ordered(result)
    figure = Figure(figsize=(4.2 * len(methods), 3.9), layout="constrained")
    for axes, (name, method) in zip(row_of_axes(figure, len(methods)), methods.items(), strict=True):
        probabilities, labels = class_probabilities(result.problem, method.prediction.mean)
        confidence, is_right = probabilities.max(axis=-1).ravel(), (probabilities.argmax(axis=-1) == labels).ravel()
        bins = np.array_split(np.argsort(confidence), min(MAX_BINS, len(confidence)))
        points = [(confidence[one].mean(), is_right[one].mean()) for one in bins]
        axes.plot(*np.transpose(points), "o-", color=BLUE, label="bins of equally many rows")
        axes.axline((1, 1), slope=1, color=GREY, linestyle=":", label="calibrated")
        axes.set(xlabel="Probability of the predicted class", xlim=(0, 1.02), ylim=(0, 1.02))
        axes.set_title(result.title(name))
    figure.axes[0].set_ylabel("Share of rows predicted rightly")
    legend_below(figure)
    return finish(figure)


def uncertainty(result: RunResult) -> Figure:
    """Width of the error bars of every method over the input."""
    x = _curve_input(result)
    figure = Figure(figsize=(6.5, 3.9), layout="constrained")
    axes = figure.subplots()
    for name, method in result.methods.items():
        color, style = METHOD_STYLE[name]
        label = result.title(name)
        axes.plot(x, method.prediction.epistemic_std[:, 0], color=color, linestyle=style, linewidth=2, label=label)
    inputs = np.asarray(result.problem.posterior.inputs)[:, 0]
    at_bottom = {"transform": axes.get_xaxis_transform(), "label": "training inputs"}
    axes.plot(inputs, np.full_like(inputs, 0.02), "|", color="black", **at_bottom)
    name = result.problem.target_name
    axes.set(xlabel=result.problem.input_name, ylabel=f"Epistemic std of {name}", title="Epistemic uncertainty")
    log_scale(axes)
    figure.legend(loc="outside lower center", ncols=len(result.methods) + 1)
    return finish(figure)


def joint(result: RunResult) -> Figure:
    """The two named parameters that are most correlated in the chains, under every method."""
    draws = {name: _parameter_draws(result, method) for name, method in result.methods.items()}
    chosen = np.asarray(result.inference.subspace.selected)
    correlations = np.triu(np.abs(_correlations(draws[VIHMC][:, chosen])), 1)
    pair = chosen[list(np.unravel_index(np.argmax(correlations), correlations.shape))]
    xlabel, ylabel = (result.problem.param_names[index] for index in pair)
    figure = Figure(figsize=(4.0 * len(draws), 3.6), layout="constrained")
    for axes, (name, values) in zip(row_of_axes(figure, len(draws)), draws.items(), strict=True):
        axes.plot(*values[:, pair].T, ".", color=METHOD_STYLE[name][0], markersize=3, alpha=0.4)
        correlation = _correlations(values[:, pair])[0, 1]
        axes.set(xlabel=xlabel, ylabel=ylabel, title=f"{result.title(name)}: correlation {correlation:.2f}")
        axes.locator_params(nbins=5)
    return finish(figure)


def _correlations(draws: np.ndarray) -> np.ndarray:
    """Correlation matrix of the columns; zero for one that does not vary."""
    if len(draws) < 2:
        return np.zeros((draws.shape[1], draws.shape[1]))
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(np.corrcoef(draws, rowvar=False))


def _prediction_panel(axes: Axes, result: RunResult, method: MethodResult) -> None:
    x, predicted = _curve_input(result), method.prediction
    low, high = predicted.epistemic_quantiles[0][:, 0], predicted.epistemic_quantiles[-1][:, 0]
    axes.fill_between(x, low, high, color=BLUE, alpha=0.25, linewidth=0, label=f"{_level(predicted)} credible band")
    axes.plot(x, method.functions[:SAMPLES, :, 0].T, color=BLUE, alpha=0.25, linewidth=0.6)
    axes.plot([], [], color=BLUE, alpha=0.5, linewidth=0.8, label="posterior draws")
    axes.plot(x, predicted.mean[:, 0], color="black", linewidth=1.8, label="posterior mean")
    truth = np.asarray(result.problem.validation_targets)[:, 0]
    if result.problem.has_truth:
        axes.plot(x, truth, color=RED, linestyle="--", linewidth=1.5, label="truth")
    else:
        axes.plot(x, truth, "x", color=RED, markersize=5, label="validation data")
    posterior = result.problem.posterior
    inputs, targets = (np.asarray(values)[:, 0] for values in (posterior.inputs, posterior.targets))
    axes.plot(inputs, targets, "o", color="white", markeredgecolor="black", markersize=5, label="training data")
    margin = 0.25 * np.ptp(truth)
    axes.set(xlabel=result.problem.input_name, ylim=(truth.min() - margin, truth.max() + margin))


def _parameter_draws(result: RunResult, method: MethodResult) -> np.ndarray:
    if method.sampled is None:
        q = result.inference.fit.q
        noise = np.random.default_rng(0).normal(size=(2000, q.mean.shape[0]))
        return np.asarray(q.mean) + np.asarray(q.std) * noise
    return np.asarray(method.sampled.space.embed(jnp.asarray(method.sampled.draws)))


def _ordered(result: RunResult) -> dict[str, MethodResult]:
    return {name: result.methods[name] for name in (VI, HMC, VIHMC) if name in result.methods}


def _level(predicted: Prediction) -> str:
    return f"{100 * (predicted.levels[-1] - predicted.levels[0]):.0f} %"


def _is_curve(result: RunResult) -> bool:
    inputs, targets = result.problem.validation_inputs, result.problem.validation_targets
    return getattr(inputs, "shape", (0, 0))[1:] == (1,) and targets.shape[1:] == (1,)


def _curve_input(result: RunResult) -> np.ndarray:
    return np.asarray(result.problem.validation_inputs)[:, 0]
