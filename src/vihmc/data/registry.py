"""The kinds of problem that can be run by name: models for your own data, and those that packages add.

A package adds kinds by an entry point of the group ``vihmc.problems`` that names a dict of :class:`ProblemKind`, as the
paper's experiments do. Nothing else knows a problem by its name.
"""

import tomllib
from functools import cache
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from vihmc.config.files import merge
from vihmc.config.settings import ProblemSettings
from vihmc.data.settings import DeepONetConfig, FNOConfig, MLPConfig, PythonConfig
from vihmc.errors import InputError, nearest

if TYPE_CHECKING:
    from vihmc.data.problem import Problem

GROUP = "vihmc.problems"
PRESETS = ("paper", "default", "quick")


class ProblemKind(NamedTuple):
    """A kind of problem.

    Attributes:
        settings: The class of its settings, which has a `name`.
        build: ``module:function`` that builds the problem from its settings; imported when it is needed.
        presets: The package with its TOML file of presets, ``NAME.toml``.
        resolve: ``module:function`` that returns its settings as :class:`Resolved`, independent of the machine; if not
            given, paths of data files are made absolute.
    """

    settings: type[ProblemSettings]
    build: str
    presets: str
    resolve: str | None = None


class Resolved(NamedTuple):
    """Settings that are independent of the machine, and a sentence for the user if they differ from what was asked."""

    settings: Any
    notice: str | None = None


OWN_DATA = {
    "mlp": ProblemKind(MLPConfig, "vihmc.data.mlp:build", "vihmc.data.presets"),
    "deeponet": ProblemKind(DeepONetConfig, "vihmc.data.deeponet:build", "vihmc.data.presets"),
    "fno": ProblemKind(FNOConfig, "vihmc.data.fno:build", "vihmc.data.presets"),
    "python": ProblemKind(PythonConfig, "vihmc.data.saved:build", "vihmc.data.presets"),
}


@cache
def known_kinds() -> dict[str, ProblemKind]:
    """All kinds by name."""
    kinds = dict(OWN_DATA)
    for point in entry_points(group=GROUP):
        kinds |= point.load()
    return kinds


def kind_of(name: str) -> ProblemKind:
    """The kind of a name.

    Raises:
        InputError: If there is none.
    """
    names = sorted(known_kinds())
    if name not in names:
        raise InputError(
            f"`problem` must be one of {', '.join(names)} or a .toml file, got '{name}'.{nearest(name, names)}"
        )
    return known_kinds()[name]


def build_problem(config: Any) -> "Problem":
    """Build the problem that settings describe."""
    return resolve_name(kind_of(config.name).build)(config)


def resolve_problem(config: Any) -> Any:
    """The settings of :func:`resolve`."""
    return resolve(config).settings


def resolve(config: Any) -> Resolved:
    """Make settings independent of the machine: absolute paths, and the data that are available."""
    kind = kind_of(config.name)
    if kind.resolve is not None:
        return resolve_name(kind.resolve)(config)
    paths = {name: getattr(config, name, None) for name in ("data_file", "validation_file")}
    full = {name: str(Path(path).absolute()) for name, path in paths.items() if path is not None}
    return Resolved(config.model_copy(update=full) if full else config)


def preset_settings(name: str, preset: str = "default") -> dict[str, Any]:
    """The settings of a preset as a nested dict: the base of the problem, then the preset on top."""
    kind_of(name)
    if preset not in PRESETS:
        raise InputError(f"`preset` must be one of {', '.join(PRESETS)}, got '{preset}'.{nearest(preset, PRESETS)}")
    tables = _preset_tables(name)
    return merge(tables["base"], tables.get(preset, {}), {"preset": preset})


def _preset_tables(name: str) -> dict[str, Any]:
    """All presets of a problem; one that is like another names it, and what it changes."""
    text = resources.files(kind_of(name).presets).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return merge(_preset_tables(tables.pop("like")), tables) if "like" in tables else tables
