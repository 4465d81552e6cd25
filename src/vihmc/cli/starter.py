"""A commented TOML file to start from, for a run on your own data.

Names, defaults and descriptions are those of the settings themselves (:mod:`vihmc.config.method` and the presets).
"""

import textwrap
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from vihmc.config.files import toml_line
from vihmc.config.settings import Settings
from vihmc.data.columns import ARRAY_NAMES, Choice, choose_names
from vihmc.data.data_file import DataFile, read_data_file
from vihmc.data.fno import find_grid
from vihmc.data.operator_data import OperatorNames, fit_together, load_operator, read_operator_file
from vihmc.errors import InputError
from vihmc.runs.config import RunConfig, build_config, load_preset

Kind = Literal["mlp", "deeponet", "fno"]

COMMON = {
    "vi": ("map_steps", "num_steps", "learning_rate", "batch_size"),
    "selection": ("rule", "threshold", "target_inputs"),
    "hmc": ("kernel", "num_chains", "num_warmup", "num_draws", "max_integration_steps", "frozen"),
    "reference": ("enabled",),
    "prediction": ("quantiles",),
}
"""Settings of the method that are changed most often, by section."""
EXAMPLES = {"mlp": "data.csv", "deeponet": "data.npz", "fno": "data.npz"}
WIDTH = 110


class Found(NamedTuple):
    """Settings that a data file determines.

    Attributes:
        settings: Their values.
        remark: A sentence about the contents of the file.
    """

    settings: dict[str, Any]
    remark: str | None


class Starter(NamedTuple):
    """A file for ``vihmc run``, and why it has this kind of model, if that was chosen by the data."""

    text: str
    remark: str | None


def choose_starter(kind: Kind | None, data_file: Path | None = None) -> Starter:
    """Write a file for ``vihmc run``; without a kind, of the one that suits the data."""
    if kind is not None or data_file is None:
        return Starter(starter_toml(kind or "mlp", data_file), None)
    chosen, remark = choose_kind(data_file)
    return Starter(starter_toml(chosen, data_file), remark)


class ChosenKind(NamedTuple):
    """A kind of model, and a sentence about why, if there was a choice."""

    kind: Kind
    remark: str | None


def choose_kind(path: Path) -> ChosenKind:
    """The kind of model for a file: an operator for functions, locations and fields, else a regression."""
    if path.suffix.lower() not in (".npz", ".mat"):
        return ChosenKind("mlp", None)
    try:
        file = read_operator_file(path, "data")
        data = load_operator(file, _find_operator(file))
    except InputError:
        return ChosenKind("mlp", None)  # whose own errors are about what was read
    try:
        names = tuple(f"coordinate {index}" for index in range(data.locations.shape[1]))
        grid, axes = find_grid(data.locations, data.functions.shape[1], names)
    except InputError as error:
        why = (
            "they are no grid that an FNO could use" if "regular grid" in str(error) else "the functions are not on it"
        )
        return ChosenKind("deeponet", f"The kind is 'deeponet', from the locations: {why}.")
    shape = " × ".join(map(str, grid.shape))
    along = "all of its coordinates" if len(axes) == len(grid.shape) else ", ".join(names[axis] for axis in axes)
    return ChosenKind(
        "fno", f"The kind is 'fno': the locations are a regular grid of {shape}, with functions along {along}."
    )


def starter_toml(kind: Kind, data_file: Path | None = None) -> str:
    """Write a file for ``vihmc run``: the settings that are changed most often, each with its meaning and default.

    Args:
        kind: The kind of model.
        data_file: Data to run on; the names of their columns or arrays are filled in.

    Raises:
        InputError: If the file cannot be read, or lacks what a model of this kind needs.
    """
    config = build_config(load_preset(kind))
    found = Found({"data_file": EXAMPLES[kind]}, None) if data_file is None else _look_up(kind, data_file)
    blocks = [
        _comment(
            "Settings of a run on your own data. Run it with: vihmc run FILE. A line such as #seed = 0 is a default; "
            'remove the # to change it. The word "none" means that a value is not given.'
        ),
        _lines(config, ("seed",), given={}),
        _problem(config.problem, found),
        *(_stage(config, stage, names) for stage, names in COMMON.items()),
        _others(config),
    ]
    return "\n\n".join(blocks) + "\n"


