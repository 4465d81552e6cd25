"""The studies by name: the runs that each needs, and the sections that it makes of them."""

from collections.abc import Callable
from typing import NamedTuple

from vihmc.paper.reproduction import cost, gallery, plans, robustness, rules, table1, threshold
from vihmc.paper.reproduction.study import Preset, Section, StudyRun
from vihmc.paper.reproduction.workshop import Stored

Runs = dict[str, Stored]


class Study(NamedTuple):
    """A part of the paper.

    Attributes:
        runs: What it needs.
        build: What it makes of them.
    """

    runs: Callable[[Preset], list[StudyRun]]
    build: Callable[[Runs, Preset], list[Section]]


def _operator_runs(preset: Preset) -> list[StudyRun]:
    at_90_percent = [run for run in plans.burgers_runs(preset) if run.name.split("_")[-1] in ("burgers/default", "0.9")]
    return [*at_90_percent, *plans.cone_runs(preset)]


def _threshold_runs(preset: Preset) -> list[StudyRun]:
    truth = [plans.sine_large_runs(preset)[0], plans.cone_default(preset)]
    compared = [run for problem in ("sine_large", "cone") for run in plans.rule_runs(problem, preset)]
    return [*plans.burgers_runs(preset), *truth, *compared]


def _figure_runs(preset: Preset) -> list[StudyRun]:
    return [*plans.table_1_runs(preset), *plans.sine_large_runs(preset), *_operator_runs(preset)]


STUDIES: dict[str, Study] = {
    "table1": Study(plans.table_1_runs, lambda runs, _: [table1.build(runs)]),
    "cost": Study(_operator_runs, lambda runs, preset: [cost.build(runs, step_search=plans.SIZES[preset].step_search)]),
    "threshold": Study(_threshold_runs, lambda runs, preset: [threshold.build(runs), rules.build(runs, preset)]),
    "robustness": Study(plans.robustness_runs, lambda runs, preset: [robustness.build(runs, preset)]),
    "figures": Study(_figure_runs, lambda runs, _: [gallery.build(runs)]),
}
"""In the order of the page."""
