"""Figures of an operator: what its fields and curves look like."""

import numpy as np
from matplotlib.figure import Figure

from vihmc.report.style import BLUE, GREEN, RED, SAMPLES, finish, legend_below, output_name
from vihmc.runs.evaluation import VI, VIHMC, Case, MethodResult, RunResult, relative_l2

NUM_STDS = 3


def fields(result: RunResult) -> Figure:
    """Best and worst validation functions of VI and VI-HMC at the last time, a row each, with relative L2 errors."""
    assert result.problem.grid is not None
    times, positions = result.problem.grid
    methods = {name: result.methods[name] for name in (VI, VIHMC)}
    truth = np.asarray(result.problem.validation_targets)
    initial, final = slice(0, len(positions)), slice(truth.shape[1] - len(positions), None)
    time, position = result.problem.input_names or ("t", "x")
    at_start, at_end = (f"{time} = {value:g}" for value in (times[0], times[-1]))
    cases: dict[int, int] = {}
    for row, case in enumerate(result.cases):
        cases.setdefault(case.index, row)  # a function that is best or worst of both methods is shown once
    figure = Figure(figsize=(9, 2.35 * len(cases) + 0.5), layout="constrained")
    grid = figure.subplots(len(cases), len(methods), sharex=True, sharey="row", squeeze=False)
    for rows, (index, row) in zip(grid, cases.items(), strict=True):
        title = ", ".join(case.title for case in result.cases if case.index == index)
        for axes, (name, method) in zip(rows, methods.items(), strict=True):
            axes.plot(positions, method.functions[:SAMPLES, row].T, color=BLUE, alpha=0.3, linewidth=0.7)
            axes.plot([], [], color=BLUE, alpha=0.6, linewidth=1, label="posterior draws")
            lines = {"linewidth": 1.6, "color": GREEN, "linestyle": ":"}
            axes.plot(positions, truth[index, initial], **lines, label=f"truth at {at_start}")
            axes.plot(
                positions, method.prediction.mean[index, final], color="black", linewidth=1.8, label="posterior mean"
            )
            axes.plot(
                positions, truth[index, final], color=RED, linestyle="--", linewidth=1.6, label=f"truth at {at_end}"
            )
            axes.set_title(f"{result.title(name)} ({title}): error {_error(method, truth, index):.1%}", fontsize=10)
        rows[0].set_ylabel(f"{output_name(result.problem)} at {at_end}")
    for axes in grid[-1]:
        axes.set_xlabel(position)
    legend_below(figure)
    return finish(figure)


def _error(method: MethodResult, truth: np.ndarray, index: int) -> float:
    one = slice(index, index + 1)
    return float(relative_l2(method.prediction.mean[one], truth[one])[0])


def spectra(result: RunResult, case: Case) -> Figure:
    """One validation function at all sensors, as curves with error bars: a row per method, a column per sensor."""
    problem = result.problem
    assert problem.curves is not None
    assert problem.units is not None
    panels, axis = problem.curves
    name, offset, scale = problem.units
    shape = (len(panels.values), len(axis.values))
    weights = np.ones(shape) if problem.validation_weights is None else problem.validation_weights[case.index]
    known = weights.reshape(shape) > 0
    truth = offset + scale * np.asarray(problem.validation_targets)[case.index].reshape(shape)
    figure = Figure(figsize=(9, 2.3 * len(result.methods) + 0.7), layout="constrained")
    grid = figure.subplots(len(result.methods), shape[0], sharex=True, sharey=True, squeeze=False)
    for row, (method_name, method) in zip(grid, result.methods.items(), strict=True):
        predicted = method.prediction
        mean = offset + scale * predicted.mean[case.index].reshape(shape)
        width = NUM_STDS * scale * predicted.epistemic_std[case.index].reshape(shape)
        for index, axes in enumerate(row):
            low, high = mean[index] - width[index], mean[index] + width[index]
            axes.fill_between(axis.values, low, high, color=BLUE, alpha=0.3, linewidth=0, label=f"± {NUM_STDS} std")
            axes.plot(axis.values, mean[index], color="black", linewidth=1.5, label="posterior mean")
            shown = known[index]
            axes.plot(axis.values[shown], truth[index][shown], "o", color=RED, markersize=3.5, label="data")
        row[0].set_ylabel(f"{result.title(method_name)}\n{name}")
    for value, axes in zip(panels.values, grid[0], strict=True):
        axes.set_title(f"{panels.name} = {value:.4g} {panels.unit}", fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel(f"{axis.name} ({axis.unit})")
    legend_below(figure)
    figure.suptitle(f"Input {case.index + 1} of the validation set: {case.title}", fontsize=11)
    return finish(figure)
