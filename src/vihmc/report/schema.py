"""The schema of ``summary.json``: what a run found, as numbers and sentences.

One model writes the file, reads it, and generates its documentation: ``python -m vihmc.report.schema`` prints the table
of docs/reference/summary.md, and ``Summary.model_json_schema()`` is the JSON schema. Unknown keys are refused.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vihmc.diagnostics.verdict import Level
from vihmc.errors import InputError
from vihmc.report.formats import clean

Number = float | None
"""A number; null in the file if it is not finite."""


class Table(BaseModel):
    """A table of the summary."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, serialize_by_alias=True)


class CapturedVariance(Table):
    """Share of the predictive variance captured by the selected parameters."""

    at: str = Field(description="The inputs: `training`, `validation` or `given` (a file).")
    num_points: int = Field(description="Number of predictions at which it was computed.")
    mean: Number = Field(description="Mean share over these predictions.")
    median: Number = Field(description="Median share.")
    worst: Number = Field(description="Smallest share.")
    left_out: Number = Field(description="Bound on the relative error of any of the variances.")


class FrozenShare(Table):
    """Share of the first-order predictive variance contributed by the frozen parameters."""

    training: Number = Field(description="At the training inputs.")
    validation: Number = Field(description="At the validation inputs.")


class Fit(Table):
    """The first stage: the Gaussian approximation q."""

    elbo: Number = Field(description="Evidence lower bound in nats.")
    elbo_standard_error: Number = Field(description="Monte Carlo standard error of `elbo`.")
    elbo_of_prior: Number = Field(description="Evidence lower bound of q = prior.")
    converged: bool | None = Field(description="Whether the loss stopped changing; null if too short to tell.")
    collapsed: bool = Field(description="Whether the bound is below that of the prior.")
    message: str = Field(description="Both in words, with the setting to change.")
    num_steps: int = Field(description="Optimiser steps.")
    training_mse: Number = Field(description="Mean square error of the mean of q on the training data.")
    validation_mse: Number = Field(description="Mean square error of the mean of q on the validation data.")
    mean: dict[str, Number] | None = Field(None, description="Mean of q by name; up to 200 parameters.")
    std: dict[str, Number] | None = Field(None, description="Standard deviation of q by name; up to 200 parameters.")


class VerdictTable(Table):
    """Whether the error bars can be trusted."""

    level: Level = Field(
        description="`trust`, `trust with exceptions`, `trust the mean, not the tails` or `do not trust`."
    )
    sentence: str = Field(description="The reason, with what to change.")


class ChainsTable(Table):
    """The chains and their cost."""

    kernel: str = Field(description="`hmc` or `nuts`.")
    why: str = Field(description="The sampler in a sentence.")
    num_integrated: int = Field(description="Selected parameters of the output layer that were integrated out.")
    integrator: str = Field(description="`leapfrog`, or `split` over shards of the data.")
    frozen: str = Field(description="Frozen parameters: `mean` of q, or a `perturbed_map` for each chain.")
    num_chains: int = Field(description="Chains used in the results.")
    num_draws: int = Field(description="Retained draws of each chain.")
    one_draw_used_of: int = Field(description="One draw in so many is used for predictions and diagnostics.")
    step_size: Number = Field(description="Leapfrog step.")
    num_integration_steps: Number = Field(description="Mean number of leapfrog steps per draw.")
    acceptance: Number = Field(description="Mean acceptance probability.")
    acceptance_per_chain: list[Number] = Field(description="Mean acceptance probability of each chain.")
    divergences: int = Field(description="Number of divergent transitions.")
    gradients: int = Field(description="Gradient evaluations of all draws together, without warm-up.")
    seconds_per_draw: Number = Field(description="Wall time per transition, without compilation and warm-up.")
    bad_chains: dict[str, str] = Field(description="Number of each chain that failed, and the reason.")
    bad_chains_left_out: bool = Field(description="Whether these chains were left out of all results.")
    mean: dict[str, Number] | None = Field(None, description="Posterior mean by name; up to 200 parameters.")
    std: dict[str, Number] | None = Field(
        None, description="Posterior standard deviation by name; up to 200 parameters."
    )


