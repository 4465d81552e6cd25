"""A finished run as it is read back from its directory, by whatever version it was written.

What was stored may be of an older version, edited by hand or damaged: a value is asked for by its place and kind, and
is None if it is not there, is of another kind, or is not finite.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vihmc.config.files import read_toml
from vihmc.errors import InputError
from vihmc.report.formats import clean
from vihmc.runs.evaluation import HMC, VI, VIHMC
from vihmc.runs.files import load_json

OPTIONAL_STAGES = {"reference": "reference.enabled", "leave_out": "leave_out.num_folds"}
"""Stages that may not have run, and the setting that says whether they did."""


class Tree:
    """Nested values from a file."""

    def __init__(self, value: Any) -> None:
        """Wrap what a JSON or TOML file held; anything but a table is an empty one."""
        self._table: dict[str, Any] = value if isinstance(value, dict) else {}

    def __bool__(self) -> bool:
        return bool(self._table)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def get(self, *keys: str) -> Any:
        """Whatever is at a place."""
        value: Any = self._table
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def branch(self, *keys: str) -> "Tree":
        """The table at a place."""
        return Tree(self.get(*keys))

    def number(self, *keys: str) -> float | None:
        """The finite number at a place."""
        return as_number(self.get(*keys))

    def text(self, *keys: str) -> str | None:
        """The words at a place."""
        value = self.get(*keys)
        return clean(value) if isinstance(value, str) and value.strip() else None

    def flag(self, *keys: str) -> bool | None:
        """The yes or no at a place."""
        value = self.get(*keys)
        return value if isinstance(value, bool) else None

    def entries(self, *keys: str) -> list[Any]:
        """The list at a place."""
        value = self.get(*keys)
        return value if isinstance(value, list) else []


class Method(NamedTuple):
    """What a run says about one of VI, VI-HMC and HMC on all parameters.

    Attributes:
        name: Of the method.
        predictive: Its accuracy.
        chains: Of its chains; empty for VI, like all below.
        diagnostics: Of its chains.
        verdict: Whether to trust them.
        seconds: Time of its own stage, if known.
    """

    name: str
    predictive: Tree
    chains: Tree
    diagnostics: Tree
    verdict: Tree
    seconds: float | None


class FinishedRun(NamedTuple):
    """What a run left behind.

    Attributes:
        path: Its directory.
        summary: Of ``summary.json`` (docs/summary.md).
        config: Of ``config.toml``; empty if that cannot be read.
    """

    path: Path
    summary: Tree
    config: Tree

    @property
    def problem(self) -> str:
        """Name of the problem."""
        return self.summary.text("problem") or self.config.text("problem", "name") or "unnamed problem"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by name, such as ``seed`` and ``hmc.num_chains``, but for those of stages that did not run."""
        settings: dict[str, Any] = {}
        for name in self.config:
            branch = self.config.branch(name)
            settings |= {f"{name}.{key}": branch.get(key) for key in branch} or {name: self.config.get(name)}
        for stage, switch in OPTIONAL_STAGES.items():
            if not settings.get(switch):
                settings = {
                    name: value
                    for name, value in settings.items()
                    if name == switch or not name.startswith(f"{stage}.")
                }
        return settings

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods that were run."""
        summary, full, nothing = self.summary, self.summary.branch("reference"), Tree(None)
        predictive, chains, diagnostics, verdict = map(summary.branch, ("predictive", "hmc", "diagnostics", "verdict"))
        vi_seconds, hmc_seconds, full_seconds = (summary.number("seconds", key) for key in ("vi", "hmc", "reference"))
        vi = Method(VI, summary.branch("predictive_vi"), nothing, nothing, nothing, vi_seconds)
        vihmc = Method(VIHMC, predictive, chains, diagnostics, verdict, hmc_seconds)
        predictive, diagnostics, verdict = map(full.branch, ("predictive", "diagnostics", "verdict"))
        hmc = Method(HMC, predictive, full, diagnostics, verdict, full_seconds)
        return tuple(method for method in (vi, vihmc, hmc) if method.predictive or method.chains)

    @property
    def selected_per_leaf(self) -> dict[str, tuple[float, float]]:
        """Number of kept and of all parameters in every array of the model."""
        leaves = self.summary.branch("selected_per_leaf")
        pairs = {name: [as_number(value) for value in leaves.entries(name)] for name in leaves}
        return {
            clean(name): (pair[0], pair[1])
            for name, pair in pairs.items()
            if len(pair) == 2 and pair[0] is not None and pair[1]
        }

    def figure_files(self) -> dict[str, Path]:
        """The files of its figures by name."""
        return {clean(file.stem): file for file in sorted((self.path / "figures").glob("*.png"))}


def read_run(path: Path) -> FinishedRun:
    """Read the directory of a finished run.

    Raises:
        InputError: If it has no summary, or one that cannot be read.
    """
    file = path / "summary.json"
    if not file.is_file():
        what = "has no summary.json" if path.is_dir() else "is no directory"
        raise InputError(f"`run` must be the directory of a finished run, got {clean(str(path))}, which {what}.")
    summary = load_json(file)
    try:
        config = read_toml(path / "config.toml")
    except (InputError, RecursionError):
        config = {}
    return FinishedRun(path, Tree(summary), Tree(config))


def as_number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
