"""Thresholds on Burgers: fewer kept parameters, at the paper's sampler, and a random subset of the smallest size."""

from typing import Any, NamedTuple

import numpy as np

from vihmc.paper.reproduction import plots
from vihmc.paper.reproduction.plans import THRESHOLDS
from vihmc.paper.reproduction.published import THRESHOLD_TABLE
from vihmc.paper.reproduction.study import Picture, Section, Table
from vihmc.paper.reproduction.workshop import Stored
from vihmc.report.formats import show_count, show_number, show_share

COLUMNS = ("", "kept", "acceptance", "MSE", "s per draw", "step at 80 %", "mean std", "95 % band holds")
EMPTY = "–"
RANDOM = "random"


def build(runs: dict[str, Stored]) -> Section:
    """The table of thresholds, the signs of its trends, and the uncertainty over x."""
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
            "VI-HMC at the paper's step and metric, with more and more parameters frozen; all on one fit, under the "
            "ELBO.",
            Table(COLUMNS, rows),
            "The trends of the paper, in our numbers:",
            Table(("trend", "holds"), said),
            f"At {names[0]} {numbers[names[0]]['num_selected']:,} parameters are kept here and "
            f"{THRESHOLD_TABLE[THRESHOLDS[0]].num_selected:,} in the paper, at {names[-1]} "
            f"{numbers[names[-1]]['num_selected']:,} and {THRESHOLD_TABLE[THRESHOLDS[-1]].num_selected:,}: with the ELBO the "
            "scores differ less from each other, so rows compare by threshold, not by count. Chains are short and "
            "start from q, so the widths are not those of converged chains; they compare with each other.",
            "What is worse about a random subset is its uncertainty, which is also what the paper says. The error of "
            "the mean is no measure of it: VI alone has the smallest here (MSE "
            f"{show_number(runs['burgers/threshold_0.9'].summary['predictive_vi']['mse'], 2)}), under a likelihood of "
            "std 1 chains move away from it, and those whose parameters hardly matter do so least. In the paper, "
            "too, fewer parameters make a smaller error.",
            Picture(
                "burgers_uncertainty", "Std of the predictions at t = 1 against x, mean over all validation functions."
            ),
            Picture(
                "burgers_thresholds",
                "One validation function at t = 1, that of the median error at 0.9: the mean with ± 3 std, for 0.9, "
                "0.3 and a random subset.",
            ),
        ],
        figures={
            "burgers_uncertainty": plots.uncertainty_over_x(fields),
            "burgers_thresholds": plots.one_function(fields, (names[0], names[-1], RANDOM)),
        },
        numbers={"rows": numbers, "trends": {sentence: trend._asdict() for sentence, trend in trends.items()}},
    )


class Trend(NamedTuple):
    """Whether something moves as the paper's does, from the first row to the last, and at every step between."""

    holds: bool
    at_every_step: bool

    def __str__(self) -> str:
        return "**no**" if not self.holds else "yes" if self.at_every_step else "yes, but not at every step"


def find_trends(rows: list[dict[str, float]], random: dict[str, float]) -> dict[str, Trend]:
    """Compare rows of a falling threshold, and of a random subset of the size of the last one."""

    def rises(key: str, sign: int = 1) -> Trend:
        values = sign * np.array([row[key] for row in rows])
        return Trend(bool(values[-1] > values[0]), bool(np.all(np.diff(values) > 0)))

    def is_worse(holds: bool) -> Trend:
        return Trend(holds, holds)

    last = rows[-1]
    return {
        "acceptance rises as the threshold falls": rises("acceptance"),
        "the step at 80 % rises as the threshold falls": rises("step_at_80_percent"),
        "the uncertainty shrinks as the threshold falls": rises("mean_std", sign=-1),
        "bands of a random subset of the same size hold the truth less often": is_worse(
            random["coverage"] < last["coverage"]
        ),
        "a random subset of the same size has a larger MSE": is_worse(random["mse"] > last["mse"]),
        "a random subset of the same size sees less of the uncertainty": is_worse(
            random["mean_std"] < last["mean_std"]
        ),
    }


def _numbers(runs: dict[str, Stored], name: str) -> dict[str, float]:
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


def _fields(stored: Stored) -> plots.Fields:
    """What is needed of the predictions: everything at the last time."""
    arrays = stored.predictions("locations", "targets", "VI-HMC.mean", "VI-HMC.epistemic_std")
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
    return _cells(THRESHOLD_TABLE[threshold]._asdict())
