"""Measures of a prediction, as a person reads them."""

from collections.abc import Callable
from typing import NamedTuple

from vihmc.report.finished import FinishedRun, Method
from vihmc.report.formats import show_number, show_share


class Quantity(NamedTuple):
    """A measure of the predictions."""

    title: str
    key: str
    form: Callable[[float | None], str | None]
    meaning: str

    def show(self, run: FinishedRun, method: Method) -> str | None:
        """Its value for a method of a run."""
        if self.key == "relative_l2" and "units" in run.summary:
            return None  # relative to normalised values that have an offset, it has no meaning
        return self.form(method.predictive.number(self.key))


QUANTITIES = (
    Quantity("RMSE", "rmse", show_number, "Typical error of the mean prediction. Lower is better."),
    Quantity("Relative L2 error", "relative_l2", show_share, "Size of the error over the size of the truth."),
    Quantity(
        "CRPS",
        "crps",
        show_number,
        "Error of the whole forecast, error bars included, in units of the output. Lower is better.",
    ),
    Quantity(
        "Mean epistemic std",
        "mean_epistemic_std",
        show_number,
        "How wide the error bars are on average, noise not counted.",
    ),
    Quantity(
        "Band holds the truth",
        "band_coverage",
        show_share,
        "How often the truth is inside the band. Should be near its level.",
    ),
    Quantity(
        "… with noise",
        "observation_band_coverage",
        show_share,
        "The same for the wider band that a measurement should be in.",
    ),
)
