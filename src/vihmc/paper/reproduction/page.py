"""The page of all studies: Markdown, with figures and numbers in a folder beside it.

Each study leaves a file of its own there; the page is made of all that are there, so that one study can be done at a
time. Words of one's own about the runs, in ``remarks.md`` there, are put on the page as well.
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
    "paper": "The paper's tables and figures, made anew, beside the published numbers: its networks and data sizes, "
    "its samplers where a table is about them, and ours where they are better. Made by `vihmc reproduce all --preset "
    "paper`; what is stored is not computed again.",
    "quick": "The paper's tables and figures on small networks and short chains, to see that all of it works. The "
    "numbers of the operators do not compare with the paper's; those of `sine_small` do.",
}
DIFFERENCES = """\
- **The divergence.** The published code adds KL(prior‖q) where the paper's equation has KL(q‖prior). Its tables are
  reproduced with `--objective published`; everything of our own uses the ELBO. Most differences below come from this:
  stds of q that are ten times larger, fewer kept parameters (the swapped term widens a weight with its own mean, so few
  hold the variance), and VI that is too wide where a mean-field fit is too narrow.
- **Burgers.** With a likelihood variance of 1 and 172,401 parameters either objective prefers the prior to any fit: the
  posterior collapses ([why](decisions/burgers-noise.md)). The fit is of the ELBO with a noise std of 0.1; the samplers
  of the tables run on the paper's posterior from there. The initial conditions are of the same kind as the paper's, not
  the same.
- **Starts.** Our chains start from the fit. Where the published ones start at random weights they need their burn-in to
  get there, and full HMC on an operator does not.
- **Machine.** The paper's seconds are of a GPU, ours of two cores of a processor.
"""


def write_study(page: Path, name: str, sections: list[Section], runs: list[StudyRun], preset: Preset) -> None:
    """Store what a study found beside the page."""
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
    """Put together the studies that are there, of this preset; return their names."""
    studies = {
        name: load_json(assets(page) / f"{name}.json") for name in names if (assets(page) / f"{name}.json").exists()
    }
    studies = {name: study for name, study in studies.items() if study["preset"] == preset}
    sections = [section for study in studies.values() for section in study["sections"]]
    parts = ["# The paper, reproduced", INTRODUCTIONS[preset]]
    parts.append("\n".join(f"- [{section['title']}](#{_anchor(section['title'])})" for section in sections))
    if preset == "paper":
        parts += ["## Where ours differ, and why", DIFFERENCES.strip()]
    if (remarks := assets(page) / REMARKS).exists():
        parts += ["## Remarks on these runs", remarks.read_text(encoding="utf-8").strip()]
    for section in sections:
        parts += [f"## {section['title']}", section["markdown"]]
    parts += ["## How it was made", _provenance(studies)]
    write_atomically(page, "\n\n".join(parts) + "\n")
    return list(studies)


def _make_small(file: Path) -> None:
    """Write a figure with as many colours as lines and text need: a third of the size, for a repository."""
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
    kept = "".join(sign for sign in title.lower() if sign.isalnum() or sign in " -_")
    return kept.replace(" ", "-")


def _provenance(studies: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, study in studies.items():
        versions = ", ".join(f"{package} {number}" for package, number in study["versions"].items())
        lines.append(f"**{name}**: {study['machine']}; {versions}. Runs, in their order:")
        lines.append("```sh\n" + "\n".join(_shortened(study["commands"])) + "\n```")
    lines.append(
        "Seeds are 0 where no `--set seed=` is given; the data have seeds of their own, which are always the "
        "presets'. All numbers of this page are in the .json files beside its figures."
    )
    return "\n\n".join(lines)


def _shortened(commands: list[str], most: int = 24) -> list[str]:
    """All commands, or the first and the last of many alike."""
    if len(commands) <= most:
        return commands
    rest = f"# … {len(commands) - most} more, alike but for seed, rule, threshold, noise or points: see the .json"
    return [*commands[: most - 2], rest, *commands[-2:]]


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {platform.machine()}, Python {platform.python_version()}"
