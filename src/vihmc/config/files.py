"""Settings from TOML files and ``section.key=value`` overrides, and back to TOML.

TOML has no null: the word "none" stands for a setting that is left out on purpose.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from vihmc.config.settings import Settings
from vihmc.errors import InputError

_UNSET = "none"


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML file as a nested dict."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"`{path}` must be a readable file: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` must be valid TOML: {error}.") from None


def parse_override(text: str) -> dict[str, Any]:
    """Turn ``section.key=value`` into a nested dict; the value is read as TOML, else as a string."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError(f"`--set` must have the form section.key=value, got '{text}'.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    *sections, key = name.strip().split(".")
    override: dict[str, Any] = {key: parsed}
    for section in reversed(sections):
        override = {section: override}
    return override


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested dicts from left to right: the leaves of later ones replace those of earlier ones."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            inner = merged.get(key)
            merged[key] = merge(inner, value) if isinstance(value, Mapping) and isinstance(inner, Mapping) else value
    return merged


def with_unset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the word "none" by None."""
    sections = {key: with_unset(value) if isinstance(value, Mapping) else value for key, value in settings.items()}
    return {key: None if value == _UNSET else value for key, value in sections.items()}


def to_toml(settings: Settings) -> str:
    """Write settings as TOML that :func:`read_toml` and :func:`with_unset` turn back into the same settings."""
    return tomli_w.dumps(_written(settings.model_dump(mode="json")))


def toml_line(name: str, value: Any) -> str:
    """One setting as a line of TOML."""
    text = tomli_w.dumps({name: _UNSET if value is None else value}).strip()
    return text.replace("[\n    ", "[").replace(",\n]", "]").replace("\n    ", " ")


def _written(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _written(value) if isinstance(value, Mapping) else _UNSET if value is None else value
        for key, value in values.items()
    }
