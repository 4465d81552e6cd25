"""The summary of a run, from its results (:mod:`vihmc.report.schema` says what each key means)."""

import json
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from vihmc.config.method import SamplerConfig
from vihmc.data import Problem
from vihmc.devices import peak_memory_gb
from vihmc.report.schema import Summary
from vihmc.runs.assessment import ChainsResult
from vihmc.runs.calibrated import as_table as calibration_table
from vihmc.runs.evaluation import HMC, VI, VIHMC, RunResult, accuracy, agreement
from vihmc.runs.held_out_functions import errors_of_functions
from vihmc.runs.learnt_scales import LearntScale, describe_noise
from vihmc.runs.scoring import Scored, is_of_classes
from vihmc.samplers.third_stage import Sampled

SMALL_MODEL = 200
"""Up to this many parameters the summary lists the mean and std of each by name."""


def summarise(result: RunResult) -> dict[str, Any]:
    """Return the summary of a run as plain values that follow :class:`vihmc.report.schema.Summary`."""
    # Validated as JSON, which is how it is read back.
    return Summary.model_validate_json(json.dumps(_collect(result))).model_dump(mode="json", exclude_unset=True)


def _collect(result: RunResult) -> dict[str, Any]:
    config, problem, inference = result.config, result.problem, result.inference
    names, chains = problem.param_names, _chains_of(result, VIHMC)
    scores, selected = inference.selected.scores.values, inference.selected.indices
    selection = result.selection

    def accurate(name: str) -> dict[str, float]:
        truth, is_field = np.asarray(problem.validation_targets), problem.locations is not None
        is_class, weights = is_of_classes(problem.posterior.likelihood), problem.validation_weights
        predicted = result.methods[name].prediction
        return accuracy(predicted, truth, is_field=is_field, is_class=is_class, weights=weights)

    summary: dict[str, Any] = {
        "problem": problem.name,
        "preset": config.preset,
        "objective": config.vi.objective,
        "kl_weight": config.vi.kl_weight,
        "noise_std": getattr(config.problem, "noise_std", None),
        "prior_std": getattr(config.problem, "prior_std", None),
        "threshold": selection.threshold,
        "seed": config.seed,
        "num_params": problem.posterior.num_params,
        "num_selected": len(inference.selected.indices),
        "first_stage": "laplace" if inference.fit.is_laplace else "vi",
        "rule": selection.rule,
        "captured_share": float(scores[selected].sum() / scores.sum()),
        "captured_variance": _captured(result),
        "frozen_share": result.frozen_share,
        "selected": [names[index] for index in selected.tolist()] if len(names) <= SMALL_MODEL else None,
        "selected_per_leaf": _selected_per_leaf(problem, np.asarray(selected)),
        "vi": _vi(result, names),
        "verdict": chains.verdict._asdict(),
        "hmc": _chains(chains, config.hmc, names),
        "noise": describe_noise(problem, result.scales),
        "scales": {name: _scale(scale) for name, scale in result.scales.items()},
        "scores": _scores(result),
        "predictive": accurate(VIHMC),
        "predictive_vi": accurate(VI),
        "diagnostics": describe_diagnostics(chains),
        "peak_memory_gb": peak_memory_gb(),
        "peak_memory_gb_after": result.peak_memory_gb,
        "seconds": result.seconds,
        "versions": {name: version(name) for name in ("vihmc", "jax", "blackjax", "optax", "arviz-stats")},
        "backend": f"{jax.default_backend()}, {config.precision}",
    }
    optional = {"published": problem.published, "data": problem.data_description, "notice": problem.notice}
    summary |= {name: value for name, value in optional.items() if value}
    if problem.locations is not None:
        summary["functions"] = _functions(result)
    if result.calibration is not None:
        summary["calibration"] = calibration_table(result.calibration)
    if problem.splits:
        summary["reports"] = _reports(result)
        summary["units"] = "units of the targets" if problem.units is None else problem.units.name
    if HMC in result.methods:
        reference, its_chains = result.methods[HMC], _chains_of(result, HMC)
        summary["reference"] = {
            **_chains(its_chains, config.reference_sampler, names),
            "verdict": its_chains.verdict._asdict(),
            "predictive": accurate(HMC),
            "diagnostics": describe_diagnostics(its_chains),
        }
        pairs = (("vi", VI), ("vihmc", VIHMC))
        summary["agreement_with_reference"] = {key: agreement(result.methods[name], reference) for key, name in pairs}
    return summary


def _scale(scale: LearntScale) -> dict[str, Any]:
    """A learnt scale, under the names of the summary."""
    names = {"low": "q2.5", "median": "q50", "high": "q97.5", "is_determined": "determined"}
    return {names.get(name, name): value for name, value in scale._asdict().items()}


