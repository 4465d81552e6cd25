"""The part of a report on how the run was made: settings, costs, and how to repeat it."""

import json
import shlex
from typing import Any

from pydantic import BaseModel

from vihmc.config.files import parse_override
from vihmc.errors import InputError
from vihmc.report.finished import FinishedRun
from vihmc.report.formats import clean, say, sentences, show_gigabytes, show_seconds, show_setting, show_share
from vihmc.report.markup import Markup, join
from vihmc.report.page import Section, bar, command, details, explained, paragraph, section, table
from vihmc.report.report_results import total_seconds
from vihmc.runs.config import RunConfig, build_config, load_preset

SETTINGS, COSTS, REPRODUCE = "Settings", "Costs", "How to reproduce"
STAGES = {
    "vi": "Fit of all parameters (VI)",
    "sensitivity": "Sensitivity of every parameter",
    "frozen": "Modes of moved data, for the frozen parameters",
    "hmc": "Chains on the kept parameters (HMC)",
    "fits": "More fits to start from",
    "reference": "Chains on all parameters (full HMC)",
    "prediction": "Predictions",
    "leave_out": "Runs with inputs left out",
}


def describe_settings(run: FinishedRun) -> Section:
    """The section on settings: those that differ from the preset, and all of them."""
    settings = run.settings
    if not settings:
        return section(
            SETTINGS, paragraph("The settings of this run cannot be read: config.toml is missing or damaged.")
        )
    meanings = describe_all_settings(run)
    rows = [(explained(clean(name), meanings.get(name, "")), show_setting(value)) for name, value in settings.items()]
    everything = table(("setting", "value"), rows, caption="Every setting", words=(1,))
    return section(
        SETTINGS, _show_changes(run, meanings), details(f"All {len(rows)} settings that had an effect", everything)
    )


def _show_changes(run: FinishedRun, meanings: dict[str, str]) -> Markup | None:
    changes, preset = find_changes(run), run.summary.text("preset") or run.config.text("preset")
    if changes is None:
        return paragraph("These are settings of another version, so they are not compared with its presets.")
    if not changes:
        return paragraph(f"All settings are those of the preset “{preset}”.")
    rows = [
        (explained(name, meanings.get(name, "")), show_setting(now), show_setting(before))
        for name, (before, now) in changes.items()
    ]
    return join(
        paragraph(f"All settings are those of the preset “{preset}”, but for these."),
        table(("setting", "here", "preset"), rows, caption="What was changed", words=(1, 2)),
    )


def find_changes(run: FinishedRun) -> dict[str, tuple[Any, Any]] | None:
    """Settings with an effect that differ from the preset: (preset's, ours); None if either is of another version."""
    try:
        ours = _build(run)
        preset = build_config(load_preset(ours.problem.name, ours.preset))
    except (InputError, RecursionError):
        return None
    before, now = _flatten(preset), _flatten(ours)
    used = run.settings
    return {name: (before.get(name), now[name]) for name in now if name in used and before.get(name) != now[name]}


def describe_all_settings(run: FinishedRun) -> dict[str, str]:
    """What every setting means; empty if they are not of this version."""
    try:
        config = _build(run)
    except (InputError, RecursionError):
        return {}
    meanings: dict[str, str] = {}
    for name, field in type(config).model_fields.items():
        branch = getattr(config, name)
        inner = type(branch).model_fields if isinstance(branch, BaseModel) else {}
        meanings |= {f"{name}.{key}": child.description or "" for key, child in inner.items()}
        meanings[name] = field.description or ""
    return meanings


def describe_problem(run: FinishedRun) -> str:
    """What the problem is, in a sentence; empty if it is not known."""
    try:
        return (type(_build(run).problem).__doc__ or "").strip().split("\n")[0]
    except (InputError, RecursionError):
        return ""


def describe_costs(run: FinishedRun) -> Section:
    """The section on time and memory."""
    seconds, memory = run.summary.branch("seconds"), run.summary.branch("peak_memory_gb_after")
    total = total_seconds(run)
    rows = []
    for stage in dict.fromkeys([*seconds, *memory]):
        spent = seconds.number(stage)
        share = None if spent is None or not total else spent / total
        shown = None if share is None else join(show_share(share), " ", bar(share))
        rows.append((STAGES.get(stage, clean(stage)), show_seconds(spent), shown, show_gigabytes(memory.number(stage))))
    if not rows:
        return section(COSTS, paragraph("This run did not record its costs."))
    peak = show_gigabytes(run.summary.number("peak_memory_gb"))
    rows.append(("All together", show_seconds(total), None, peak))
    return section(
        COSTS,
        paragraph("Wall time of each stage, compilation included, and the most memory that was held until its end."),
        table(("stage", "time", "share", "memory"), rows, caption="Time and memory"),
    )


def describe_repetition(run: FinishedRun) -> Section:
    """The section with the commands that repeat the run."""
    versions, summary = run.summary.branch("versions"), run.summary
    rows = [(clean(name), versions.text(name)) for name in versions]
    line = find_command(run)
    from_fit = say("The fit was taken from another run: add --fit-from {} to use it again.", summary.text("fit_from"))
    ran_on = say("It ran on {}.", summary.text("backend"))
    seed = show_setting(run.config.get("seed") if "seed" in run.config else summary.get("seed"))
    return section(
        REPRODUCE,
        paragraph("In the directory of this run, all settings are in one file, the seed among them:"),
        command("vihmc run config.toml"),
        join(paragraph("Or from anywhere:"), command(line)) if line else None,
        paragraph("To change a setting, add it to either command, such as --set hmc.num_draws=2000."),
        paragraph(
            sentences(
                f"The seed is {seed}.",
                ran_on,
                from_fit,
                "The same versions on the same kind of machine give the same draws.",
            )
        ),
        table(("package", "version"), rows, caption="What it was run with") if rows else None,
    )


def find_command(run: FinishedRun) -> str | None:
    """The command line that repeats the run from its preset; None if its settings are of another version."""
    changes = find_changes(run)
    if changes is None:
        return None
    config = _build(run)
    words = ["vihmc", "run", config.problem.name, "--preset", config.preset]
    for name, (_, value) in changes.items():
        words += ["--set", f"{name}={_written('none' if value is None else value)}"]
    return clean(shlex.join(words))


def _written(value: Any) -> str:
    """A value as ``--set`` reads it: words as they are, if they are not read as something else."""
    is_word = isinstance(value, str) and parse_override(f"name={value}") == {"name": value}
    return value if is_word else json.dumps(value, ensure_ascii=False)


def _build(run: FinishedRun) -> RunConfig:
    if not run.config:
        raise InputError(f"`run` must have its settings, got {run.path} without.")
    return build_config({name: run.config.get(name) for name in run.config})


def _flatten(config: RunConfig) -> dict[str, Any]:
    values = config.model_dump(mode="json")
    flat = {key: value for key, value in values.items() if not isinstance(value, dict)}
    for stage, table_of_stage in values.items():
        if isinstance(table_of_stage, dict):
            flat |= {f"{stage}.{key}": value for key, value in table_of_stage.items()}
    return flat
