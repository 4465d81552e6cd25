"""The call: a posterior in, a :class:`vihmc.Result` out."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vihmc.api.notices import describe_data, find_notices, tell
from vihmc.api.result import Result
from vihmc.api.settings import as_seed, with_settings
from vihmc.checkpointing import Observer
from vihmc.config.method import MethodConfig
from vihmc.data.problem import Problem
from vihmc.data.registry import preset_settings
from vihmc.data.saved import pose
from vihmc.fit.result import FitResult
from vihmc.models.model import initialiser
from vihmc.posterior.checks import Validation
from vihmc.posterior.density import Posterior
from vihmc.runs.config import RunConfig
from vihmc.runs.progress import watch
from vihmc.runs.run import run_in_memory
from vihmc.types import Inputs, Key, Params

_NUM_ASSESSED = 256
"""Training inputs, evenly spread, whose predictions are assessed where no data were held out."""
_STREAM_START = 1003
ARGUMENTS = (
    *("config", "rng_key", "validation", "target_inputs", "initial_params", "fitted"),
    *("input_names", "target_names", "progress"),
)


def infer(
    posterior: Posterior,
    config: MethodConfig | None = None,
    *,
    rng_key: Key | int | None = None,
    validation: Validation | tuple | None = None,
    target_inputs: Inputs | None = None,
    initial_params: Params | None = None,
    fitted: FitResult | None = None,
    input_names: Iterable[str] | None = None,
    target_names: Iterable[str] | None = None,
    progress: bool | Observer = True,
    **settings: Any,
) -> Result:
    """Run the method on a posterior: fit, select, sample.

    Args:
        posterior: Model, prior, likelihood and data.
        config: Settings of all stages; those of the command for data of one's own if not given.
        rng_key: A number or a JAX random key; that of `config` if not given.
        validation: Held-out inputs and targets (and weights, if they differ), to score the predictions by.
        target_inputs: Where the model will be used: parameters are selected that matter there.
        initial_params: Where the fit starts, a tree like the model's; if not given, the weights that the model came
            with, its own initialisation, or small random numbers.
        fitted: The first stage of an earlier result on the same posterior, to use as it is.
        input_names: Names of the columns of the inputs, or of the coordinates of an operator, with their units; those
            of `validation` if these are data frames.
        target_names: Names of the targets.
        progress: Whether to show progress; or an :class:`vihmc.Observer` of your own.
        settings: Any setting of the method by its name: `num_chains`, `num_draws`, `num_warmup`, `threshold`,
            `first_stage`, … They change those of `config`.

    Raises:
        InputError: If a setting is not known or does not fit, in one sentence.
    """
    if isinstance(target_inputs, str):
        settings["target_inputs"], target_inputs = target_inputs, None
    method = with_settings(config or default_method(posterior), settings, ARGUMENTS)
    if rng_key is not None:
        method = method.model_copy(update={"seed": as_seed(rng_key)})
    if target_inputs is not None:
        selection = method.selection.with_defaults(has_target_inputs=True)
        rule = {"rule": selection.rule}
        method = method.model_copy(update={"selection": method.selection.model_copy(update=rule)})
    problem = pose_posterior(
        posterior,
        validation,
        initial=find_start(posterior, initial_params, method.seed),
        input_names=_names(input_names, validation, 0),
        target_names=_names(target_names, validation, 1),
    )
    tell(find_notices(posterior))
    with watch(progress) as observer:
        given = {"target_inputs": target_inputs, "fitted": fitted}
        if not problem.has_held_out:
            given["validation"] = None
        run = run_in_memory(problem, as_run_config(method), observer=observer, **given)
    return Result(run)


def pose_posterior(
    posterior: Posterior,
    validation: Validation | tuple | None,
    *,
    initial: np.ndarray | None = None,
    input_names: tuple[str, ...] = (),
    target_names: tuple[str, ...] = (),
) -> Problem:
    """A posterior as a problem; where no data are held out, some of the training data take their place."""
    weights = None
    if validation is not None:
        inputs, targets, weights = posterior.check_validation(validation)
    else:
        count = posterior.num_observations
        rows = np.unique(np.linspace(0, count - 1, min(count, _NUM_ASSESSED)).round().astype(int))
        inputs, targets = jax.tree.map(lambda leaf: leaf[rows], (posterior.inputs, posterior.targets))
        weights = None if posterior.weights is None else posterior.weights[rows]
    has_held_out = validation is not None
    return pose(
        posterior,
        inputs,
        targets,
        weights=None if weights is None else np.asarray(weights),
        initial=initial,
        name="python",
        input_names=input_names,
        target_names=target_names,
        data_description=describe_data(posterior, np.shape(targets)[0] if has_held_out else 0),
        notice=" ".join(find_notices(posterior, has_held_out=has_held_out)) or None,
        has_held_out=has_held_out,
    )


def _names(given: Iterable[str] | None, validation: Any, part: int) -> tuple[str, ...]:
    """The names that are given, or else those of the columns of a data frame."""
    if given is None and validation is not None:
        given = getattr(validation[part], "columns", None)
    return () if given is None else tuple(map(str, given))


def default_method(posterior: Posterior) -> MethodConfig:
    """The settings that the command has for data of one's own: of a table, or of an operator."""
    kind = "mlp" if getattr(posterior, "locations", None) is None else "deeponet"
    settings = preset_settings(kind, "default")
    return MethodConfig(**{name: settings[name] for name in MethodConfig.model_fields if name in settings})


def find_start(posterior: Posterior, params: Params | None, seed: int) -> np.ndarray | None:
    """Where the fit starts, as a vector; None for small random numbers."""
    if params is None and posterior.initial is not None:
        return np.asarray(posterior.initial)
    if params is None:
        init = initialiser(posterior.model)
        if init is None:
            return None
        params = init(jax.random.fold_in(jax.random.key(seed), _STREAM_START))
    return np.asarray(posterior.layout.ravel(params))


def as_run_config(method: MethodConfig) -> RunConfig:
    """The settings of a whole run: those of the method, in the precision that JAX has now."""
    names = [*MethodConfig.model_fields, *(["prediction"] if isinstance(method, RunConfig) else [])]
    given: dict[str, Any] = {name: getattr(method, name) for name in names}
    precision = "float64" if jnp.result_type(float) == jnp.float64 else "float32"
    return RunConfig(**given, precision=precision, problem={"name": "python"})
