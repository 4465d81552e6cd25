"""What a run is judged by: predictions of every method at the validation inputs, against the truth and each other."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import Partial

from vihmc import predict as prediction
from vihmc.config import Config
from vihmc.diagnostics import Convergence, assess
from vihmc.operator import OperatorPosterior
from vihmc.pipeline import Inference, Observer, Sampled, check_sampler, infer, sample_everything
from vihmc.predict import Prediction
from vihmc.problems import Problem
from vihmc.subspace import Subspace, whole_space
from vihmc.types import Inputs
from vihmc.vi import VICheckpoint, VIResult

VI, VIHMC, HMC = "VI", "VI-HMC", "HMC"
_STREAM_REFERENCE, _STREAM_VI_DRAWS, _STREAM_START = 1001, 1002, 1003  # away from those that the pipeline splits off
_NUM_FUNCTIONS = 100
_NUM_ASSESSED = 256
"""Convergence is assessed for this many predictions and weights at most, evenly spread."""


@dataclass(frozen=True, eq=False)
class MethodResult:
    """One method at the validation inputs.

    Attributes:
        prediction: Means, stds and quantiles.
        functions: A few draws of the function, for pictures; of an operator, those of the run's `cases` at the end.
        convergence: Of the predictions; None for VI, whose draws are independent.
        weight_convergence: Of the sampled weights; None for VI.
        sampled: The chains; None for VI.
    """

    prediction: Prediction
    functions: np.ndarray
    convergence: Convergence | None = None
    weight_convergence: Convergence | None = None
    sampled: Sampled | None = None


class Case(NamedTuple):
    """A validation function worth looking at."""

    title: str
    index: int


@dataclass(frozen=True, eq=False)
class RunResult:
    """Everything a run found."""

    config: Config
    problem: Problem
    inference: Inference
    methods: dict[str, MethodResult]
    cases: tuple[Case, ...]
    seconds: dict[str, float]
    peak_memory_gb: dict[str, float]


def run_problem(
    problem: Problem,
    config: Config,
    observer: Observer | None = None,
    *,
    fitted: VIResult | None = None,
    resume: VICheckpoint | None = None,
) -> RunResult:
    """Run the method on a problem, with full-space HMC beside it if configured, and evaluate all of it.

    Args:
        problem: What to run it on.
        config: All settings.
        observer: Hears about progress.
        fitted: The first stage of an earlier run, to use as it is.
        resume: A checkpoint of the first stage, to go on from.
    """
    observer = observer or Observer()
    if config.reference.enabled:
        check_sampler("reference", problem.posterior, config.reference)
    key = jax.random.key(config.seed)
    start = problem.initial_params
    inference = infer(
        problem.posterior,
        config,
        initial_params=None if start is None else start(jax.random.fold_in(key, _STREAM_START)),
        validation=(problem.validation_inputs, problem.validation_targets),
        observer=observer,
        fitted=fitted,
        resume=resume,
    )
    reference = None
    if config.reference.enabled:
        with observer.stage("reference", config.reference.num_warmup + config.reference.num_draws):
            reference = sample_everything(
                problem.posterior,
                inference.vi.q,
                config.reference,
                jax.random.fold_in(key, _STREAM_REFERENCE),
                on_steps=observer.on_steps,
            )
    with observer.stage("prediction", 1):
        vi_draws = inference.vi.q.sample(jax.random.fold_in(key, _STREAM_VI_DRAWS), config.prediction.num_vi_draws)
        everything = whole_space(inference.vi.q.mean)
        draws = {VI: (everything, np.asarray(vi_draws)), VIHMC: _spread_draws(inference.sampled, config)}
        sampled = {VIHMC: inference.sampled}
        if reference is not None:
            draws[HMC], sampled[HMC] = _spread_draws(reference, config), reference
        predictions = {name: _predict(problem, *pair, config) for name, pair in draws.items()}
        cases = _choose_cases(problem, predictions)
        methods = {
            name: MethodResult(predictions[name], _functions(problem, *draws[name], cases)) for name in predictions
        }
        for name, chains in sampled.items():
            methods[name] = _assess(problem, methods[name], chains)
    return RunResult(config, problem, inference, methods, cases, dict(observer.seconds), dict(observer.peak_memory_gb))


def _spread_draws(sampled: Sampled, config: Config) -> tuple[Subspace, np.ndarray]:
    draws = sampled.draws
    count = min(config.prediction.num_draws or len(draws), len(draws))
    return sampled.subspace, draws[np.linspace(0, len(draws) - 1, count).round().astype(int)]


def _predict(problem: Problem, subspace: Subspace, draws: np.ndarray, config: Config) -> Prediction:
    return prediction.predict_posterior(
        problem.posterior,
        subspace,
        draws,
        problem.validation_inputs,
        quantiles=config.prediction.quantiles,
        observations=config.prediction.observation_quantiles,
        truth=problem.validation_targets,
        memory_mb=config.prediction.memory_mb,
    )


def _choose_cases(problem: Problem, predictions: dict[str, Prediction]) -> tuple[Case, ...]:
    """The functions that VI and VI-HMC predict best and worst."""
    if problem.grid is None:
        return ()
    errors = {
        name: relative_l2(predicted.mean, problem.validation_targets)
        for name, predicted in predictions.items()
        if name != HMC
    }
    choices: tuple[tuple[str, Callable], ...] = (("best", np.nanargmin), ("worst", np.nanargmax))
    return tuple(
        Case(f"{word} of {name}", int(choose(error))) for word, choose in choices for name, error in errors.items()
    )


def _functions(problem: Problem, subspace: Subspace, draws: np.ndarray, cases: tuple[Case, ...]) -> np.ndarray:
    chosen = draws[:: max(1, len(draws) // _NUM_FUNCTIONS)][:_NUM_FUNCTIONS]
    posterior, inputs = problem.posterior, problem.validation_inputs
    if not isinstance(posterior, OperatorPosterior):
        return prediction.evaluate(subspace.restrict(posterior.predict), chosen, inputs)
    if problem.grid is None:
        return np.zeros((0,))
    functions = inputs[np.asarray([case.index for case in cases])]
    at_the_end = posterior.locations[-len(problem.grid.positions) :]
    fields = prediction.evaluate(Partial(prediction.field_at, posterior, subspace, functions), chosen, at_the_end)
    return np.swapaxes(fields, 1, 2)


def _assess(problem: Problem, method: MethodResult, sampled: Sampled) -> MethodResult:
    """Assess the convergence of some predictions and of some weights."""
    predict_fn, inputs = _probe(problem, sampled.subspace)
    positions = sampled.chains.positions
    weights = _evenly(np.arange(positions.shape[-1]))
    return replace(
        method,
        convergence=assess(prediction.evaluate(predict_fn, positions, inputs)),
        weight_convergence=assess(positions[..., weights]),
        sampled=sampled,
    )


def _probe(problem: Problem, subspace: Subspace) -> tuple[Callable, Inputs]:
    """A function whose values stand for all predictions, and its inputs."""
    posterior, inputs = problem.posterior, problem.validation_inputs
    if not isinstance(posterior, OperatorPosterior):
        return subspace.restrict(posterior.predict), inputs
    side = int(_NUM_ASSESSED**0.5)
    functions = inputs[_evenly(np.arange(len(inputs)), side)]
    locations = posterior.locations[_evenly(np.arange(len(posterior.locations)), side)]
    return Partial(prediction.field_at, posterior, subspace, functions), locations


def _evenly(values: np.ndarray, count: int = _NUM_ASSESSED) -> np.ndarray:
    return values[np.unique(np.linspace(0, len(values) - 1, min(count, len(values))).round().astype(int))]


def relative_l2(predicted: Any, truth: Any) -> np.ndarray:
    """Error of each function in units of its own size: norms over all of its outputs."""
    predicted, truth = np.asarray(predicted), np.asarray(truth)
    axes = tuple(range(1, truth.ndim))
    size = np.sqrt(np.sum(np.square(truth), axis=axes))
    return np.sqrt(np.sum(np.square(predicted - truth), axis=axes)) / np.where(size > 0, size, np.nan)


def rms(values: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def accuracy(result: MethodResult, truth: np.ndarray, *, is_field: bool = False) -> dict[str, float]:
    """Error of the mean, width of the error bars, and how often they hold the truth.

    Of a field the error is also given relative to the size of each function's own.
    """
    predicted = result.prediction
    low, high = (predicted.epistemic_quantiles[i] for i in (0, -1))
    errors = {"relative_l2": relative_l2(predicted.mean, truth)} if is_field else {}
    return {
        **{name: float(np.nanmean(values)) for name, values in errors.items()},
        "rmse": rms(predicted.mean - truth),
        "mse": rms(predicted.mean - truth) ** 2,
        "crps": float(np.mean(predicted.crps)) if predicted.crps is not None else float("nan"),
        "mean_epistemic_std": float(np.mean(predicted.epistemic_std)),
        "mean_total_std": float(np.mean(predicted.total_std)),
        "band_level": float(predicted.levels[-1] - predicted.levels[0]),
        "band_coverage": float(np.mean((low <= truth) & (truth <= high))),
    }


def agreement(result: MethodResult, reference: MethodResult) -> dict[str, float]:
    """Distance to a reference: of the mean, in units of the prediction; of the std, as a log ratio."""
    ratio = np.log(result.prediction.epistemic_std / reference.prediction.epistemic_std)
    return {
        "rms_mean_error": rms(result.prediction.mean - reference.prediction.mean),
        "rms_log_std_ratio": rms(ratio),
        "mean_log_std_ratio": float(np.mean(ratio)),
    }