def _scores(result: RunResult) -> dict[str, Any]:
    """Scores of every method and yardstick, under the names of the summary."""
    names = {VIHMC: "vihmc", VI: "laplace" if result.inference.fit.is_laplace else "vi", HMC: "hmc"}
    yardsticks = [name for name in result.scores if name not in names]
    ordered = [name for name in names if name in result.scores] + yardsticks
    return {names.get(name, name): _as_table(result.scores[name]) for name in ordered}


def _as_table(scored: Scored) -> dict[str, Any]:
    outputs = {name: one.as_dict() for name, one in scored.outputs.items()}
    return scored.overall.as_dict() | ({"outputs": outputs} if outputs else {})


def _captured(result: RunResult) -> dict[str, Any] | None:
    """Share of the predictive variance that the selected parameters capture, and at which inputs."""
    captured, selection = result.inference.selected.captured, result.config.selection
    if captured is None:
        return None
    return {
        "at": "given" if selection.target_inputs_file is not None else selection.target_inputs,
        "num_points": len(captured.shares),
        "mean": captured.mean,
        "median": captured.median,
        "worst": captured.worst,
        "left_out": captured.left_out,
    }


def _functions(result: RunResult) -> dict[str, Any]:
    """How the predicted std of each held-out function compares with its error."""
    found = errors_of_functions(result.problem, result.methods[VIHMC].prediction)
    return {"num": len(found.error), "correlation": found.correlation, "error_over_std": found.ratio}


def _reports(result: RunResult) -> dict[str, Any]:
    """Accuracy of every method on every split, and on training functions that were left out; with baselines."""
    problem, left_out = result.problem, result.left_out
    scale = 1.0 if problem.units is None else problem.units.scale
    truth = np.asarray(problem.validation_targets)
    predictions = {name: method.prediction for name, method in result.methods.items()}
    parts = {split.name: (split.title, truth, split.weights, split.floors, predictions) for split in problem.splits}
    if left_out is not None:
        number, weights, floors = left_out.folds
        title = f"training inputs, predicted by {int(number.max()) + 1} fits that each left some of them out"
        targets = np.asarray(problem.posterior.targets)
        parts["left_out"] = (title, targets, weights, floors, {VI: left_out.vi, VIHMC: left_out.vihmc})
    return {
        name: {
            "title": title,
            "num_values": float(np.sum(weights)),
            "floors": {kind: {"rmse": rmse, "rmse_in_units": rmse * scale} for kind, rmse in floors.items()},
            "methods": {
                method: _in_units(accuracy(predicted, targets, is_field=True, weights=weights), scale)
                for method, predicted in made.items()
            },
        }
        for name, (title, targets, weights, floors, made) in parts.items()
    }


def _in_units(values: dict[str, float], scale: float) -> dict[str, float]:
    """Also in the units of the data."""
    return values | {f"{name}_in_units": values[name] * scale for name in ("rmse", "crps", "mean_epistemic_std")}


def _selected_per_leaf(problem: Problem, selected: np.ndarray) -> dict[str, tuple[int, int]]:
    """Number of selected and of all parameters in every array of the model."""
    layout = problem.posterior.layout
    counts = np.diff(np.searchsorted(selected, layout.offsets)).tolist()
    return dict(zip(layout.leaf_names, zip(counts, layout.leaf_sizes, strict=True), strict=True))


def _vi(result: RunResult, names: tuple[str, ...]) -> dict[str, Any]:
    fitted = result.inference.fit
    values: dict[str, Any] = {
        "elbo": fitted.elbo.value,
        "elbo_standard_error": fitted.elbo.standard_error,
        "elbo_of_prior": fitted.elbo_of_prior.value,
        "converged": fitted.converged,
        "collapsed": fitted.collapsed,
        "message": fitted.message,
        "num_steps": int(fitted.history.step[-1]),
        "training_mse": float(fitted.history.training_mse[-1]),
        "validation_mse": float(fitted.history.validation_mse[-1]),
    }
    if len(names) <= SMALL_MODEL:
        values |= _by_name(names, np.asarray(fitted.q.mean), np.asarray(fitted.q.std))
    return values


