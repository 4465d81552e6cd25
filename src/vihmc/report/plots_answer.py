"""The first figure of the report: what VI-HMC predicts on the held-out data, with its band."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vihmc.data import Problem
from vihmc.predict import Prediction
from vihmc.report.plots_slices import functions
from vihmc.report.style import BLUE, GREY, RED, finish, legend_below
from vihmc.runs.evaluation import VIHMC, RunResult
from vihmc.runs.held_out_functions import Functions
from vihmc.runs.scoring import class_probabilities, is_of_classes
from vihmc.runs.slices import Slices

MAX_TARGETS, MAX_BINS = 4, 10


def answer(result: RunResult, found: Slices | None) -> Figure:
    """The median function of an operator, a curve over one input, a reliability diagram, or predicted and observed."""
    problem, predicted = result.problem, result.methods[VIHMC].prediction
    if isinstance(found, Functions):
        return functions(found, [(len(found.index) - 1) // 2])
    if is_of_classes(problem.posterior.likelihood):
        return _reliability(problem, predicted)
    targets = np.asarray(problem.validation_targets).reshape(len(problem.validation_targets), -1)
    count = min(targets.shape[1], MAX_TARGETS)
    columns = min(count, 2)
    figure = Figure(figsize=(4.8 if count == 1 else 4.2 * columns, 4.4 * -(-count // columns)), layout="constrained")
    panels = figure.subplots(-(-count // columns), columns, squeeze=False).ravel()
    draw = _curve if getattr(problem.validation_inputs, "shape", (0, 0))[1:] == (1,) else _held_or_missed
    for number, axes in enumerate(panels):
        if number < count:
            draw(axes, problem, predicted, targets, number)
        axes.set_visible(number < count)
    legend_below(figure, ncols=1 if count == 1 and draw is _held_or_missed else 2 if count == 1 else 4)
    return finish(figure)


def _curve(axes: Axes, problem: Problem, predicted: Prediction, targets: np.ndarray, number: int) -> None:
    """Mean and bands against the input, with training and held-out data."""
    x = np.asarray(problem.validation_inputs)[:, 0]
    order = np.argsort(x, kind="stable")
    level = f"{100 * (predicted.levels[-1] - predicted.levels[0]):.0f} % band"

    def column(values: np.ndarray) -> np.ndarray:
        return np.asarray(values).reshape(len(x), -1)[order, number]

    for name, alpha, quantiles in (
        (f"{level}, new observation", 0.18, predicted.total_quantiles),
        (f"{level}, mean", 0.4, predicted.epistemic_quantiles),
    ):
        if len(quantiles):
            ends = column(quantiles[0]), column(quantiles[-1])
            axes.fill_between(x[order], *ends, color=BLUE, alpha=alpha, linewidth=0, label=name)
    axes.plot(x[order], column(predicted.mean), color="black", linewidth=1.7, label="posterior mean")
    trained = np.asarray(problem.posterior.targets).reshape(len(problem.posterior.targets), -1)[:, number]
    look = {"color": "white", "markeredgecolor": "black", "markersize": 4.5, "markeredgewidth": 0.9}
    axes.plot(np.asarray(problem.posterior.inputs)[:, 0], trained, "o", **look, label="training data")
    if problem.has_truth:
        axes.plot(x[order], targets[order, number], color=RED, linestyle="--", linewidth=1.5, label="truth")
    elif problem.has_held_out:
        axes.plot(x, targets[:, number], "x", color=RED, markersize=5, label="held-out data")
    axes.set(xlabel=problem.input_name, ylabel=_name(problem, number, targets.shape[1]))


def _held_or_missed(axes: Axes, problem: Problem, predicted: Prediction, targets: np.ndarray, number: int) -> None:
    """Bands against observed values; those that missed have another colour and marker."""
    quantiles = predicted.total_quantiles if len(predicted.total_quantiles) else predicted.epistemic_quantiles
    mean, low, high = (
        np.asarray(values).reshape(targets.shape)[:, number] for values in (predicted.mean, quantiles[0], quantiles[-1])
    )
    observed = targets[:, number]
    held = (low <= observed) & (observed <= high)
    level = f"{100 * (predicted.levels[-1] - predicted.levels[0]):.0f} % band"
    axes.axline((observed[0], observed[0]), slope=1, color=GREY, linestyle=":", label="predicted = observed")
    for some, color, marker, word in ((held, BLUE, "o", "held"), (~held, RED, "X", "missed")):
        axes.vlines(observed[some], low[some], high[some], color=color, alpha=0.45, linewidth=1.3)
        label = f"{level} {word}: {some.sum():,} of {len(some):,}"
        axes.plot(observed[some], mean[some], marker, color=color, markersize=4.5, label=label)
    name = _name(problem, number, targets.shape[1])
    axes.set(xlabel=f"Observed {name}", ylabel=f"Predicted {name}")
    if number:
        axes.set_title(name, fontsize=10)


def _reliability(problem: Problem, predicted: Prediction) -> Figure:
    """How often the most probable class was observed, against its probability."""
    probabilities, labels = class_probabilities(problem, predicted.mean)
    confidence, is_right = probabilities.max(axis=-1).ravel(), (probabilities.argmax(axis=-1) == labels).ravel()
    bins = np.array_split(np.argsort(confidence), min(MAX_BINS, len(confidence)))
    points = [(100 * confidence[one].mean(), 100 * is_right[one].mean()) for one in bins]
    figure = Figure(figsize=(4.8, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 100], [0, 100], color=GREY, linestyle=":", label="as it should be")
    axes.plot(*np.transpose(points), "o-", color=BLUE, label=f"{len(bins)} bins of {len(bins[0]):,} rows")
    low = min(min(map(min, points)) - 5, 45.0)
    axes.set(xlabel="Probability of the predicted class (%)", ylabel="Predicted rightly (% of held-out rows)")
    axes.set(xlim=(max(low, 0), 102), ylim=(max(low, 0), 102))
    axes.legend(loc="upper left")
    return finish(figure)


def _name(problem: Problem, number: int, count: int) -> str:
    names = problem.target_names
    return names[number] if len(names) == count else "y" if count == 1 else f"output {number + 1}"
