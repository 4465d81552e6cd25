"""What a run is judged by: predictions of every method at the validation inputs, against the truth and each other."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from vihmc import predict as prediction
from vihmc.config import Config
from vihmc.diagnostics import Convergence, assess
from vihmc.pipeline import Inference, Observer, Sampled, infer, sample_everything
from vihmc.predict import Prediction
from vihmc.problems import Problem

VI, VIHMC, HMC = "VI", "VI-HMC", "HMC"
_STREAM_REFERENCE, _STREAM_VI_DRAWS = 1001, 1002  # away from the streams that the pipeline splits off
_NUM_FUNCTIONS = 100


@dataclass(frozen=True, eq=False)
class MethodResult:
    """One method at the validation inputs.

    Attributes:
        prediction: Means, stds and quantiles.
        functions: A few draws of the function, for pictures.
        convergence: Of the predictions; None for VI, whose draws are independent.
        weight_convergence: Of the sampled weights; None for VI.
        sampled: The chains; None for VI.
    """

    prediction: Prediction
    functions: np.ndarray
    convergence: Convergence | None = None
    weight_convergence: Convergence | None = None
    sampled: Sampled | None = None


@dataclass(frozen=True, eq=False)
class RunResult:
    """Everything a run found."""

    config: Config
    problem: Problem
    inference: Inference
    methods: dict[str, MethodResult]
    seconds: dict[str, float]


def run_problem(problem: Problem, config: Config, observer: Observer | None = None) -> RunResult:
    """Run the method on a problem, with full-space HMC beside it if configured, and evaluate all of it."""
    observer = observer or Observer()
    validation = (problem.validation_inputs, problem.validation_targets)
    inference = infer(problem.posterior, config, validation=validation, observer=observer)
    reference = None
    if config.reference.enabled:
        with observer.stage("reference", config.reference.num_warmup + config.reference.num_draws):
            key = jax.random.fold_in(jax.random.key(config.seed), _STREAM_REFERENCE)
            reference = sample_everything(
                problem.posterior, inference.vi.q, config.reference, key, on_steps=observer.on_steps
            )
    with observer.stage("prediction", 1):
        methods = {VI: _evaluate_vi(problem, inference, config), VIHMC: _evaluate(problem, inference.sampled, config)}
        if reference is not None:
            methods[HMC] = _evaluate(problem, reference, config)
    return RunResult(config, problem, inference, methods, dict(observer.seconds))


def _evaluate_vi(problem: Problem, inference: Inference, config: Config) -> MethodResult:
    key = jax.random.fold_in(jax.random.key(config.seed), _STREAM_VI_DRAWS)
    draws = inference.vi.q.sample(key, config.prediction.num_vi_draws)
    predict_fn = problem.posterior.predict
    functions = prediction.evaluate(predict_fn, draws[:_NUM_FUNCTIONS], problem.validation_inputs)
    return MethodResult(_predict(problem, predict_fn, draws, config), functions)


def _evaluate(problem: Problem, sampled: Sampled, config: Config) -> MethodResult:
    predict_fn = sampled.subspace.restrict(problem.posterior.predict)
    values = prediction.evaluate(
        predict_fn, sampled.chains.positions, problem.validation_inputs, memory_mb=config.prediction.memory_mb
    )
    flat = values.reshape(-1, *values.shape[2:])
    return MethodResult(
        prediction=_predict(problem, predict_fn, sampled.draws, config),
        functions=flat[:: max(1, len(flat) // _NUM_FUNCTIONS)][:_NUM_FUNCTIONS],
        convergence=assess(values),
        weight_convergence=assess(sampled.chains.positions),
        sampled=sampled,
    )


def _predict(problem: Problem, predict_fn: Any, draws: Any, config: Config) -> Prediction:
    return prediction.predict(
        predict_fn,
        draws,
        problem.validation_inputs,
        noise_std=problem.posterior.noise_std,
        quantiles=config.prediction.quantiles,
        memory_mb=config.prediction.memory_mb,
    )


def rms(values: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def accuracy(result: MethodResult, truth: np.ndarray) -> dict[str, float]:
    """Error of the mean, width of the error bars, and how often they hold the truth."""
    predicted = result.prediction
    low, high = (predicted.epistemic_quantiles[i] for i in (0, -1))
    return {
        "rmse": rms(predicted.mean - truth),
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
