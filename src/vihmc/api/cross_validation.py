"""Cross-validation of any posterior: every observation is predicted by a run that did not see it.

An observation is a row of a table, or a function of an operator with its whole field.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from vihmc.api.infer import as_run_config
from vihmc.api.settings import as_seed, with_settings
from vihmc.checkpointing import Observer
from vihmc.config.method import MethodConfig
from vihmc.diagnostics.scores import ClassScores, Scores, classify, gaussian, summarise
from vihmc.errors import InputError
from vihmc.models.model import initialiser
from vihmc.posterior.density import Posterior
from vihmc.predict import Prediction
from vihmc.runs.leave_out import leave_out
from vihmc.runs.memory import MemoryJournal
from vihmc.runs.progress import watch
from vihmc.runs.scoring import is_of_classes
from vihmc.types import Inputs, Key

ARGUMENTS = ("config", "num_folds", "groups", "rng_key", "target_inputs", "progress")
_STREAM_SPLIT = 1006


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """Predictions of all observations, each from a run without it.

    Attributes:
        prediction: Of VI-HMC, in the order of the observations.
        prediction_vi: Of the first stage alone.
        folds: The fold of each observation.
        scores: Of VI-HMC, averaged over all observations.
        scores_vi: Of the first stage alone.
    """

    prediction: Prediction
    prediction_vi: Prediction
    folds: Int[np.ndarray, " observations"]
    scores: Scores | ClassScores
    scores_vi: Scores | ClassScores

    def __repr__(self) -> str:
        """Scores, a line each."""
        head = f"Cross-validation of {len(self.folds)} observations in {int(self.folds.max()) + 1} folds"
        return "\n".join([head, f"  VI-HMC {_say(self.scores)}", f"  VI     {_say(self.scores_vi)}"])


def cross_validate(
    posterior: Posterior,
    config: MethodConfig | None = None,
    *,
    num_folds: int = 5,
    groups: Any = None,
    rng_key: Key | int | None = None,
    target_inputs: Inputs | None = None,
    progress: bool | Observer = True,
    **settings: Any,
) -> CrossValidation:
    """Run the method once per fold, without the observations of the fold, and predict these.

    Means and stds of a standardisation are those of all observations.

    Args:
        posterior: Of all data.
        config: Settings of all stages; the defaults if not given.
        num_folds: Number of folds, random and of about equal size; the number of observations for leave-one-out.
        groups: A label for each observation, whose groups are left out together instead of random folds.
        rng_key: A number or a JAX random key; that of `config` if not given.
        target_inputs: Where parameters are selected, in every fold; at the training inputs if not given.
        progress: As for :func:`vihmc.infer`.
        settings: As for :func:`vihmc.infer`.

    Raises:
        InputError: If there are too few or too many folds, or a setting does not fit.
    """
    method = with_settings(config, settings, ARGUMENTS)
    if rng_key is not None:
        method = method.model_copy(update={"seed": as_seed(rng_key)})
    run, number = as_run_config(method), choose_folds(posterior, num_folds, groups, method.seed)
    with watch(progress) as observer, observer.stage("leave_out", int(number.max()) + 1):
        vi, vihmc = leave_out(
            posterior,
            number,
            run,
            observer=observer,
            journal=MemoryJournal(),
            initial_params=initialiser(posterior.model),
            target_inputs=target_inputs,
        )
    return CrossValidation(vihmc, vi, number, *(_score(posterior, one) for one in (vihmc, vi)))


def choose_folds(posterior: Posterior, num_folds: int, groups: Any, seed: int) -> Int[np.ndarray, " observations"]:
    """The fold of each observation.

    Raises:
        InputError: If there are fewer than two folds, or more than observations.
    """
    count = posterior.num_observations
    if groups is not None:
        labels = np.asarray(groups)
        if labels.shape != (count,):
            raise InputError(f"`groups` must have a label for each of the {count} observations, got {labels.shape}.")
        number = np.unique(labels, return_inverse=True)[1]
        if number.max() < 1:
            raise InputError("`groups` must have at least two different labels, got one.")
        return number
    if not 2 <= num_folds <= count:
        raise InputError(f"`num_folds` must be from 2 to the number of observations, {count}, got {num_folds}.")
    key = jax.random.fold_in(jax.random.key(seed), _STREAM_SPLIT)
    return np.asarray(jax.random.permutation(key, np.arange(count) % num_folds))


def _score(posterior: Posterior, predicted: Prediction) -> Scores | ClassScores:
    truth = np.asarray(posterior.targets)
    if is_of_classes(posterior.likelihood) and predicted.mean.ndim > truth.ndim:
        return classify(predicted.mean, truth.astype(int))
    # Widths of bands are those of a Gaussian of the same std: folds of very many values have no others.
    return summarise(
        gaussian(predicted.mean, predicted.total_std, truth)._replace(
            **{name: getattr(predicted, name) for name in ("log_density", "crps", "pit")}
        ),
        truth,
        weights=None if posterior.weights is None else np.asarray(posterior.weights),
    )


def _say(scores: Scores | ClassScores) -> str:
    if isinstance(scores, ClassScores):
        return f"accuracy {100 * scores.accuracy:.1f} %, log score {scores.log_score:.3f} nats"
    return (
        f"log predictive density {scores.log_predictive_density:.3f} nats a value, RMSE {scores.rmse:.3g}, "
        f"95 % band holds {100 * scores.coverage['95']:.0f} %"
    )