class Predictive(Table):
    """Accuracy of the predictions at the validation inputs."""

    rmse: Number = Field(
        description="Root mean square error of the mean prediction against the validation targets; of classes, of "
        "their probabilities."
    )
    mse: Number = Field(description="Mean square error of the mean prediction.")
    crps: Number = Field(
        description="Continuous ranked probability score of the predictive distribution of an observation, noise "
        "included, in output units; lower is better. Null for classes, as are the bands."
    )
    mean_epistemic_std: Number = Field(description="Mean standard deviation of the model output, without noise.")
    mean_total_std: Number = Field(description="Mean standard deviation of a new observation, noise included.")
    band_level: Number = Field(description="Level of the widest credible band.")
    band_coverage: Number = Field(description="Share of validation targets inside the credible band.")
    observation_band_coverage: Number = Field(
        None, description="The same for the band of a new observation, noise included."
    )
    relative_l2: Number = Field(None, description="Operators only: mean over functions of ‖error‖ / ‖truth‖.")


class ScoresTable(Table):
    """Scores of a predictive distribution on the validation data, in the units of the data file."""

    log_predictive_density: Number = Field(
        None, description="Mean log density of a value under the predictive distribution, in nats; higher is better."
    )
    crps: Number = Field(None, description="Mean continuous ranked probability score, noise included; lower is better.")
    rmse: Number = Field(None, description="Root mean square error of the predictive mean.")
    coverage: dict[str, Number] | None = Field(
        None, description="Share of the values inside the central bands of 50, 80 and 95 %, noise included."
    )
    width: dict[str, Number] | None = Field(None, description="Mean widths of these bands.")
    accuracy: Number = Field(None, description="Classes only: share of rows whose most probable class was observed.")
    log_score: Number = Field(None, description="Classes only: mean log probability of the observed class, in nats.")
    brier: Number = Field(None, description="Classes only: mean squared error of the probabilities, from 0 to 2.")
    calibration_error: Number = Field(
        None, description="Classes only: expected calibration error, in 15 bins of equally many rows."
    )
    outputs: dict[str, "ScoresTable"] | None = Field(
        None, description="The same for each target by name, where there are several; not for fields of an operator."
    )


class ScaleTable(Table):
    """The posterior of a learnt scale, in the units of the data."""

    mean: Number = Field(description="Posterior mean.")
    std: Number = Field(description="Posterior standard deviation.")
    low: Number = Field(alias="q2.5", description="2.5 % quantile.")
    median: Number = Field(alias="q50", description="Median.")
    high: Number = Field(alias="q97.5", description="97.5 % quantile.")
    prior_median: Number = Field(description="Median of its half-Cauchy prior.")
    rhat: Number = Field(description="Rank-normalised split R-hat.")
    ess_bulk: Number = Field(description="Bulk effective sample size.")
    determined: bool = Field(
        description="Whether the data determine it: false if the posterior std of its logarithm is above 1, or the "
        "central 95 % span more than a factor of 30."
    )


class PredictiveInUnits(Predictive):
    """Accuracy, also in the units of the data."""

    rmse_in_units: Number = Field(description="`rmse` in `units`.")
    crps_in_units: Number = Field(description="`crps` in `units`.")
    mean_epistemic_std_in_units: Number = Field(description="`mean_epistemic_std` in `units`.")


class Baseline(Table):
    """Error of a simpler predictor on the same data, to be beaten."""

    rmse: Number = Field(description="Root mean square error.")
    rmse_in_units: Number = Field(description="Root mean square error in `units`.")


class PartTable(Table):
    """Accuracy on one part of the data."""

    title: str = Field(description="What the part is.")
    num_values: Number = Field(description="Number of values evaluated.")
    floors: dict[str, Baseline] = Field(description="Baselines by name.")
    methods: dict[str, PredictiveInUnits] = Field(description="Accuracy by method (`VI`, `VI-HMC`, `HMC`).")


