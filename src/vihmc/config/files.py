"""Settings from presets, TOML files and ``stage.key=value`` overrides, and back to TOML."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vihmc.config.method import Config
from vihmc.config.presets import PRESETS, known_problems, preset_text
from vihmc.config.settings import Settings
from vihmc.errors import InputError, nearest

_UNSET = "none"


def load_preset(problem: str, preset: str = "default") -> dict[str, Any]:
    """Return the settings of a shipped problem as a nested dict: its base, then the preset on top."""
    problems = known_problems()
    if problem not in problems:
        raise InputError(
            f"`problem` must be one of {', '.join(problems)} or a .toml file, got '{problem}'."
            + nearest(problem, problems)
        )
    if preset not in PRESETS:
        raise InputError(f"`preset` must be one of {', '.join(PRESETS)}, got '{preset}'." + nearest(preset, PRESETS))
    tables = _preset_tables(problem)
    return merge(merge(tables["base"], tables.get(preset, {})), {"preset": preset})


def _preset_tables(problem: str) -> dict[str, Any]:
    """All presets of a problem; one that is like another names it, and what it changes."""
    tables = tomllib.loads(preset_text(problem))
    return merge(_preset_tables(tables.pop("like")), tables) if "like" in tables else tables


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML file as a nested dict."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"`{path}` must be a readable file: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` must be valid TOML: {error}.") from None


def parse_override(text: str) -> dict[str, Any]:
    """Turn ``stage.key=value`` into a nested dict; the value is read as TOML, else as a string; `none` unsets."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError(f"`--set` must have the form stage.key=value, got '{text}'.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    *stages, key = name.strip().split(".")
    override: dict[str, Any] = {key: parsed}
    for stage in reversed(stages):
        override = {stage: override}
    return override


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the leaves of `change` on top."""
    merged = dict(base)
    for key, value in change.items():
        inner = merged.get(key)
        merged[key] = merge(inner, value) if isinstance(value, Mapping) and isinstance(inner, Mapping) else value
    return merged


def build_config(*layers: Mapping[str, Any], overrides: Iterable[str] = ()) -> Config:
    """Merge nested dicts from left to right, then ``stage.key=value`` overrides, and check the whole."""
    settings: dict[str, Any] = {}
    for layer in (*layers, *map(parse_override, overrides)):
        settings = merge(settings, layer)
    return Config(**_with_unset(settings))


def _with_unset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null, so a setting that is not given on purpose is the word `none`."""
    branches = {key: _with_unset(value) if isinstance(value, Mapping) else value for key, value in settings.items()}
    return {key: None if value == _UNSET else value for key, value in branches.items()}


def to_toml(settings: Settings) -> str:
    """Write settings as TOML that :func:`read_toml` and :func:`build_config` turn back into the same settings."""
    values = settings.model_dump(mode="json")
    scalars = {key: value for key, value in values.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    blocks = [toml_lines(scalars)] + [f"[{name}]\n{toml_lines(table)}" for name, table in tables.items()]
    return "\n\n".join(filter(None, blocks)) + "\n"


def toml_lines(values: Mapping[str, Any]) -> str:
    """Write settings without tables, one per line; what is not given is the word `none`."""
    written = {key: _UNSET if value is None else value for key, value in values.items()}
    return "\n".join(f"{key} = {_toml_value(value)}" for key, value in written.items())


def _toml_value(value: Any) -> str:
    # JSON writes strings, numbers, booleans and lists just as TOML does, but for one sign that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
