"""Thresholds on Burgers: fewer selected parameters under the paper's sampler, and a random set of the smallest size."""

from typing import Any, NamedTuple

import numpy as np

from vihmc.paper.reproduction import plots
from vihmc.paper.reproduction.plans import THRESHOLDS
from vihmc.paper.reproduction.runs import FinishedRun
from vihmc.paper.reproduction.study import EMPTY, Picture, Section, Table
from vihmc.report.formats import show_count, show_number, show_share

COLUMNS = ("", "selected", "acceptance", "MSE", "s per draw", "step size at 80 %", "mean std", "95 % band coverage")
RANDOM = "random"


class ThresholdRow(NamedTuple):
    """A row of the paper's table of thresholds."""

    num_selected: int
    acceptance: float
    mse: float
    seconds_per_draw: float
    step_at_80_percent: float


PUBLISHED = {
    0.9: ThresholdRow(28_214, 0.87, 2.9e-4, 6.27, 5.0e-4),
    0.75: ThresholdRow(12_944, 0.89, 2.9e-4, 6.37, 6.9e-4),
    0.5: ThresholdRow(4_007, 0.92, 2.7e-4, 6.21, 7.7e-4),
    0.3: ThresholdRow(1_279, 0.94, 2.0e-4, 6.05, 8.9e-4),
}
"""The paper's table."""


def build(runs: dict[str, FinishedRun]) -> Section:
    """The table of thresholds, whether its trends are those of the paper, and the uncertainty over x."""
    names = [f"{threshold:g}" for threshold in THRESHOLDS if f"burgers/threshold_{threshold:g}" in runs]
    numbers = {name: _numbers(runs, name) for name in (*names, RANDOM)}
    rows: list[tuple[str, ...]] = []
    for name, values in numbers.items():
        if name != RANDOM:
            rows.append((f"{name}, paper", *_published_cells(float(name))))
        rows.append((f"{name}, ours" if name != RANDOM else f"random, size of {names[-1]}, ours", *_cells(values)))
    trends = find_trends([numbers[name] for name in names], numbers[RANDOM])
    said = [(sentence, str(trend)) for sentence, trend in trends.items()]
    fields = {name: _fields(runs[f"burgers/threshold_{name}"]) for name in (*names, RANDOM)}
    return Section(
        "Thresholds on Burgers",
        [
            "VI-HMC with the paper's step size and metric, and more and more frozen parameters; all rows use one fit, "
            "under the ELBO.",
            Table(COLUMNS, rows),
            "Trends of the paper, and whether our numbers show them:",
            Table(("trend", "in our numbers"), said),
            f"At {names[0]} we select {numbers[names[0]]['num_selected']:,} parameters and the paper "
            f"{PUBLISHED[THRESHOLDS[0]].num_selected:,}, at {names[-1]} {numbers[names[-1]]['num_selected']:,} and "
            f"{PUBLISHED[THRESHOLDS[-1]].num_selected:,}. Scores vary less under the ELBO, so rows compare by "
            "threshold, not by count. The chains are short and start from q: their stds are not converged, and "
            "compare with each other only.",
            "A random set is worse in its uncertainty, as the paper says, not in its error. VI has the smallest MSE "
            f"here ({show_number(runs['burgers/threshold_0.9'].summary['predictive_vi']['mse'], 2)}): with a noise std "
            "of 1 the chains move away from the fit, and those on parameters that hardly affect the prediction move "
            "predictions least. In the paper, too, fewer selected parameters give a smaller error.",
            Picture(
                "burgers_uncertainty", "Std of the predictions at t = 1 against x, mean over all validation functions."
            ),
            Picture(
                "burgers_thresholds",
                "The validation function with the median error at threshold 0.9, at t = 1: mean ± 3 std for thresholds "
                "0.9 and 0.3 and for a random set.",
            ),
        ],
        figures={
            "burgers_uncertainty": plots.uncertainty_over_x(fields),
            "burgers_thresholds": plots.one_function(fields, (names[0], names[-1], RANDOM)),
        },
        numbers={"rows": numbers, "trends": {sentence: trend._asdict() for sentence, trend in trends.items()}},
    )


class Trend(NamedTuple):
    """Whether a column has the paper's trend from the first row to the last, and between all neighbours."""

    holds: bool
    between_neighbours: bool

    def __str__(self) -> str:
        return (
            "**no**" if not self.holds else "yes" if self.between_neighbours else "yes, but not between all neighbours"
        )


def find_trends(rows: list[dict[str, float]], random: dict[str, float]) -> dict[str, Trend]:
    """Compare rows of a falling threshold, and a random set of the size of the last one."""

    def rises(key: str, sign: int = 1) -> Trend:
        values = sign * np.array([row[key] for row in rows])
        return Trend(bool(values[-1] > values[0]), bool(np.all(np.diff(values) > 0)))

    def is_worse(holds: bool) -> Trend:
        return Trend(holds, holds)

    last = rows[-1]
    return {
        "acceptance rises as the threshold falls": rises("acceptance"),
        "the step size at 80 % rises as the threshold falls": rises("step_at_80_percent"),
        "the uncertainty shrinks as the threshold falls": rises("mean_std", sign=-1),
        "95 % bands of a random set of the same size have less coverage": is_worse(
            random["coverage"] < last["coverage"]
        ),
        "a random set of the same size has a larger MSE": is_worse(random["mse"] > last["mse"]),
        "a random set of the same size has a smaller std": is_worse(random["mean_std"] < last["mean_std"]),
    }


def _numbers(runs: dict[str, FinishedRun], name: str) -> dict[str, float]:
    at_step, search = (runs[f"burgers/{kind}_{name}"].summary for kind in ("threshold", "step"))
    return {
        "num_selected": at_step["num_selected"],
        "acceptance": at_step["hmc"]["acceptance"],
        "mse": at_step["predictive"]["mse"],
        "coverage": at_step["predictive"]["band_coverage"],
        "relative_l2": at_step["predictive"]["relative_l2"],
        "seconds_per_draw": at_step["hmc"]["seconds_per_draw"],
        "step_at_80_percent": search["hmc"]["step_size"],
        "mean_std": at_step["predictive"]["mean_epistemic_std"],
    }


def _fields(run: FinishedRun) -> plots.Fields:
    """The predictions at the last time."""
    arrays = run.predictions("locations", "targets", "VI-HMC.mean", "VI-HMC.epistemic_std")
    times, positions = arrays["locations"].T
    at_the_end = times == times.max()
    mean, std, truth = (arrays[key][:, at_the_end] for key in ("VI-HMC.mean", "VI-HMC.epistemic_std", "targets"))
    return plots.Fields(positions[at_the_end], mean, std, truth)


def _cells(values: dict[str, Any]) -> list[str]:
    return [
        show_count(values["num_selected"]) or EMPTY,
        show_share(values["acceptance"]) or EMPTY,
        *(
            show_number(values.get(key), 2) or EMPTY
            for key in ("mse", "seconds_per_draw", "step_at_80_percent", "mean_std")
        ),
        show_share(values.get("coverage")) or EMPTY,
    ]


def _published_cells(threshold: float) -> list[str]:
    return _cells(PUBLISHED[threshold]._asdict())