class PlaceTable(Table):
    """Where a prediction is."""

    title: str = Field(description="In words.")
    index: int = Field(description="Index of the validation input or function.")
    value: tuple[Number, ...] | None = Field(description="Scalar input, or location of an operator's output.")


class WeightDiagnostics(Table):
    """Convergence of the sampled parameters themselves: of up to 256, evenly spread."""

    rhat_max: Number = Field(description="Largest R-hat.")
    ess_bulk_min: Number = Field(description="Smallest bulk effective sample size.")
    ess_tail_min: Number = Field(description="Smallest tail effective sample size.")
    mcse_mean_max: Number = Field(description="Largest Monte Carlo standard error of a mean.")


class Diagnostics(Table):
    """Convergence of the chains, measured on the predictions; of an operator, on up to 16 × 16 of them."""

    rhat_max: Number = Field(description="Largest rank-normalised split R-hat over the predictions.")
    rhat_median: Number = Field(description="Median R-hat.")
    ess_bulk_min: Number = Field(description="Smallest bulk effective sample size.")
    ess_bulk_median: Number = Field(description="Median bulk effective sample size.")
    ess_tail_min: Number = Field(description="Smallest tail effective sample size.")
    ess_tail_median: Number = Field(description="Median tail effective sample size.")
    mcse_mean_max: Number = Field(description="Largest Monte Carlo standard error of a mean prediction.")
    mcse_relative_max: Number = Field(description="Largest Monte Carlo standard error over posterior std.")
    slowest: PlaceTable = Field(description="The prediction with the smallest effective sample size.")
    ess_bulk_median_per_second: Number = Field(description="Median bulk ESS per second, without warm-up.")
    ess_bulk_median_per_step: Number = Field(description="Median bulk ESS per leapfrog step, without warm-up.")
    divergent_share: Number = Field(description="Share of divergent draws.")
    longest_share: Number = Field(description="Share of draws whose trajectory reached the largest allowed length.")
    ebfmi_min: Number = Field(description="Smallest E-BFMI: squared change of energy over its variance.")
    ebfmi_per_chain: list[Number] = Field(description="E-BFMI of each chain.")
    modes: list[list[int]] = Field(description="Groups of chains that agree on the predictions, largest first.")
    modes_distance: Number = Field(description="Largest distance of the first group to another, in within-chain std.")
    modes_furthest: PlaceTable | None = Field(description="Where that distance is attained; null for one group.")
    fit_errors: list[Number] | None = Field(
        None, description="Several fits only: root mean square error of each on the training data."
    )
    between_fits_share: Number = Field(
        None, description="Several fits only: share of the variance of the assessed predictions that is between fits."
    )
    weights: WeightDiagnostics = Field(description="Convergence of up to 256 of the sampled parameters.")


class ReferenceTable(ChainsTable):
    """HMC on all parameters."""

    verdict: VerdictTable = Field(description="Whether its chains can be trusted.")
    predictive: Predictive = Field(description="Accuracy of its predictions.")
    diagnostics: Diagnostics = Field(description="Convergence of its chains.")


class Agreement(Table):
    """Distance to HMC on all parameters, over the validation inputs."""

    rms_mean_error: Number = Field(description="Root mean square difference of the mean predictions.")
    rms_log_std_ratio: Number = Field(description="Root mean square log ratio of the predictive standard deviations.")
    mean_log_std_ratio: Number = Field(description="Mean log ratio of the predictive standard deviations.")


class AgreementTable(Table):
    """Distance of both approximations to HMC on all parameters."""

    vi: Agreement = Field(description="Of VI.")
    vihmc: Agreement = Field(description="Of VI-HMC.")


class FunctionsTable(Table):
    """Predicted standard deviation and actual error, function by function."""

    num: int = Field(description="Held-out functions.")
    correlation: Number = Field(
        description="Of the logarithms of the root mean square predicted total std and of the root mean square error "
        "of each function; null if one of them does not vary."
    )
    error_over_std: Number = Field(
        description="Root mean square error over root mean square predicted total std of all functions; 1 if right."
    )


