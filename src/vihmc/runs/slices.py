"""What the report lets a reader look at piece by piece, and its file ``slices.npz`` in the run directory.

For a table that is the partial dependence on each input, for an operator some held-out functions. It is computed once,
at the end of the run, so that the report can be written again from the file alone.
"""

from pathlib import Path
from typing import Any

import numpy as np

from vihmc.errors import InputError
from vihmc.runs.evaluation import VIHMC, RunResult
from vihmc.runs.files import check_has, load_arrays, save_arrays
from vihmc.runs.held_out_functions import Functions, show_functions
from vihmc.runs.partial_dependence import LEVELS, MAX_OUTPUTS, Dependence, partial_dependence
from vihmc.runs.scoring import is_of_classes

Slices = Dependence | Functions
FILE = "slices.npz"
KINDS: dict[str, type[Slices]] = {"dependence": Dependence, "functions": Functions}
AXES = {
    Dependence: {
        "inputs": "i", "outputs": "o", "points": "ip", "marks": "im", "mean": "ipo", "low": "lipo", "high": "lipo",
    },
    Functions: {
        "rows": "r", "columns": "c", "index": "f", "truth": "frc", "mean": "frc", "low": "lfrc", "high": "lfrc",
        "error": "f", "std": "f", "held": "f",
    },
}  # fmt: skip
"""Axes of every array; those of the same letter have the same length."""


def find_slices(result: RunResult) -> Slices | None:
    """Compute them; None where there is nothing to vary: inputs that are not rows of numbers, or very many outputs."""
    problem = result.problem
    subspace, draws = result.inference.sampled.spread(result.config.prediction.num_draws)
    if problem.locations is not None:
        return show_functions(problem, result.methods[VIHMC].prediction, subspace, draws)
    inputs, mean = problem.posterior.inputs, np.asarray(result.methods[VIHMC].prediction.mean)
    num_outputs = int(np.prod(mean.shape[1:]))
    if getattr(inputs, "ndim", 0) != 2 or num_outputs > MAX_OUTPUTS:
        return None
    names = problem.input_names or tuple(f"x{number + 1}" for number in range(inputs.shape[1]))
    return partial_dependence(
        problem.posterior, subspace, draws, inputs=names, outputs=_output_names(result, num_outputs)
    )


def _output_names(result: RunResult, count: int) -> tuple[str, ...]:
    """Names of the targets; of classes, whose probability it is."""
    problem, names = result.problem, result.problem.target_names
    if is_of_classes(problem.posterior.likelihood):
        if len(names) == count:  # of each label, that it is 1
            return tuple(f"Probability of {name} = 1" for name in names)
        of = names[0] if names else "class"
        return tuple(f"Probability of {of} = {number}" for number in (range(count) if count > 1 else (1,)))
    if len(names) == count:
        return names
    return ("y",) if count == 1 else tuple(f"output {number + 1}" for number in range(count))


def save_slices(path: Path, slices: Slices | None) -> None:
    """Store them in a run directory, in single precision, if there are any."""
    if slices is None:
        return
    kind = next(name for name, one in KINDS.items() if isinstance(slices, one))
    save_arrays(path / FILE, {"kind": kind} | {name: _compact(value) for name, value in slices._asdict().items()})


def _compact(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def load_slices(path: Path) -> Slices | None:
    """Read them from a run directory; None if it has none.

    Raises:
        InputError: If the file is damaged.
    """
    file = path / FILE
    if not file.exists():
        return None
    arrays = load_arrays(file)
    kind = KINDS.get(str(arrays.pop("kind", "")))
    if kind is None:
        raise InputError(f"`{file}` must hold a partial dependence or held-out functions, got something else.")
    check_has(file, arrays, kind._fields)
    _check(file, arrays, AXES[kind])
    values: dict[str, Any] = {name: arrays[name] for name in kind._fields}
    plain: dict[str, Any] = {name: _plain(value) for name, value in values.items() if name not in AXES[kind]}
    names: dict[str, Any] = {name: tuple(map(str, values[name])) for name in ("inputs", "outputs") if name in values}
    values |= plain | names
    return kind(**values)


def _check(file: Path, arrays: dict[str, np.ndarray], axes: dict[str, str]) -> None:
    """Refuse arrays whose shapes or types do not belong together."""
    lengths: dict[str, int] = {}
    for name, letters in axes.items():
        array, is_text = arrays[name], name in ("inputs", "outputs")
        fits = array.ndim == len(letters) and array.size > 0 and array.dtype.kind in ("U" if is_text else "fiu")
        fits = fits and all(lengths.setdefault(*pair) == pair[1] for pair in zip(letters, array.shape, strict=True))
        if not fits or lengths.get("l", 1) > len(LEVELS):
            raise InputError(f"`{file}` must hold arrays that belong together, got '{name}' of shape {array.shape}.")


def _plain(value: np.ndarray) -> Any:
    return value.item() if value.ndim == 0 else str(value)
