"""The command's own part: which studies, where, and in which order."""

from pathlib import Path
from typing import cast, get_args

from rich.console import Console

from vihmc.errors import InputError, nearest
from vihmc.paper.reproduction.page import write_page, write_study
from vihmc.paper.reproduction.studies import STUDIES
from vihmc.paper.reproduction.study import Preset
from vihmc.paper.reproduction.workshop import Workshop

ALL = "all"


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
    workshop = Workshop(out / preset, data_dir=data_dir, console=console)
    for name in STUDIES if what == ALL else (what,):
        study = STUDIES[name]
        console.rule(name)
        runs = study.runs(chosen)
        sections = study.build(workshop.make(runs), chosen)
        write_study(page, name, sections, runs, chosen)
        write_page(page, tuple(STUDIES), chosen)
    return page