class GroupTable(Table):
    """Coverage of a group of calibration rows or functions."""

    title: str = Field(description="Which.")
    count: int = Field(description="Rows or functions.")
    level: Number = Field(description="Share that should be inside.")
    posterior: Number = Field(description="Share inside the posterior's band.")
    calibrated: Number = Field(description="Share inside the band that the other rows are calibrated to.")


class CalibrationTable(Table):
    """Bands with a guarantee, from held-out data ([calibration](../guides/calibration.md))."""

    factor: list[Number] = Field(
        description="By which the posterior's bands are widened, one per target, or one for fields; 1 if they hold by "
        "themselves."
    )
    level: float = Field(description="Probability with which a new row, or function, is held.")
    share: float | None = Field(description="Of fields, the share of locations that must be inside; null for tables.")
    shape: str = Field(description="`std` or `quantiles`: what the bands are made of.")
    num_cases: int = Field(description="Calibration rows or functions.")
    guarantee: Number = Field(
        description="Probability with which a new row or function is held: at least this, ⌈(n+1) level⌉/(n+1)."
    )
    posterior_coverage: list[Number] = Field(
        description="Share of the calibration rows or functions that the posterior's bands hold by themselves."
    )
    largest_epistemic_std: list[Number] = Field(
        description="Of the calibration inputs; where new inputs exceed it, the guarantee does not hold."
    )
    groups: list[GroupTable] = Field(description="Coverage by predicted width, by target or by region.")
    notes: list[str] = Field(description="Sentences to read before use.")
    sentence: str = Field(description="The outcome in words.")
    data: dict[str, str] | None = Field(
        None, description="The file of held-out data and its checksum; null if they are a share of the run's own."
    )


class Summary(Table):
    """The outcome of a run."""

    problem: str = Field(description="Name of the problem.")
    preset: str = Field(description="The preset that the settings started from.")
    objective: str = Field(description="Objective of the VI fit: `elbo` or `published`.")
    kl_weight: float = Field(description="Weight of the KL term; below 1, q approximates a tempered posterior.")
    noise_std: float | list[float] | None = Field(
        description="Known std of the observation noise, one or one per output; null if it was learnt."
    )
    prior_std: Number = Field(description="Prior standard deviation of the weights, if the problem has a single one.")
    threshold: float = Field(description="Share to capture by the selected parameters.")
    seed: int = Field(description="Random seed.")
    fit_from: str | None = Field(None, description="The run whose fit was used, if one was.")
    num_params: int = Field(description="Number of parameters.")
    num_selected: int = Field(description="Number of selected parameters.")
    first_stage: str = Field(description="`vi` or `laplace`.")
    rule: str = Field(description="The rule by which parameters were selected.")
    captured_share: Number = Field(description="Share of the total sensitivity Σ S² held by the selected parameters.")
    captured_variance: CapturedVariance | None = Field(
        description="Share of the predictive variance captured by the selected parameters under the Gauss–Newton "
        "posterior ([selection](../evidence/selection.md)); null if not computed."
    )
    frozen_share: FrozenShare = Field(
        description="Share of the first-order predictive variance contributed by the frozen parameters; the error bars "
        "omit it if `hmc.frozen` is `mean`."
    )
    selected: list[str] | None = Field(description="Names of the selected parameters; null for large models.")
    selected_per_leaf: dict[str, tuple[int, int]] = Field(
        description="Number of selected parameters and of all parameters, for every array of the model."
    )
    vi: Fit = Field(description="The first stage.")
    verdict: VerdictTable = Field(
        description="Whether the VI-HMC error bars can be trusted: whether the chains have converged, and no yardstick "
        "in `scores` predicts the validation data better."
    )
    hmc: ChainsTable = Field(description="The VI-HMC chains and their cost.")
    noise: str = Field(description="What was assumed or learnt about the observation noise, in a sentence.")
    scales: dict[str, ScaleTable] = Field(
        description="Posterior of each learnt scale by name, from the VI-HMC chains; empty if all were given."
    )
    scores: dict[str, ScoresTable] = Field(
        description="Scores on the validation data of `vihmc`, of `vi` or `laplace`, of `hmc` if it was run, and of "
        "yardsticks from the same training data: `map_residual` (the MAP with its training residual), `ridge` (ridge "
        "regression) and `constant` (mean and std of the targets); of classes, `map` and `constant` (frequencies)."
    )
    predictive: Predictive = Field(description="Accuracy of VI-HMC at the validation inputs.")
    predictive_vi: Predictive = Field(description="Accuracy of VI alone.")
    functions: FunctionsTable | None = Field(
        None, description="Operators only: predicted std and actual error of VI-HMC, function by function."
    )
    diagnostics: Diagnostics = Field(
        description="Convergence of the VI-HMC chains on the predictions; of an operator, on up to 16 × 16 of them."
    )
    calibration: CalibrationTable | None = Field(
        None, description="Bands with a guarantee, if the run was calibrated on held-out data."
    )
    reference: ReferenceTable | None = Field(None, description="HMC on all parameters, if it was run.")
    agreement_with_reference: AgreementTable | None = Field(
        None, description="Distance of VI and VI-HMC to HMC on all parameters, if it was run."
    )
    published: dict[str, Any] | None = Field(None, description="Published results on this problem, if there are any.")
    reports: dict[str, PartTable] | None = Field(
        None, description="Accuracy on each part of the data by name; `left_out` are training inputs left out of a fit."
    )
    units: str | None = Field(None, description="Units of the keys that end in `_in_units`.")
    data: dict[str, Any] | None = Field(None, description="Your own data: files, checksums, split, scaling, noise.")
    notice: str | None = Field(None, description="A sentence about the data that must be read with the numbers.")
    peak_memory_gb: Number = Field(description="Largest resident memory of the process in GB.")
    peak_memory_gb_after: dict[str, Number] = Field(description="The same at the end of each stage.")
    seconds: dict[str, Number] = Field(description="Wall time of each stage, compilation included.")
    versions: dict[str, str] = Field(description="Versions of the packages.")
    backend: str = Field(description="Device and floating-point format.")