def _chains(found: ChainsResult, settings: SamplerConfig, names: tuple[str, ...]) -> dict[str, Any]:
    sampled = found.sampled
    chains = sampled.chains
    cost = sampled.all_chains
    totals, num_values = chains.totals, chains.num_draws * chains.num_chains
    gradients = int(cost.totals.num_gradients.sum())
    if settings.num_shards is not None:
        # A step of the split integrator kicks twice with every shard but the last.
        gradients = round(gradients * (2 * settings.num_shards - 1) / settings.num_shards)
    values: dict[str, Any] = {
        "kernel": settings.kernel,
        "why": _why(settings, sampled),
        "num_integrated": sampled.num_integrated,
        "integrator": "leapfrog" if settings.num_shards is None else "split",
        "frozen": settings.frozen if sampled.has_targets else "mean",
        "num_chains": chains.num_chains,
        "num_draws": chains.num_draws,
        "one_draw_used_of": chains.every,
        "step_size": float(sampled.tuning.step_size),
        "num_integration_steps": float(totals.num_gradients.sum()) / num_values / settings.thin,
        "acceptance": float(totals.acceptance_rate.sum()) / num_values,
        "acceptance_per_chain": found.transitions.acceptance.tolist(),
        "divergences": int(totals.num_divergent.sum()),
        "gradients": gradients,
        "seconds_per_draw": cost.seconds / (cost.num_chains * cost.num_draws) / settings.thin,
        "bad_chains": {str(chain): reason for chain, reason in sampled.bad_chains.items()},
        "bad_chains_left_out": sampled.dropped,
    }
    if len(names) <= SMALL_MODEL:
        own, positions = [names[index] for index in sampled.subspace.selected.tolist()], sampled.selected_positions
        values |= _by_name(own, positions.mean(axis=(0, 1)), positions.std(axis=(0, 1)))
    return values


KERNEL_TITLES = {"hmc": "HMC", "nuts": "NUTS"}


def _why(settings: SamplerConfig, sampled: Sampled) -> str:
    """The sampler in a sentence."""
    parts = [KERNEL_TITLES[settings.kernel]]
    if settings.num_shards is not None:
        parts.append(f"over {settings.num_shards} shards of the data, so that one at a time is in memory")
    if settings.length_jitter > 0:
        parts.append("with a random number of leapfrog steps")
    if sampled.num_integrated:
        parts.append(f"the output layer ({sampled.num_integrated} selected parameters) integrated out")
    if sampled.has_targets and settings.frozen == "perturbed_map":
        parts.append("the frozen parameters of each chain at a perturbed MAP")
    if sampled.has_targets and settings.frozen == "mean":
        parts.append(f"the chains divided over {len(set(sampled.targets or ()))} independent fits")
    if settings.chains_at_once == "all" and sampled.chains.num_chains > 1:
        parts.append(f"{sampled.all_chains.num_chains} chains in parallel")
    return ", ".join(parts) + "."


def describe_fits(found: ChainsResult) -> dict[str, Any]:
    """Several fits beside each other, under the names of the summary."""
    return {"fit_errors": list(found.fits), "between_fits_share": found.between_share}


def describe_diagnostics(found: ChainsResult) -> dict[str, Any]:
    """Convergence of the chains of a method, under the names of the summary."""
    cost = found.sampled.all_chains
    predictions, weights, transitions = found.convergence, found.weight_convergence, found.transitions
    median_ess = float(np.median(predictions.ess_bulk))
    return {
        "rhat_max": float(predictions.rhat.max()),
        "rhat_median": float(np.median(predictions.rhat)),
        "ess_bulk_min": float(predictions.ess_bulk.min()),
        "ess_bulk_median": median_ess,
        "ess_tail_min": float(predictions.ess_tail.min()),
        "ess_tail_median": float(np.median(predictions.ess_tail)),
        "mcse_mean_max": float(predictions.mcse_mean.max()),
        "mcse_relative_max": float(predictions.mcse_relative.max()),
        "slowest": found.slowest._asdict(),
        "ess_bulk_median_per_second": median_ess / cost.seconds,
        "ess_bulk_median_per_step": median_ess / float(cost.totals.num_gradients.sum()),
        "divergent_share": float(transitions.divergent_share.mean()),
        "longest_share": float(transitions.longest_share.mean()),
        "ebfmi_min": float(transitions.ebfmi.min()),
        "ebfmi_per_chain": transitions.ebfmi.tolist(),
        "modes": found.modes.groups,
        "modes_distance": found.modes.distance,
        "modes_furthest": found.furthest._asdict() if len(found.modes.groups) > 1 else None,
        **({} if found.between_share is None else describe_fits(found)),
        "weights": {
            "rhat_max": float(weights.rhat.max()),
            "ess_bulk_min": float(weights.ess_bulk.min()),
            "ess_tail_min": float(weights.ess_tail.min()),
            "mcse_mean_max": float(weights.mcse_mean.max()),
        },
    }


def _chains_of(result: RunResult, method: str) -> ChainsResult:
    found = result.methods[method].chains
    assert found is not None
    return found


def _by_name(names: Any, mean: np.ndarray, std: np.ndarray) -> dict[str, dict[str, float]]:
    return {
        "mean": dict(zip(names, mean.tolist(), strict=True)),
        "std": dict(zip(names, std.tolist(), strict=True)),
    }
