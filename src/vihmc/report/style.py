"""What all figures share: colours that people with any colour vision can tell apart (Okabe and Ito), and a light grid.

Lines differ in style as well as in colour.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

from vihmc.data import Problem
from vihmc.runs.evaluation import HMC, VI, VIHMC

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"
METHOD_STYLE = {VI: (ORANGE, "--"), VIHMC: (BLUE, "-"), HMC: (GREEN, "-.")}
SAMPLES = 30


def output_name(problem: Problem) -> str:
    """What the output is called: by its own name, else u for a field and y for a regression."""
    return problem.target_names[0] if problem.target_names else "y" if problem.locations is None else "u"


def few_large_numbers(axes: Axes) -> None:
    """Tick labels that do not run into each other: 50k instead of 50000, and few of them."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def fit_loss(axes: Axes, loss: np.ndarray) -> None:
    """Scale the axis of a loss: by its logarithm if it begins far above where it ends."""
    low, high = float(np.min(loss)), float(np.max(loss))
    if high > 10 * max(1.0, abs(low)):
        axes.set_yscale("symlog", linthresh=max(1.0, abs(low)))
    else:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def log_scale(axes: Axes) -> None:
    """A logarithmic y axis with plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def legend_below(figure: Figure, ncols: int | None = None) -> None:
    """One legend for all panels, below them."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=ncols or len(labels))


def row_of_axes(figure: Figure, columns: int) -> list[Axes]:
    """Make one row of axes."""
    return list(figure.subplots(1, columns, squeeze=False)[0])


def finish(figure: Figure) -> Figure:
    """Take away what is not needed, and add a grid."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
    return figure
