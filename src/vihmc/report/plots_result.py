"""Figures of a single result: predictions with bands, calibration, scores beside yardsticks."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from vihmc.data import Problem
from vihmc.errors import InputError
from vihmc.predict import Prediction
from vihmc.report.style import BLUE, GREY, RED, finish, legend_below, output_name
from vihmc.runs.run import Run
from vihmc.runs.scoring import CONSTANT, MAP, MAP_RESIDUAL, RIDGE, Scored, is_of_classes

NUM_POINTS = 200
MARGIN = 0.1
"""Of the range of the data, by which a curve goes on beyond them."""
LEVELS = (0.025, 0.25, 0.5, 0.75, 0.975)
MAX_FUNCTIONS = 4
MAX_TARGETS = 4
FALSE_ALARMS = 0.05
TITLES = {
    "VI-HMC": "VI-HMC",
    MAP: "MAP",
    MAP_RESIDUAL: "MAP with its residual",
    RIDGE: "ridge regression",
    CONSTANT: "mean of the targets",
}


def prediction(run: Run, inputs: Any = None) -> Figure:
    """What the result predicts: a curve, fields of an operator, class probabilities, or predicted against observed."""
    problem = run.problem
    if problem.locations is not None:
        return _fields(run, inputs)
    is_row = getattr(problem.posterior.inputs, "ndim", 0) == 2
    if is_row and problem.posterior.inputs.shape[1] == 1 and not is_of_classes(problem.posterior.likelihood):
        return _curve(run, inputs)
    if inputs is not None:
        raise InputError("`inputs` must be left out where a result is no curve over one input, got some.")
    truth, where = np.asarray(problem.validation_targets), problem.validation_inputs
    if is_of_classes(problem.posterior.likelihood):
        return reliability(run, run.predict(where), truth)
    return _parity(problem, run.predict(where, quantiles=LEVELS), truth)


def _curve(run: Run, inputs: Any) -> Figure:
    """Mean and bands over the input, with the data, a panel per target."""
    problem, posterior = run.problem, run.posterior
    trained, targets = (np.asarray(values).reshape(len(values), -1) for values in (posterior.inputs, posterior.targets))
    known = [trained[:, 0]]
    if problem.has_held_out:
        known.append(np.asarray(problem.validation_inputs)[:, 0])
    if inputs is None:
        low, high = np.min(np.concatenate(known)), np.max(np.concatenate(known))
        margin = MARGIN * ((high - low) or 1.0)
        x = np.linspace(low - margin, high + margin, NUM_POINTS)
    else:
        x = np.sort(np.asarray(inputs, dtype=float).ravel())
    predicted = run.predict(x[:, None], quantiles=LEVELS)
    count = min(targets.shape[1], MAX_TARGETS)
    figure = Figure(figsize=(6.4 if count == 1 else 4.6 * count, 4.2), layout="constrained")
    for target, axes in enumerate(figure.subplots(1, count, squeeze=False)[0]):
        _bands(axes, x, predicted, target)
        axes.plot(trained[:, 0], targets[:, target], "o", color="white", markeredgecolor="black", markersize=4,
                  markeredgewidth=0.8, label="training data")  # fmt: skip
        if problem.has_held_out:
            held_out = np.asarray(problem.validation_targets).reshape(len(known[-1]), -1)[:, target]
            axes.plot(known[-1], held_out, "x", color=RED, markersize=5, markeredgewidth=1.4, label="held-out data")
        axes.set(xlabel=problem.input_name, ylabel=_target_name(problem, target))
    legend_below(figure, ncols=3)
    return finish(figure)


def _bands(axes: Axes, x: np.ndarray, predicted: Prediction, target: int) -> None:
    """The mean, the 95 % band of the mean, and that of a new observation."""

    def column(values: np.ndarray) -> np.ndarray:
        return np.asarray(values).reshape(len(x), -1)[:, target]

    wide, narrow = ((column(quantiles[0]), column(quantiles[-1])) for quantiles in
                    (predicted.total_quantiles, predicted.epistemic_quantiles))  # fmt: skip
    axes.fill_between(x, *wide, color=BLUE, alpha=0.15, linewidth=0, label="95 % band, new observation")
    axes.fill_between(x, *narrow, color=BLUE, alpha=0.45, linewidth=0, label="95 % band, mean")
    axes.plot(x, column(predicted.mean), color="black", linewidth=1.6, label="posterior mean")


def _parity(problem: Problem, predicted: Prediction, truth: np.ndarray) -> Figure:
    """Predictions against observations, with bands, a panel per target."""
    observed = truth.reshape(len(truth), -1)
    count = min(observed.shape[1], MAX_TARGETS)
    figure = Figure(figsize=(4.6 * count, 4.6), layout="constrained")
    what = "held-out" if problem.has_held_out else "training"
    for target, axes in enumerate(figure.subplots(1, count, squeeze=False)[0]):
        mean, low, high = (
            np.asarray(values).reshape(observed.shape)[:, target]
            for values in (predicted.mean, predicted.total_quantiles[0], predicted.total_quantiles[-1])
        )
        x = observed[:, target]
        axes.vlines(x, low, high, color=BLUE, alpha=0.4, linewidth=1.2, label="95 % band, new observation")
        axes.plot(x, mean, ".", color="black", markersize=6, label="posterior mean")
        axes.axline((x[0], x[0]), slope=1, color=GREY, linestyle=":", label="observed = predicted")
        name = _target_name(problem, target)
        axes.set(xlabel=f"Observed {name} ({what} data)", ylabel=f"Predicted {name}")
    legend_below(figure)
    return finish(figure)


def _fields(run: Run, inputs: Any) -> Figure:
    """Fields of some functions with their bands: over the location, or at the last time of a grid."""
    problem = run.problem
    shown = np.asarray(problem.validation_inputs if inputs is None else inputs)[:MAX_FUNCTIONS]
    locations = np.asarray(problem.locations)
    names = problem.input_names or (("t", "x") if problem.grid is not None else ("x",) * locations.shape[1])
    if problem.grid is not None:
        places = slice(len(locations) - len(problem.grid.positions), None)
        x, xlabel, at = problem.grid.positions, names[1], f" at {names[0]} = {problem.grid.times[-1]:g}"
    elif locations.shape[1] == 1:
        order = np.argsort(locations[:, 0], kind="stable")
        places, x, xlabel, at = order, locations[order, 0], names[0], ""
    else:
        places, x, xlabel, at = slice(None), np.arange(len(locations)), "Number of the location", ""
    predicted = run.predict(shown, quantiles=LEVELS)
    figure = Figure(figsize=(4.4 * min(2, len(shown)), 2.9 * -(-len(shown) // 2) + 0.6), layout="constrained")
    grid = figure.subplots(-(-len(shown) // 2), min(2, len(shown)), squeeze=False, sharex=True)
    for index, axes in enumerate(grid.ravel()):
        if index >= len(shown):
            axes.set_visible(False)
            continue
        one = Prediction(
            mean=np.asarray(predicted.mean)[index][places],
            epistemic_std=np.asarray(predicted.epistemic_std)[index][places],
            total_std=np.asarray(predicted.total_std)[index][places],
            levels=predicted.levels,
            epistemic_quantiles=np.asarray(predicted.epistemic_quantiles)[:, index][:, places],
            total_quantiles=np.asarray(predicted.total_quantiles)[:, index][:, places],
        )
        _bands(axes, x, one, 0)
        if inputs is None:
            truth = np.asarray(problem.validation_targets)[index][places]
            label = "held-out field" if problem.has_held_out else "training field"
            axes.plot(x, truth, color=RED, linestyle="--", linewidth=1.4, label=label)
        axes.set_title(f"function {index}", fontsize=10)
        axes.set(ylabel=f"{output_name(problem)}{at}")
    for axes in grid[-1]:
        axes.set_xlabel(xlabel)
    legend_below(figure, ncols=2)
    return finish(figure)


def calibration(predicted: Prediction, truth: np.ndarray) -> Figure:
    """Share of observations inside central bands of a new observation, against the level of the bands."""
    assert predicted.pit is not None
    # An observation is inside the central band of level L where |2 · pit - 1| is at most L.
    needed = np.sort(np.abs(2 * np.asarray(predicted.pit).ravel() - 1))
    levels = np.linspace(0, 1, 101)
    share = np.searchsorted(needed, levels, side="right") / needed.size
    figure = Figure(figsize=(4.8, 4.8), layout="constrained")
    axes = figure.subplots()
    ends = stats.binom.ppf([[FALSE_ALARMS / 2], [1 - FALSE_ALARMS / 2]], len(truth), levels) / len(truth)
    label = f"95 % of samples of {len(truth)}, if calibrated"
    axes.fill_between(100 * levels, *(100 * ends), color=GREY, alpha=0.2, linewidth=0, label=label)
    axes.plot([0, 100], [0, 100], color=GREY, linestyle=":", label="calibrated")
    axes.plot(100 * levels, 100 * share, color=BLUE, linewidth=2, label="VI-HMC")
    axes.set(xlabel="Level of the central band (%)", ylabel="Observations inside (%)", xlim=(0, 100), ylim=(0, 101))
    axes.set_aspect("equal")
    axes.legend(loc="lower right")
    return finish(figure)


def reliability(run: Run, predicted: Prediction, truth: np.ndarray) -> Figure:
    """How often the most probable class was observed, against its probability."""
    mean, labels = np.asarray(predicted.mean, dtype=float), np.asarray(truth).astype(int)
    if mean.ndim == labels.ndim:
        mean = np.stack([1 - mean, mean], axis=-1)
    confidence, is_right = mean.max(axis=-1).ravel(), (mean.argmax(axis=-1) == labels).ravel()
    bins = np.array_split(np.argsort(confidence), min(10, len(confidence)))
    points = [(100 * confidence[one].mean(), 100 * is_right[one].mean()) for one in bins]
    figure = Figure(figsize=(4.8, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 100], [0, 100], color=GREY, linestyle=":", label="calibrated")
    axes.plot(*np.transpose(points), "o-", color=BLUE, label="VI-HMC, bins of equally many rows")
    what = "held-out" if run.problem.has_held_out else "training"
    axes.set(xlabel="Probability of the predicted class (%)", ylabel=f"Predicted rightly (%, {what} rows)")
    axes.set(xlim=(0, 102), ylim=(0, 102))
    axes.legend(loc="upper left")
    return finish(figure)


def scores(scored: dict[str, Scored], target: str = "units of the target") -> Figure:
    """Scores of VI-HMC and of the yardsticks: log predictive density, and error; a row each, the best on top."""
    first = next(iter(scored.values())).overall.as_dict()
    if "accuracy" in first:
        panels = (("log_score", "Log score (nats a row)\n→ better"), ("accuracy", "Accuracy\n→ better"))
    else:
        panels = (
            ("log_predictive_density", "Log predictive density (nats a value)\n→ better"),
            ("crps", f"CRPS, {target}\n← better"),
            ("rmse", f"RMSE, {target}\n← better"),
        )
    values = {name: one.overall.as_dict() for name, one in scored.items()}
    order = sorted(values, key=lambda name: values[name][panels[0][0]])
    figure = Figure(figsize=(2.7 * len(panels) + 1.2, 0.45 * len(values) + 1.4), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
        for row, name in enumerate(order):
            is_ours = name == "VI-HMC"
            axes.plot(values[name][key], row, "o" if is_ours else "s", color=BLUE if is_ours else GREY,
                      markersize=8 if is_ours else 6)  # fmt: skip
        axes.set(xlabel=title, yticks=range(len(order)), ylim=(-0.6, len(order) - 0.4))
        axes.set_yticklabels([TITLES.get(name, name) for name in order])
        axes.locator_params(axis="x", nbins=4)
        axes.margins(x=0.12)
    return finish(figure)


def _target_name(problem: Problem, target: int) -> str:
    names = problem.target_names
    count = int(np.prod(np.shape(problem.validation_targets)[1:]))
    return names[target] if len(names) == count else "y" if count == 1 else f"output {target}"
