"""The page of all studies: Markdown, with figures and numbers in a folder beside it.

Each study is stored in a file of its own there, and the page is made of all stored studies, so studies can be made one
at a time. Remarks on the runs, in ``remarks.md`` there, are put on the page as well.
"""

import os
import platform
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from PIL import Image

from vihmc.paper.reproduction.study import Picture, Preset, Section, StudyRun, Table
from vihmc.runs.files import load_json, save_json, write_atomically

NUM_COLOURS = 96
REMARKS = "remarks.md"
PACKAGES = ("vihmc", "jax", "jaxlib", "blackjax", "optax", "arviz-stats", "numpy")
INTRODUCTIONS = {
    "paper": "The paper's tables and figures beside our numbers, with the paper's networks and data sizes, its "
    "samplers where a table is about them, and ours elsewhere. Made by `vihmc reproduce all --preset paper`; stored "
    "runs are not computed again.",
    "quick": "The paper's tables and figures on small networks with short chains, to see that all of it works. The "
    "numbers of `sine_small` compare with the paper's; those of the operators do not.",
}
DIFFERENCES = """\
- **KL direction.** The published code minimises KL(prior‖q) where the paper's equation has KL(q‖prior). The paper's
  tables are reproduced with `--objective published`; our other results use the ELBO. Most differences below follow:
  stds of q are ten times larger, fewer parameters are selected (the swapped term widens weights whose mean is far from
  zero, so a few weights have most of the variance), and VI is too wide where a mean-field fit is too narrow.
- **Burgers.** With a noise variance of 1 and 172,401 parameters both objectives prefer the prior to any fit: q
  collapses ([why](decisions/burgers-noise.md)). Our fit is of the ELBO with a noise std of 0.1; the samplers of the
  tables run on the paper's posterior, started from that fit. The initial conditions have the paper's distribution, but
  are other draws.
- **Starting points.** Our chains start from the fit. Published chains that start at random weights need their warm-up
  to get there, and HMC on all parameters of an operator does not get there.
- **Machine.** The paper's times are on a GPU, ours on two CPU cores.
"""


def write_study(page: Path, name: str, sections: list[Section], runs: list[StudyRun], preset: Preset) -> None:
    """Store the sections of a study beside the page."""
    folder = assets(page)
    folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for figure_name, figure in section.figures.items():
            figure.savefig(folder / f"{figure_name}.png", dpi=110)
        for figure_name, file in section.copied.items():
            shutil.copyfile(file, folder / f"{figure_name}.png")
        for figure_name in (*section.figures, *section.copied):
            _make_small(folder / f"{figure_name}.png")
    stored = {
        "preset": preset,
        "sections": [
            {"title": section.title, "markdown": _markdown(section, folder.name), "numbers": section.numbers}
            for section in sections
        ],
        "commands": [run.command for run in {run.name: run for run in runs}.values()],
        "versions": {package: version(package) for package in PACKAGES},
        "machine": _machine(),
    }
    save_json(folder / f"{name}.json", stored)


def write_page(page: Path, names: tuple[str, ...], preset: Preset) -> list[str]:
    """Write the page from all stored studies of this preset; return their names."""
    studies = {
        name: load_json(assets(page) / f"{name}.json") for name in names if (assets(page) / f"{name}.json").exists()
    }
    studies = {name: study for name, study in studies.items() if study["preset"] == preset}
    sections = [section for study in studies.values() for section in study["sections"]]
    parts = ["# The paper, reproduced", INTRODUCTIONS[preset]]
    parts.append("\n".join(f"- [{section['title']}](#{_anchor(section['title'])})" for section in sections))
    if preset == "paper":
        parts += ["## Where our results differ, and why", DIFFERENCES.strip()]
    if (remarks := assets(page) / REMARKS).exists():
        parts += ["## Remarks on these runs", remarks.read_text(encoding="utf-8").strip()]
    for section in sections:
        parts += [f"## {section['title']}", section["markdown"]]
    parts += ["## Commands and versions", _provenance(studies)]
    write_atomically(page, "\n\n".join(parts) + "\n")
    return list(studies)


def _make_small(file: Path) -> None:
    """Reduce the colours of a figure to what lines and text need: a third of the size, for a repository."""
    with Image.open(file) as image:
        image.convert("RGB").quantize(NUM_COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


def assets(page: Path) -> Path:
    """The folder of figures and numbers beside a page."""
    return page.with_suffix("")


def _markdown(section: Section, folder: str) -> str:
    return "\n\n".join(_block(block, folder) for block in section.blocks)


def _block(block: str | Table | Picture, folder: str) -> str:
    if isinstance(block, Table):
        return block.markdown()
    if isinstance(block, Picture):
        plain = block.caption.replace("`", "").replace("|", "")
        return f"![{plain}]({folder}/{block.name}.png)\n\n*{block.caption}*"
    return block


def _anchor(title: str) -> str:
    return "".join(sign for sign in title.lower() if sign.isalnum() or sign in " -_").replace(" ", "-")


def _provenance(studies: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, study in studies.items():
        versions = ", ".join(f"{package} {number}" for package, number in study["versions"].items())
        lines.append(f"**{name}**: {study['machine']}; {versions}. Runs, in order:")
        lines.append("```sh\n" + "\n".join(_shortened(study["commands"])) + "\n```")
    lines.append(
        "The seed is 0 where no `--set seed=` is given. The data have a seed of their own, always that of the preset. "
        "All numbers of this page are in the .json files beside its figures."
    )
    return "\n\n".join(lines)


def _shortened(commands: list[str], most: int = 24) -> list[str]:
    """All commands, or the first and the last of many."""
    if len(commands) <= most:
        return commands
    rest = f"# … {len(commands) - most} more that differ in seed, rule, threshold, noise or data: see the .json"
    return [*commands[: most - 2], rest, *commands[-2:]]


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {platform.machine()}, Python {platform.python_version()}"