def read_summary(file: Path) -> Summary:
    """Read ``summary.json``.

    Raises:
        InputError: If the file cannot be read, is damaged, or has another schema.
    """
    try:
        return Summary.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InputError(f"`{clean(str(file))}` must be a file that can be read, got: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = clean(".".join(map(str, first["loc"])))
        raise InputError(
            f"`{clean(str(file))}` must be the summary of a run of this version, got: {key + ': ' if key else ''}"
            f"{clean(first['msg'])[:200].rstrip('.').lower()}."
        ) from None


def summary_table() -> str:
    """The keys of the summary and their meanings as a Markdown table."""
    rows = (f"| `{key}` | {meaning} |" for key, meaning in _rows(Summary, "", {}))
    return "\n".join(("| key | meaning |", "|---|---|", *rows))


def _rows(model: type[BaseModel], prefix: str, explained: dict[type, str], skip: Any = ()) -> Iterator[tuple[str, str]]:
    """The keys of a table and of the tables inside it; keys that were explained before are referred to."""
    for name, field in model.model_fields.items():
        if name in skip:
            continue
        key, meaning = f"{prefix}{field.alias or name}", field.description or ""
        inner, is_named = _table_of(field.annotation)
        if inner is None:
            yield key, meaning
        elif inner in explained:
            yield key, f"{meaning} Keys as in `{explained[inner]}`."
        else:
            base = next((known for known in explained if issubclass(inner, known)), Table)
            yield key, meaning if base is Table else f"{meaning} Keys as in `{explained[base]}`, and:"
            explained[inner] = key
            yield from _rows(inner, f"{key}.NAME." if is_named else f"{key}.", explained, base.model_fields)


def _table_of(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The table that a field holds, and whether the field holds several by name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for inner in get_args(annotation):
        found, is_named = _table_of(inner)
        if found is not None:
            return found, is_named or get_origin(annotation) is dict
    return None, False


if __name__ == "__main__":
    print(summary_table())
