"""A study: the runs it needs, and the sections of the page that it makes of them."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from matplotlib.figure import Figure

Preset = Literal["paper", "quick"]
EMPTY = "–"
"""A cell without a number."""
PAPERS_RULE = {"rule": "sensitivity"}
"""Selection of every run of a study unless its own settings say otherwise, whatever the preset."""


class StudyRun(NamedTuple):
    """A run that a study needs, in the words of the command that makes it.

    Attributes:
        name: Its directory, below that of all runs.
        problem: As in ``vihmc run PROBLEM``.
        preset: As in ``--preset``.
        settings: As in ``--set``.
        fit_from: Name of the run whose fit is used.
        ends_after_selection: Whether it has no chains: fit, scores and selection only.
        with_figures: Whether it has figures and a report of its own.
    """

    name: str
    problem: str
    preset: str = "default"
    settings: tuple[str, ...] = ()
    fit_from: str | None = None
    ends_after_selection: bool = False
    with_figures: bool = False

    @property
    def command(self) -> str:
        """The command that makes it, from the folder of all runs."""
        words = ["vihmc", "run", self.problem, "--preset", self.preset, "--out", self.name]
        given = {setting.partition("=")[0] for setting in self.settings}
        papers = [f"selection.{name}={value}" for name, value in PAPERS_RULE.items()]
        own = [] if self.preset == "paper" else [word for word in papers if word.partition("=")[0] not in given]
        for setting in (*own, *self.settings):
            words += ["--set", setting]
        if self.fit_from is not None:
            words += ["--fit-from", self.fit_from]
        return shlex.join(words) + ("  # fit, scores and selection only" if self.ends_after_selection else "")


class Table(NamedTuple):
    """Rows of cells under a heading; cells are text already."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """The table as Markdown: the first column is words, the others numbers."""
        ruler = ["---"] + ["---:"] * (len(self.columns) - 1)
        return "\n".join("| " + " | ".join(cells) + " |" for cells in (self.columns, ruler, *self.rows))


class Picture(NamedTuple):
    """A figure on the page: its name, and a caption."""

    name: str
    caption: str


@dataclass(frozen=True, eq=False)
class Section:
    """What a study found.

    Attributes:
        title: Heading.
        blocks: Words, tables and pictures, from top to bottom.
        figures: New figures by name.
        copied: Figures that runs drew, by the name they get here.
        numbers: Everything as plain numbers, for programs.
    """

    title: str
    blocks: list[str | Table | Picture]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    copied: Mapping[str, Path] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)


def show_range(values: Sequence[int]) -> str:
    """Smallest and largest of some counts, or the one that all are."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
