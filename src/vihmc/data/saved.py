"""A posterior that was made in Python, as one file: model, prior, likelihood and all data, without any code.

``posterior.npz`` holds arrays, and a JSON description of what they belong to (:mod:`vihmc.data.described`).
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vihmc.data.described import bind_given, decode, encode
from vihmc.data.problem import Grid, Problem
from vihmc.data.settings import PythonConfig
from vihmc.errors import InputError

FILE = "posterior.npz"
_PLAIN = ("name", "input_names", "target_names", "data_description", "notice", "has_held_out")


def describe_problem(problem: Problem) -> dict[str, np.ndarray]:
    """A problem as named arrays."""
    arrays: dict[str, np.ndarray] = {}
    initial = None
    if problem.initial_params is not None:
        initial = np.asarray(problem.posterior.layout.ravel(problem.initial_params(jax.random.key(0))))
    described = {
        "posterior": encode(problem.posterior, arrays),
        "plain": {name: getattr(problem, name) for name in _PLAIN},
        **{name: encode(getattr(problem, f"validation_{name}"), arrays) for name in ("inputs", "targets", "weights")},
        "initial": encode(initial, arrays),
    }
    return arrays | {"description": np.asarray(json.dumps(described))}


def read_problem(file: Path, **given: Any) -> Problem:
    """Rebuild a problem from its file.

    Args:
        file: What :func:`describe_problem` described.
        given: `apply`, `params` and `likelihood`, where the file has gaps for them.

    Raises:
        InputError: If the file cannot be read, or a gap has nothing to fill it.
    """
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        text = str(arrays["description"])
        described = json.loads(text)
        for name, value in given.items():
            if value is not None and json.dumps({"gap": name}) not in text:
                raise InputError(f"`{name}` must be left out for {file}, which holds it, got one.")
        posterior = bind_given(decode(described["posterior"], arrays, given), given.get("likelihood"))
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in described["plain"].items()}
        validation = [decode(described[name], arrays, given) for name in ("inputs", "targets", "weights")]
        initial = decode(described["initial"], arrays, given)
    except InputError:
        raise
    except Exception as error:  # a damaged file has many kinds of error
        reason = getattr(error, "strerror", None) or (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"`{file}` must hold a posterior that was saved, got: {reason[:200]}.") from None
    inputs, targets, weights = validation
    return pose(
        posterior,
        inputs,
        targets,
        weights=None if weights is None else np.asarray(weights),
        initial=None if initial is None else np.asarray(initial),
        **plain,
    )


def pose(
    posterior: Any, inputs: Any, targets: Any, *, weights: Any, initial: np.ndarray | None, **plain: Any
) -> Problem:
    """The problem of a posterior that was made in Python."""
    locations = getattr(posterior, "locations", None)
    layout = posterior.layout
    return Problem(
        posterior=posterior,
        validation_inputs=inputs,
        validation_targets=targets,
        validation_weights=weights,
        initial_params=None if initial is None else lambda _: layout.unravel(jax.numpy.asarray(initial)),
        grid=None if locations is None else Grid.of(np.asarray(locations)),
        **plain,
    )


def build(config: PythonConfig) -> Problem:
    """Read a posterior that was saved from Python."""
    if config.data_file is None:
        raise InputError(
            "`problem.data_file` must be given to run python, got none. It is the file posterior.npz of a result that "
            "was saved from Python."
        )
    return read_problem(Path(config.data_file))
