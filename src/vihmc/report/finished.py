"""A finished run, read back from its directory: its summary, its settings and its figures."""

import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from vihmc.config.files import parse_override, read_toml
from vihmc.errors import InputError
from vihmc.report.formats import clean
from vihmc.report.schema import ChainsTable, Diagnostics, Predictive, Summary, VerdictTable, read_summary
from vihmc.runs.config import RunConfig, build_config, load_preset
from vihmc.runs.evaluation import HMC, VIHMC, first_stage_name

OPTIONAL_STAGES = {"reference": "reference.enabled", "leave_out": "leave_out.num_folds"}
"""Stages that may not have run, and the setting that says whether they did."""


class Method(NamedTuple):
    """Results of the first stage (VI or Laplace), VI-HMC or HMC on all parameters.

    Attributes:
        name: Of the method.
        predictive: Its accuracy.
        chains: Its chains; None for the first stage, like all below.
        diagnostics: Of its chains.
        verdict: Whether its chains can be trusted.
        seconds: Wall time of its own stage, if known.
    """

    name: str
    predictive: Predictive
    chains: ChainsTable | None
    diagnostics: Diagnostics | None
    verdict: VerdictTable | None
    seconds: float | None


class FinishedRun(NamedTuple):
    """A finished run.

    Attributes:
        path: Its directory.
        summary: Of ``summary.json``.
        config: Of ``config.toml``.
    """

    path: Path
    summary: Summary
    config: RunConfig

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods that were run."""
        found, full, seconds = self.summary, self.summary.reference, self.summary.seconds.get
        name = first_stage_name(is_laplace=found.first_stage == "laplace")
        vi = Method(name, found.predictive_vi, None, None, None, seconds("vi"))
        vihmc = Method(VIHMC, found.predictive, found.hmc, found.diagnostics, found.verdict, seconds("hmc"))
        if full is None:
            return vi, vihmc
        return vi, vihmc, Method(HMC, full.predictive, full, full.diagnostics, full.verdict, seconds("reference"))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by name, such as ``seed`` and ``hmc.num_chains``, without those of stages that did not run."""
        settings = _flatten(self.config)
        skipped = [stage for stage, switch in OPTIONAL_STAGES.items() if not settings[switch]]
        return {
            name: value
            for name, value in settings.items()
            if name.partition(".")[0] not in skipped or name in OPTIONAL_STAGES.values()
        }

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Settings that differ from the preset: the preset's value, and that of the run."""
        preset = _flatten(build_config(load_preset(self.config.problem.name, self.config.preset)))
        return {name: (preset.get(name), value) for name, value in self.settings.items() if preset.get(name) != value}

    @property
    def meanings(self) -> dict[str, str]:
        """What every setting means."""
        meanings: dict[str, str] = {}
        for name, field in type(self.config).model_fields.items():
            section = getattr(self.config, name)
            inner = type(section).model_fields if isinstance(section, BaseModel) else {}
            meanings |= {name: field.description or ""} | {
                f"{name}.{key}": f.description or "" for key, f in inner.items()
            }
        return meanings

    @property
    def command(self) -> str:
        """The command line that repeats the run from its preset."""
        words = ["vihmc", "run", self.config.problem.name, "--preset", self.config.preset]
        for name, (_, value) in self.changes.items():
            words += ["--set", f"{name}={_written('none' if value is None else value)}"]
        return clean(shlex.join(words))

    @property
    def figures(self) -> dict[str, Path]:
        """The files of its figures by name."""
        return {clean(file.stem): file for file in sorted((self.path / "figures").glob("*.png"))}


def read_run(path: Path) -> FinishedRun:
    """Read the directory of a finished run.

    Raises:
        InputError: If it is not the directory of a finished run of this version.
    """
    if not (path / "summary.json").is_file():
        what = "has no summary.json" if path.is_dir() else "is not a directory"
        raise InputError(f"`run` must be the directory of a finished run, got {clean(str(path))}, which {what}.")
    summary = read_summary(path / "summary.json")
    try:
        config = build_config(read_toml(path / "config.toml"))
        load_preset(config.problem.name, config.preset)
    except (InputError, RecursionError) as error:
        raise InputError(
            f"`run` must have the config.toml of a run of this version, got {clean(str(path))}: {clean(str(error))}"
        ) from None
    return FinishedRun(path, summary, config)


def _written(value: Any) -> str:
    """A value as ``--set`` reads it: words as they are, if they are not read as something else."""
    is_word = isinstance(value, str) and parse_override(f"name={value}") == {"name": value}
    return value if is_word else json.dumps(value, ensure_ascii=False)


def _flatten(config: RunConfig) -> dict[str, Any]:
    values = config.model_dump(mode="json")
    sections = {name: section for name, section in values.items() if isinstance(section, dict)}
    flat = {name: value for name, value in values.items() if name not in sections}
    return flat | {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
