"""The studies by name, and how one or all of them are made."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast, get_args

from rich.console import Console

from vihmc.errors import InputError, nearest
from vihmc.paper.reproduction import cost, figures, plans, robustness, rules, table1, threshold
from vihmc.paper.reproduction.page import write_page, write_study
from vihmc.paper.reproduction.runs import FinishedRun, RunFolder
from vihmc.paper.reproduction.study import Preset, Section, StudyRun

ALL = "all"


class Study(NamedTuple):
    """A part of the paper.

    Attributes:
        runs: What it needs.
        build: What it makes of them.
    """

    runs: Callable[[Preset], list[StudyRun]]
    build: Callable[[dict[str, FinishedRun], Preset], list[Section]]


STUDIES: dict[str, Study] = {
    "table1": Study(plans.table_1_runs, lambda runs, _: [table1.build(runs)]),
    "cost": Study(
        plans.operator_runs, lambda runs, preset: [cost.build(runs, step_search=plans.SIZES[preset].step_search)]
    ),
    "threshold": Study(plans.threshold_runs, lambda runs, preset: [threshold.build(runs), rules.build(runs, preset)]),
    "robustness": Study(plans.robustness_runs, lambda runs, preset: [robustness.build(runs, preset)]),
    "figures": Study(plans.figure_runs, lambda runs, _: [figures.build(runs)]),
}
"""In the order of the page."""


def reproduce(
    what: str,
    *,
    preset: str,
    out: Path,
    page: Path | None = None,
    data_dir: Path | None = None,
    console: Console,
) -> Path:
    """Make one study or all of them, and return the page.

    Args:
        what: Name of a study, or "all".
        preset: "paper" or "quick".
        out: Folder of all presets; runs are in ``out/PRESET/runs``.
        page: The page to write; ``out/PRESET/reproduction.md`` if not given.
        data_dir: Folder with the cone's files; without it the stand-in is used.
        console: Where progress goes.
    """
    if what not in (*STUDIES, ALL):
        known = (*STUDIES, ALL)
        raise InputError(f"`what` must be one of {', '.join(known)}, got '{what}'." + nearest(what, known))
    if preset not in get_args(Preset):
        raise InputError(f"`preset` must be one of {', '.join(get_args(Preset))}, got '{preset}'.")
    chosen = cast("Preset", preset)
    page = page or out / preset / "reproduction.md"
    if page.suffix != ".md":
        raise InputError(f"`page` must end in .md, got {page}.")
    folder = RunFolder(out / preset, data_dir=data_dir, console=console)
    for name in STUDIES if what == ALL else (what,):
        study = STUDIES[name]
        console.rule(name)
        runs = study.runs(chosen)
        sections = study.build(folder.finish(runs), chosen)
        write_study(page, name, sections, runs, chosen)
        write_page(page, tuple(STUDIES), chosen)
    return page
