"""Settings as keyword arguments: every setting of the method by its own name, without its section."""

from typing import Any

import jax

from vihmc.config.method import MethodConfig, SamplerConfig, SelectionConfig, VIConfig
from vihmc.errors import InputError, nearest
from vihmc.types import Key

SECTIONS = {"hmc": SamplerConfig, "selection": SelectionConfig, "vi": VIConfig}


def known_settings() -> dict[str, str]:
    """The section of every setting by its name; empty for those of the method as a whole."""
    known = {"first_stage": "", "num_fits": ""}
    for section, settings in SECTIONS.items():
        known |= {name: section for name in settings.model_fields if name not in known}
    return known


def with_settings(config: MethodConfig | None, settings: dict[str, Any], arguments: tuple[str, ...]) -> MethodConfig:
    """Settings with some of them changed.

    Args:
        config: Where to start; the defaults if not given.
        settings: Those to change, by name.
        arguments: Names of the other arguments of the call, which may be what a wrong name was meant to be.

    Raises:
        InputError: If a name is not known, with the nearest one, or a value breaks its rule.
    """
    config, known = config or MethodConfig(), known_settings()
    if "num_draws" in settings and "budget" not in settings:
        settings = settings | {"budget": None}  # so many, whether converged or not
    changes: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name not in known:
            raise InputError(f"`{name}` is not a known setting or argument.{nearest(name, (*known, *arguments))}")
        changes.setdefault(known[name], {})[name] = value
    updates = changes.pop("", {})
    updates |= {section: getattr(config, section).model_copy(update=values) for section, values in changes.items()}
    return config.model_copy(update=updates) if updates else config


def as_seed(rng_key: Key | int) -> int:
    """The seed that a random key stands for; a number is a seed already."""
    if isinstance(rng_key, int):
        return rng_key
    return int(jax.random.bits(rng_key, dtype="uint32"))
