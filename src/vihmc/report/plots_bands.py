"""Figures of whether error bars are as wide as they should be, on the held-out data."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from scipy import stats

from vihmc.report.style import BLUE, GREY, METHOD_STYLE, finish, output_name
from vihmc.runs.evaluation import VI, VIHMC, RunResult
from vihmc.runs.held_out_functions import errors_of_functions

FALSE_ALARMS = 0.05
MARKERS = {VI: "s", VIHMC: "o"}


def coverage(result: RunResult) -> Figure:
    """Share of the held-out values inside central bands of a new observation, against the level of the bands."""
    problem = result.problem
    num_cases, is_field = len(problem.validation_targets), problem.locations is not None
    levels = np.linspace(0, 1, 101)
    figure = Figure(figsize=(4.8, 4.6), layout="constrained")
    axes = figure.subplots()
    ends = stats.binom.ppf([[FALSE_ALARMS / 2], [1 - FALSE_ALARMS / 2]], num_cases, levels) / num_cases
    what = f"chance, {num_cases:,} independent {'functions' if is_field else 'rows'} (95 %)"
    axes.fill_between(100 * levels, *(100 * ends), color=GREY, alpha=0.2, linewidth=0, label=what)
    axes.plot([0, 100], [0, 100], color=GREY, linestyle=":", label="as it should be")
    for name in reversed(result.methods):
        color, style = METHOD_STYLE[name]
        shares = 100 * coverage_curve(result, name, levels)
        axes.plot(100 * levels, shares, color=color, linestyle=style, linewidth=2, label=result.title(name))
    what = "Held-out values inside (%)" if problem.has_held_out else "Training values inside (%)"
    axes.set(xlabel="Level of the central band (%)", ylabel=what, xlim=(0, 100), ylim=(0, 101))
    axes.set_title("How often the bands held", fontsize=11)
    axes.legend(loc="upper left", fontsize=8.5)
    return finish(figure)


def coverage_curve(result: RunResult, method: str, levels: np.ndarray) -> np.ndarray:
    """Share of the observed values inside the central band of each level."""
    pit, weights = result.methods[method].prediction.pit, result.problem.validation_weights
    assert pit is not None
    # The central band of level L holds an observation where |2 · pit - 1| is at most L.
    needed = np.abs(2 * np.asarray(pit, float).ravel() - 1)
    weights = np.ones(needed.size) if weights is None else np.asarray(weights, float).ravel()
    order = np.argsort(needed)
    total = np.concatenate([[0.0], np.cumsum(weights[order])])
    return total[np.searchsorted(needed[order], levels, side="right")] / total[-1]


def spread(result: RunResult) -> Figure:
    """Predicted std against actual error of every held-out function, on logarithmic axes."""
    figure = Figure(figsize=(4.8, 4.6), layout="constrained")
    axes = figure.subplots()
    everything = []
    for name in (VI, VIHMC):
        found = errors_of_functions(result.problem, result.methods[name].prediction)
        known = (found.error > 0) & (found.std > 0)
        is_ours = name == VIHMC
        look = {"color": METHOD_STYLE[name][0], "markerfacecolor": BLUE if is_ours else "none", "alpha": 0.7}
        axes.plot(found.std[known], found.error[known], MARKERS[name], markersize=4.5, label=result.title(name), **look)
        everything += [found.std[known], found.error[known]]
    values = np.concatenate(everything)
    ends = np.array([values.min() / 1.3, values.max() * 1.3]) if values.size else np.array([0.1, 1.0])
    axes.plot(ends, ends, color=GREY, linestyle=":", label="as it should be")
    correlation = errors_of_functions(result.problem, result.methods[VIHMC].prediction).correlation
    shown = f"correlation {correlation:.2f}" if np.isfinite(correlation) else "one predicted std for all"
    axes.set_title(f"VI-HMC, function by function: {shown}", fontsize=11)
    unit = output_name(result.problem) if result.problem.units is None else result.problem.units.name
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel=f"Predicted total std, RMS ({unit})", ylabel=f"Actual error, RMS ({unit})")
    for axis in (axes.xaxis, axes.yaxis):
        few = ends[1] / ends[0] < 20
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_aspect("equal")
    axes.legend(loc="upper left", fontsize=8.5)
    return finish(figure)
