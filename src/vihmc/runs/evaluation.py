"""A whole run on a problem: the method, HMC on all parameters beside it, and predictions at the validation inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vihmc import predict as prediction
from vihmc.checkpointing import Observer
from vihmc.config.method import SelectionConfig
from vihmc.data import Problem
from vihmc.data.input_file import read_inputs
from vihmc.data.problem import Folds
from vihmc.devices import drop_programs_if_many
from vihmc.diagnostics.conformal.calibrate import Calibration
from vihmc.diagnostics.watch import PredictionWatch
from vihmc.fit.linearised import draw_linearised
from vihmc.fit.result import FitResult
from vihmc.pipeline import Fitted, Inference, fit_and_select, infer, mean_frozen_share
from vihmc.posterior.checks import Validation
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.predict import Prediction
from vihmc.runs.assessment import ChainsResult, assess_chains, find_probe
from vihmc.runs.calibrated import calibrate_problem, check_calibration
from vihmc.runs.config import RunConfig
from vihmc.runs.expectation import expected_observations
from vihmc.runs.learnt_scales import LearntScale, summarise_scales
from vihmc.runs.leave_out import LeftOut, choose_folds, leave_out
from vihmc.runs.scoring import Scored, find_rivals, score_predictions
from vihmc.samplers.chains import Journal
from vihmc.samplers.third_stage import Sampled, check_sampler, sample_subspace

VI, VIHMC, HMC = "VI", "VI-HMC", "HMC"
"""Methods by the names that files and commands have for them; the first stage may be a Laplace approximation."""
_STREAM_REFERENCE, _STREAM_VI_DRAWS, _STREAM_START = 1001, 1002, 1003  # away from those that the pipeline splits off
_STREAM_FROZEN_SHARE = 1005
_NUM_FUNCTIONS = 100
_MAX_VI_NUMBERS, _LEAST_VI_DRAWS = 200_000_000, 100
"""Numbers of the draws of q, all parameters of each, that are held; but no fewer draws than these."""


@dataclass(frozen=True, eq=False)
class MethodResult:
    """One method at the validation inputs.

    Attributes:
        prediction: Means, stds and quantiles.
        functions: A few draws of the function, for figures; of an operator, those of the run's `cases` at the end.
        chains: Assessment of its chains; None for VI, whose draws are independent.
    """

    prediction: Prediction
    functions: np.ndarray
    chains: ChainsResult | None = None

    @property
    def sampled(self) -> Sampled | None:
        """The chains themselves."""
        return None if self.chains is None else self.chains.sampled


class Case(NamedTuple):
    """A validation function to show."""

    title: str
    index: int


@dataclass(frozen=True, eq=False)
class RunResult:
    """All results of a run."""

    config: RunConfig
    problem: Problem
    inference: Inference
    methods: dict[str, MethodResult]
    cases: tuple[Case, ...]
    left_out: LeftOut | None
    seconds: dict[str, float]
    peak_memory_gb: dict[str, float]
    scores: dict[str, Scored]
    """Of every method and of the yardsticks, on the validation data."""
    scales: dict[str, LearntScale]
    """Posterior of the learnt scales, from the VI-HMC chains."""
    calibration: Calibration | None
    """What the data that were kept for it say about the bands of VI-HMC."""
    frozen_share: dict[str, float]
    """Share of the first-order variance that frozen parameters contribute at the training and the validation inputs."""

    def title(self, method: str) -> str:
        """What a method is called on figures: the first stage by what it was."""
        return first_stage_name(is_laplace=self.inference.fit.is_laplace) if method == VI else method

    @property
    def selection(self) -> SelectionConfig:
        """Settings of the selection with all that was left open decided."""
        posterior = self.problem.posterior
        return self.config.selection.with_defaults(
            has_target_inputs=False, num_params=posterior.num_params, num_scales=posterior.num_scales
        )


class Assessed(NamedTuple):
    """Chains of VI-HMC with their verdict, and the scores of VI-HMC and of the yardsticks on held-out data."""

    chains: ChainsResult
    scores: dict[str, Scored]


def run_problem(
    problem: Problem,
    config: RunConfig,
    observer: Observer | None = None,
    *,
    fitted: FitResult | Sequence[FitResult] | None = None,
    journal: Journal | None = None,
) -> RunResult:
    """Run the method on a problem, with HMC on all parameters beside it if configured, and evaluate the results.

    Args:
        problem: The problem.
        config: All settings.
        observer: Receives progress.
        fitted: The first stage of an earlier run, to be reused.
        journal: Stores what has been done, and returns what was done before an interruption.
    """
    drop_programs_if_many()
    observer, journal = observer or Observer(), journal or Journal()
    folds = check_run(problem, config)
    key = jax.random.key(config.seed)
    inference = infer(
        problem.posterior, config, **given_to(problem, config), watched=lambda space: find_probe(problem, space)[:2],
        observer=observer, fitted=fitted, journal=journal,
    )  # fmt: skip
    reference = None
    if config.reference.enabled:
        sampler = config.reference_sampler
        everything = whole_space(inference.fit.q.mean)
        watch = PredictionWatch(*find_probe(problem, everything)[:2], on_look=observer.on_look)
        with observer.stage("reference", sampler.num_warmup + sampler.num_draws):
            reference = sample_subspace(
                problem.posterior,
                inference.fit.q,
                everything,
                sampler,
                jax.random.fold_in(key, _STREAM_REFERENCE),
                watch=watch,
                on_steps=observer.on_steps,
                journal=journal.chains("reference"),
            )
    with observer.stage("prediction", 1):
        result = evaluate_run(problem, config, inference, reference=reference)
    left_out = None
    if folds is not None:
        with observer.stage("leave_out", config.leave_out.num_folds):
            given = given_to(problem, config) | {"initial_params": problem.initial_params}
            found = leave_out(problem.posterior, folds.number, config, observer=observer, journal=journal, **given)
            left_out = LeftOut(folds, *found)
    seconds, peaks = dict(observer.seconds), dict(observer.peak_memory_gb)
    return replace(result, left_out=left_out, seconds=seconds, peak_memory_gb=peaks)


def evaluate_run(
    problem: Problem, config: RunConfig, inference: Inference, *, reference: Sampled | None = None
) -> RunResult:
    """Predict at the validation inputs with every method, score the predictions and assess the chains."""
    frozen_shares = find_frozen_shares(problem, inference, config)
    num_draws = config.prediction.num_draws
    draws = {VI: first_stage_draws(problem, inference.fit, config), VIHMC: inference.sampled.spread(num_draws)}
    sampled = {VIHMC: ("hmc", inference.sampled, config.hmc)}
    if reference is not None:
        draws[HMC], sampled[HMC] = reference.spread(num_draws), ("reference", reference, config.reference_sampler)
    predictions = {name: _predict(problem, *pair, config) for name, pair in draws.items()}
    is_laplace = inference.fit.is_laplace
    cases = _choose_cases(problem, predictions, {VI: first_stage_name(is_laplace=is_laplace), VIHMC: VIHMC})
    methods = {name: MethodResult(predictions[name], _functions(problem, *draws[name], cases)) for name in predictions}
    scores = score_predictions(problem, inference.fit.mode, predictions)
    rivals = {VIHMC: find_rivals(scores, VIHMC)} if problem.has_held_out else {}
    for name, (stage, chains, settings) in sampled.items():
        fits = training_rmses(inference) if name == VIHMC else ()
        assessed = assess_chains(stage, problem, chains, settings, rivals=rivals.get(name), fits=fits)
        methods[name] = replace(methods[name], chains=assessed)
    calibration = None
    if problem.calibration is not None:
        held_out = _predict(problem, *draws[VIHMC], config, at=problem.calibration)
        calibration = calibrate_problem(problem, config, held_out)
    return RunResult(
        config,
        problem,
        inference,
        methods,
        cases,
        left_out=None,
        seconds={},
        peak_memory_gb={},
        scores=scores,
        scales=summarise_scales(problem, inference.sampled),
        calibration=calibration,
        frozen_share=frozen_shares,
    )


def assess_inference(problem: Problem, config: RunConfig, inference: Inference) -> Assessed:
    """What :func:`evaluate_run` finds about VI-HMC alone: its chains, and its scores where data were held out."""
    scores, rivals = {}, {}
    if problem.has_held_out:
        predicted = _predict(problem, *inference.sampled.spread(config.prediction.num_draws), config)
        scores = score_predictions(problem, inference.fit.mode, {VIHMC: predicted})
        rivals = find_rivals(scores, VIHMC)
    fits = training_rmses(inference)
    return Assessed(assess_chains("hmc", problem, inference.sampled, config.hmc, rivals=rivals, fits=fits), scores)


def training_rmses(inference: Inference) -> tuple[float, ...]:
    """Root mean square error of every fit on the training data, where it ended."""
    return tuple(float(np.sqrt(fit.history.training_mse[-1])) for fit, _ in inference.fits)


def fit_and_select_for(
    problem: Problem,
    config: RunConfig,
    observer: Observer | None = None,
    *,
    fitted: FitResult | Sequence[FitResult] | None = None,
    journal: Journal | None = None,
) -> tuple[Fitted, ...]:
    """Run only the first two stages of :func:`run_problem`."""
    given = given_to(problem, config) | {"observer": observer or Observer(), "journal": journal or Journal()}
    return tuple(
        fit_and_select(problem.posterior, config, number, fitted=fitted, **given) for number in range(config.num_fits)
    )


def given_to(problem: Problem, config: RunConfig) -> dict[str, Any]:
    """Arguments of the method that come from a problem, beside its posterior."""
    key, start = jax.random.fold_in(jax.random.key(config.seed), _STREAM_START), problem.initial_params
    path = config.selection.target_inputs_file
    return {
        "initial_params": None if start is None else start(key),
        "validation": Validation(problem.validation_inputs, problem.validation_targets, problem.validation_weights),
        "target_inputs": None if path is None else read_inputs(problem, Path(path), "selection.target_inputs"),
    }


def find_frozen_shares(problem: Problem, inference: Inference, config: RunConfig) -> dict[str, float]:
    """Share of the first-order variance that frozen parameters contribute at the training and validation inputs."""
    posterior = problem.posterior
    key = jax.random.fold_in(jax.random.key(config.seed), _STREAM_FROZEN_SHARE)
    checked = posterior.check_validation(given_to(problem, config)["validation"])
    places = {
        "training": (posterior.inputs, posterior.weights),
        "validation": (checked.inputs, None if checked.weights is None else jnp.asarray(checked.weights)),
    }
    return {
        name: mean_frozen_share(posterior, inference.fits, inputs, weights=weights, rng_key=key)
        for name, (inputs, weights) in places.items()
    }


def first_stage_draws(problem: Problem, fit: FitResult, config: RunConfig) -> tuple[Subspace, np.ndarray]:
    """Draws for the predictions of the first stage alone: of q, or of the model linearised at the mode."""
    key = jax.random.fold_in(jax.random.key(config.seed), _STREAM_VI_DRAWS)
    affordable = max(_LEAST_VI_DRAWS, _MAX_VI_NUMBERS // fit.q.mean.size)
    num_draws = min(config.prediction.num_vi_draws, affordable)
    if fit.is_laplace:
        return draw_linearised(problem.posterior, fit, key, num_draws)
    return whole_space(fit.q.mean), np.asarray(fit.q.sample(key, num_draws))


def check_run(problem: Problem, config: RunConfig) -> Folds | None:
    """Refuse settings that do not fit the problem before anything is computed; return the folds to leave out."""
    check_sampler("hmc", problem.posterior, config.hmc)
    check_calibration(problem, config)
    if config.reference.enabled:
        check_sampler("reference", problem.posterior, config.reference_sampler)
    folds = choose_folds(problem, config)
    if folds is not None:
        check_sampler("leave_out", problem.posterior, config.leave_out_sampler)
    return folds


def _predict(
    problem: Problem, subspace: Subspace, draws: np.ndarray, config: RunConfig, *, at: Validation | None = None
) -> Prediction:
    """Predict the validation data, or others."""
    inputs, truth, _ = at or Validation(problem.validation_inputs, problem.validation_targets)
    return prediction.predict_posterior(
        problem.posterior,
        subspace,
        draws,
        inputs,
        quantiles=config.prediction.quantiles,
        observations=config.prediction.observation_quantiles,
        truth=np.asarray(truth),
    )


def first_stage_name(*, is_laplace: bool) -> str:
    """What the first stage is called where people read it."""
    return "Laplace" if is_laplace else VI


def _choose_cases(problem: Problem, predictions: dict[str, Prediction], titles: dict[str, str]) -> tuple[Case, ...]:
    """The functions that the first stage and VI-HMC predict best and worst; of curves, those of the last split."""
    if problem.grid is None and problem.curves is None:
        return ()
    weights = problem.splits[-1].weights if problem.splits else None
    names = (VI, VIHMC) if problem.grid is not None else (VIHMC,)
    errors = {name: relative_l2(predictions[name].mean, problem.validation_targets, weights) for name in names}
    choices: tuple[tuple[str, Callable], ...] = (("best", np.nanargmin), ("worst", np.nanargmax))
    return tuple(
        Case(f"{word} of {titles[name]}", int(choose(error)))
        for word, choose in choices
        for name, error in errors.items()
    )


def _functions(problem: Problem, subspace: Subspace, draws: np.ndarray, cases: tuple[Case, ...]) -> np.ndarray:
    chosen = draws[:: max(1, len(draws) // _NUM_FUNCTIONS)][:_NUM_FUNCTIONS]
    posterior, inputs = problem.posterior, problem.validation_inputs
    if problem.locations is None:
        rows = expected_observations(posterior, subspace, inputs)
        return prediction.evaluate(rows.predict_fn, chosen, rows.rows)
    if problem.grid is None:
        return np.zeros((0,))
    functions = inputs[np.asarray([case.index for case in cases])]
    at_the_end = problem.locations[-len(problem.grid.positions) :]
    rows = posterior.row_wise(subspace, functions, locations=at_the_end)
    values = prediction.evaluate(rows.predict_fn, chosen, rows.rows)
    return np.swapaxes(values, 1, 2) if rows.is_transposed else values


def relative_l2(predicted: Any, truth: Any, weights: np.ndarray | None = None) -> np.ndarray:
    """Relative error of each function: norms over all of its outputs, or those with weight."""
    predicted, truth = np.asarray(predicted), np.asarray(truth)
    axes = tuple(range(1, truth.ndim))
    weights = np.ones(()) if weights is None else weights
    size = np.sqrt(np.sum(weights * np.square(truth), axis=axes))
    error = np.sqrt(np.sum(weights * np.square(predicted - truth), axis=axes))
    return error / np.where(size > 0, size, np.nan)


def rms(values: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def accuracy(
    predicted: Prediction,
    truth: np.ndarray,
    *,
    is_field: bool = False,
    is_class: bool = False,
    weights: np.ndarray | None = None,
) -> dict[str, float]:
    """Error of the mean, width of the error bars, and their coverage.

    Of a field the relative error of each function is also given. Of classes the error is that of their probabilities,
    and bands have no meaning: their scores are in :mod:`vihmc.runs.scoring`.

    Args:
        predicted: The predictions.
        truth: The true values, or observations.
        is_field: Whether each row is a field.
        is_class: Whether the truth is a class, and the mean a probability.
        weights: Weight of each output; equal if not given.
    """

    def average(values: np.ndarray) -> float:
        return float(np.average(values, weights=weights))

    def coverage(quantiles: np.ndarray) -> float:
        return float("nan") if is_class else average((quantiles[0] <= truth) & (truth <= quantiles[-1]))

    mse = average(np.square(predicted.mean - _indicators(truth, predicted.mean)))
    values = {
        "rmse": mse**0.5,
        "mse": mse,
        "crps": float("nan") if predicted.crps is None or is_class else average(predicted.crps),
        "mean_epistemic_std": average(predicted.epistemic_std),
        "mean_total_std": average(predicted.total_std),
        "band_level": float(predicted.levels[-1] - predicted.levels[0]),
        "band_coverage": coverage(predicted.epistemic_quantiles),
    }
    if len(predicted.total_quantiles) and not is_class:
        values["observation_band_coverage"] = coverage(predicted.total_quantiles)
    if is_field:
        values["relative_l2"] = float(np.nanmean(relative_l2(predicted.mean, truth, weights)))
    return values


def _indicators(truth: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Class numbers as indicators of each class, where probabilities of each are predicted; else the truth itself."""
    return truth if truth.ndim == mean.ndim else truth[..., None] == np.arange(mean.shape[-1])


def agreement(result: MethodResult, reference: MethodResult) -> dict[str, float]:
    """Difference from a reference: of the mean in units of the prediction, of the std as a log ratio."""
    ratio = np.log(result.prediction.epistemic_std / reference.prediction.epistemic_std)
    return {
        "rms_mean_error": rms(result.prediction.mean - reference.prediction.mean),
        "rms_log_std_ratio": rms(ratio),
        "mean_log_std_ratio": float(np.mean(ratio)),
    }
