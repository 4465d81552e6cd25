"""Leave-out runs, or cross-validation: predict every observation from a run that did not use it.

An observation is a row of a table, or a function of an operator with its whole field.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from vihmc import predict as prediction
from vihmc.checkpointing import Observer
from vihmc.data import Problem
from vihmc.data.problem import Folds
from vihmc.errors import InputError
from vihmc.fit.linearised import draw_linearised
from vihmc.pipeline import infer
from vihmc.posterior.checks import Validation
from vihmc.posterior.density import Posterior
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.predict import Prediction
from vihmc.runs.config import RunConfig
from vihmc.samplers.chains import Journal
from vihmc.types import Inputs, Key, Params

_STREAM_FOLDS = 1004


class LeftOut(NamedTuple):
    """Predictions of all training functions, each from a run without it."""

    folds: Folds
    vi: Prediction
    vihmc: Prediction


def choose_folds(problem: Problem, config: RunConfig) -> Folds | None:
    """The groups to leave out, if any."""
    num_folds = config.leave_out.num_folds
    if not num_folds:
        return None
    if problem.fold is None:
        raise InputError(f"`leave_out.num_folds` must be 0 for {problem.name}, which has no inputs to leave out, "
                         f"got {num_folds}.")  # fmt: skip
    return problem.fold(num_folds)


def leave_out(
    posterior: Posterior,
    number: Int[np.ndarray, " observations"],
    config: RunConfig,
    *,
    observer: Observer,
    journal: Journal,
    initial_params: Callable[[Key], Params] | None = None,
    validation: Validation | None = None,
    target_inputs: Inputs | None = None,
) -> tuple[Prediction, Prediction]:
    """Run the method without the observations of a fold and predict these, fold by fold.

    Args:
        posterior: Of all data.
        number: The fold of each observation: a row of a table, or a function of an operator.
        config: Settings of all stages; chains are those of `leave_out`.
        observer: Hears how many folds are done.
        journal: Remembers what has been done, a part for each fold.
        initial_params: Draws where the fit starts.
        validation: Data to follow the fits on.
        target_inputs: Where parameters are selected, in every fold.

    Returns:
        Predictions of VI and of VI-HMC for all observations, each from a run without it.
    """
    parts = []
    settings = config.model_copy(update={"hmc": config.leave_out_sampler})
    for fold in range(int(number.max()) + 1):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), _STREAM_FOLDS), fold)
        key_start, key_draws, key_seed = jax.random.split(key, 3)
        seed = int(jax.random.randint(key_seed, (), 0, 2**31 - 1))
        others = posterior.without(number == fold)
        found = infer(
            others,
            settings.model_copy(update={"seed": seed}),
            initial_params=None if initial_params is None else initial_params(key_start),
            validation=validation,
            target_inputs=target_inputs,
            journal=journal.part(f"fold-{fold}"),
        )
        left_out = np.flatnonzero(number == fold)
        num_vi_draws = config.prediction.num_vi_draws
        if found.fit.is_laplace:
            first_stage = draw_linearised(others, found.fit, key_draws, num_vi_draws)
        else:
            first_stage = whole_space(found.fit.q.mean), np.asarray(found.fit.q.sample(key_draws, num_vi_draws))
        both = (first_stage, found.sampled.spread(config.prediction.num_draws))
        parts.append([_predict(posterior, *pair, left_out, config) for pair in both])
        observer.on_fold(fold + 1)
    order = np.argsort(np.argsort(number, kind="stable"), kind="stable")
    vi, vihmc = (_join([part[method] for part in parts], order) for method in (0, 1))
    return vi, vihmc


def _predict(
    posterior: Posterior, subspace: Subspace, draws: np.ndarray, rows: np.ndarray, config: RunConfig
) -> Prediction:
    return prediction.predict_posterior(
        posterior,
        subspace,
        draws,
        jax.tree.map(lambda leaf: leaf[rows], posterior.inputs),
        quantiles=config.prediction.quantiles,
        observations=config.prediction.observation_quantiles,
        truth=posterior.targets[rows],
    )


def _join(parts: list[Prediction], order: np.ndarray) -> Prediction:
    """Restore the order of the functions of all folds."""

    def join(name: str) -> np.ndarray:
        axis = 1 if name.endswith("quantiles") else 0
        return np.concatenate([getattr(part, name) for part in parts], axis=axis).take(order, axis=axis)

    # Widths are those of some locations, which differ from fold to fold.
    own = {"levels": parts[0].levels, "widths": None, "per_draw": None, "calibrated": None}
    arrays: dict[str, Any] = {name: own[name] if name in own else join(name) for name in Prediction._fields}
    return Prediction(**arrays)
