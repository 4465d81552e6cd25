"""A stored result, from the directory of a command or of :meth:`vihmc.Result.save`."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from vihmc.api.result import Result
from vihmc.api.saving import PROBE, probe
from vihmc.data.problem import Problem
from vihmc.data.saved import FILE, read_problem
from vihmc.errors import InputError
from vihmc.posterior.likelihoods import Likelihood
from vihmc.runs.directory import read_config
from vihmc.runs.files import load_arrays
from vihmc.runs.stage_files import load_fit
from vihmc.runs.stored_run import load_run
from vihmc.types import Params


def load(
    directory: str | Path, *, apply: Any = None, params: Params | None = None, likelihood: Likelihood | None = None
) -> Result:
    """Load a finished run.

    Args:
        directory: A run directory, of the command or of :meth:`vihmc.Result.save`.
        apply: The model, if it is a function or an object of your own: code is not stored.
        params: An example tree of parameters, if it has nodes of your own classes.
        likelihood: The likelihood, if it is of your own class.

    Raises:
        InputError: If the directory holds no finished run or is damaged, or the model is another one.
    """
    path = Path(directory)
    given = {"apply": apply, "params": params, "likelihood": likelihood}
    used = [name for name, value in given.items() if value is not None]
    config = read_config(path)
    if used and not (path / FILE).exists():
        raise InputError(f"`{used[0]}` must be left out for {path}, whose model is known from its settings, got one.")
    problem = None
    if (path / FILE).exists():
        with jax.enable_x64(config.precision == "float64"):
            problem = read_problem(path / FILE, **given)
            _check_model(path, problem)
    return Result(load_run(path, problem=problem))


def _check_model(path: Path, problem: Problem) -> None:
    """Refuse a model that is not the one of the run."""
    stored, mean = load_arrays(path / FILE, [PROBE])[PROBE], load_fit(path / "vi.npz").q.mean
    try:
        found = probe(problem.posterior, mean)
    except Exception as error:
        raise InputError(f"`apply` must accept the parameters and inputs of {path}, got: {error}.") from None
    if found.shape != stored.shape or not np.allclose(found, stored, rtol=1e-4, atol=1e-6):
        raise InputError(f"`apply` must be the model that {path} was made with, got one with other outputs.")
