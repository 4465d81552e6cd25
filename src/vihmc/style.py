"""What all figures share: colours that people with any colour vision can tell apart (Okabe and Ito), and a light grid.

Lines differ in style as well as in colour.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vihmc.evaluation import HMC, VI, VIHMC

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"
METHOD_STYLE = {VI: (ORANGE, "--"), VIHMC: (BLUE, "-"), HMC: (GREEN, "-.")}
SAMPLES = 30


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