def _problem(problem: Any, found: Found) -> str:
    given = {"name": problem.name, **found.settings}
    names = dict.fromkeys((*given, *type(problem).model_fields))
    remark = [] if found.remark is None else [_comment(found.remark)]
    return "\n".join([*remark, "[problem]", _lines(problem, names, given=given)])


def _stage(config: RunConfig, stage: str, names: Iterable[str]) -> str:
    settings = getattr(config, stage)
    rest = [name for name in type(settings).model_fields if name not in names]
    also = _comment(f"Further settings: {', '.join(rest)}.")
    return "\n".join([_comment(type(settings).__doc__ or ""), f"[{stage}]", _lines(settings, names, given={}), also])


def _others(config: RunConfig) -> str:
    fields = {name: field for name, field in type(config).model_fields.items() if name not in ("problem", *COMMON)}
    stages = [name for name in fields if isinstance(getattr(config, name), Settings)]
    plain = [name for name in fields if name not in (*stages, "seed", "preset")]
    return _comment(
        f"Further settings at the top, beside `seed`: {', '.join(plain)}. Further sections: {', '.join(stages)}. "
        "The config.toml in a run directory lists all settings with their values."
    )


def _lines(settings: Settings, names: Iterable[str], *, given: dict[str, Any]) -> str:
    """A comment and a line per setting: given ones are set, the others are comments with their default."""
    values = settings.model_dump(mode="json")
    described = {name: type(settings).model_fields[name].description for name in names}
    return "\n".join(
        f"{_comment(description or '')}\n"
        + ("" if name in given else "#")
        + toml_line(name, given.get(name, values.get(name)))
        for name, description in described.items()
    )


def _comment(text: str) -> str:
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return textwrap.fill(
        " ".join(printable.split()), WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )


def _look_up(kind: Kind, path: Path) -> Found:
    file = read_data_file(path, "data") if kind == "mlp" else read_operator_file(path, "data")
    settings = {"data_file": str(path)}
    if file.is_table:
        remark = f"{path} has {len(next(iter(file.arrays.values())))} rows and the columns {', '.join(file.arrays)}."
    else:
        remark = f"{path} has the arrays {_shapes(file) or 'none'}."
    if kind == "mlp":
        names = choose_names(file, None, None) if file.is_table else _find_arrays(file)
        return Found(settings | {"inputs": list(names.inputs), "targets": list(names.targets)}, remark)
    return Found(settings | _find_operator(file)._asdict(), remark)


def _find_arrays(file: DataFile) -> Choice:
    """The arrays X and y; else the last is the target, and all others of its length are inputs."""
    if all(name in file.arrays for name in ARRAY_NAMES):
        return Choice(ARRAY_NAMES[:1], ARRAY_NAMES[1:])
    names = list(file.arrays)
    lengths = {name: _num_rows(array) for name, array in file.arrays.items()}
    alike = tuple(name for name in names[:-1] if lengths[name] == lengths[names[-1]])
    if not alike:
        raise InputError(
            "`data` must hold at least two arrays with the same number of rows, got "
            f"{file.path} with {_shapes(file) or 'none'}."
        )
    return Choice(alike, (names[-1],))


def _num_rows(array: np.ndarray) -> int:
    shape = np.shape(array)
    return int(np.prod(shape)) if shape[:1] in ((), (1,)) else shape[0]


def _shapes(file: DataFile) -> str:
    return ", ".join(f"{name} {np.shape(array)}" for name, array in file.arrays.items())


def _find_operator(file: DataFile) -> OperatorNames:
    """The arrays with the usual names; else the first three whose shapes fit together."""
    usual = OperatorNames()
    if all(name in file.arrays for name in usual):
        return usual
    for names in permutations(file.arrays, 3):
        if fit_together(*(np.shape(file.arrays[name]) for name in names)):
            return OperatorNames(*names)
    raise InputError(
        "`data` must hold functions (functions, sensors), locations (locations, dims) and fields (functions, locations)"
        f", got {file.path} with {_shapes(file) or 'none'}."
    )
