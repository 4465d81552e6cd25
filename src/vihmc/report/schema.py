"""The schema of ``summary.json``: what a run found, as numbers and sentences.

One model writes the file, reads it, and generates its documentation: ``python -m vihmc.report.schema`` prints the table
of docs/summary.md, and ``Summary.model_json_schema()`` is the JSON schema. Unknown keys are refused.
"""

from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from vihmc.diagnostics.verdict import Level
from vihmc.errors import InputError
from vihmc.report.formats import clean

Number = float | None
"""A number; null in the file if it is not finite."""


class Table(BaseModel):
    """A table of the summary."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class CapturedVariance(Table):
    """Share of the predictive variance captured by the selected parameters."""

    at: str
    """The inputs: `training`, `validation` or `given` (a file)."""
    num_points: int
    """Number of predictions at which it was computed."""
    mean: Number
    """Mean share over these predictions."""
    median: Number
    """Median share."""
    worst: Number
    """Smallest share."""
    left_out: Number
    """Bound on the relative error of any of the variances."""


class FrozenShare(Table):
    """Share of the first-order predictive variance contributed by the frozen parameters."""

    training: Number
    """At the training inputs."""
    validation: Number
    """At the validation inputs."""


class Fit(Table):
    """The first stage: the Gaussian approximation q."""

    elbo: Number
    """Evidence lower bound in nats."""
    elbo_standard_error: Number
    """Monte Carlo standard error of `elbo`."""
    elbo_of_prior: Number
    """Evidence lower bound of q = prior."""
    converged: bool | None
    """Whether the loss had stopped changing; null if the fit was too short to tell."""
    collapsed: bool
    """Whether the bound is below that of the prior."""
    message: str
    """Both in words, with the setting to change."""
    num_steps: int
    """Optimiser steps."""
    training_mse: Number
    """Mean square error of the mean of q on the training data."""
    validation_mse: Number
    """Mean square error of the mean of q on the validation data."""
    mean: dict[str, Number] | None = None
    """Mean of q by parameter name; models of up to 200 parameters."""
    std: dict[str, Number] | None = None
    """Standard deviation of q by parameter name; models of up to 200 parameters."""


class VerdictTable(Table):
    """Whether the chains can be trusted."""

    level: Level
    """`trust`, `trust the mean, not the tails` or `do not trust`."""
    sentence: str
    """The reason, with the setting to change."""


class ChainsTable(Table):
    """The chains and their cost."""

    kernel: str
    """`hmc` or `nuts`."""
    why: str
    """The sampler in a sentence."""
    num_integrated: int
    """Selected parameters of the output layer that were integrated out, and drawn afterwards."""
    integrator: str
    """`leapfrog`, or `split` over shards of the data."""
    frozen: str
    """Values of the frozen parameters: `mean` of q, or a `perturbed_map` for each chain."""
    num_chains: int
    """Chains used in the results."""
    num_draws: int
    """Retained draws of each chain."""
    one_draw_used_of: int
    """Thinning of very long chains for predictions and diagnostics: one draw in so many; sums are over all draws."""
    step_size: Number
    """Leapfrog step."""
    num_integration_steps: Number
    """Mean number of leapfrog steps per draw."""
    acceptance: Number
    """Mean acceptance probability."""
    acceptance_per_chain: list[Number]
    """Mean acceptance probability of each chain."""
    divergences: int
    """Number of divergent transitions."""
    gradients: int
    """Gradient evaluations of all draws together, without warm-up."""
    seconds_per_draw: Number
    """Wall time per transition over all chains, without compilation and warm-up."""
    bad_chains: dict[str, str]
    """Number of each chain that failed, and the reason."""
    bad_chains_left_out: bool
    """Whether these chains were left out of all results."""
    mean: dict[str, Number] | None = None
    """Posterior mean of the sampled parameters by name; models of up to 200 parameters."""
    std: dict[str, Number] | None = None
    """Posterior standard deviation of the sampled parameters by name; models of up to 200 parameters."""


class Predictive(Table):
    """Accuracy of the predictions at the validation inputs."""

    rmse: Number
    """Root mean square error of the mean prediction against the validation targets."""
    mse: Number
    """Mean square error of the mean prediction."""
    crps: Number
    """Continuous ranked probability score, mean over outputs, in units of the output; lower is better."""
    mean_epistemic_std: Number
    """Mean standard deviation of the model output, without noise."""
    mean_total_std: Number
    """Mean standard deviation of a new observation, noise included."""
    band_level: Number
    """Level of the widest credible band."""
    band_coverage: Number
    """Share of validation targets inside the credible band of the model output."""
    observation_band_coverage: Number = None
    """Share of validation targets inside the predictive band of a new observation, noise included; if computed."""
    relative_l2: Number = None
    """Operators only: mean over functions of ‖error‖ / ‖truth‖."""


class PredictiveInUnits(Predictive):
    """Accuracy, also in the units of the data."""

    rmse_in_units: Number
    """`rmse` in `units`."""
    crps_in_units: Number
    """`crps` in `units`."""
    mean_epistemic_std_in_units: Number
    """`mean_epistemic_std` in `units`."""


class Baseline(Table):
    """Error of a simpler predictor on the same data, to be beaten."""

    rmse: Number
    """Root mean square error."""
    rmse_in_units: Number
    """Root mean square error in `units`."""


class PartTable(Table):
    """Accuracy on one part of the data."""

    title: str
    """What the part is."""
    num_values: Number
    """Number of values evaluated."""
    floors: dict[str, Baseline]
    """Baselines by name."""
    methods: dict[str, PredictiveInUnits]
    """Accuracy by method (`VI`, `VI-HMC`, `HMC`)."""


class PlaceTable(Table):
    """Where a prediction is."""

    title: str
    """In words."""
    index: int
    """Index of the validation input or function."""
    value: tuple[Number, ...] | None
    """Value of a scalar input, or location of an operator's output."""


class WeightDiagnostics(Table):
    """Convergence of the sampled parameters themselves: of up to 256, evenly spread."""

    rhat_max: Number
    """Largest R-hat."""
    ess_bulk_min: Number
    """Smallest bulk effective sample size."""
    ess_tail_min: Number
    """Smallest tail effective sample size."""
    mcse_mean_max: Number
    """Largest Monte Carlo standard error of a mean."""


class Diagnostics(Table):
    """Convergence of the chains, measured on the predictions; of an operator, on up to 16 × 16 of them."""

    rhat_max: Number
    """Largest rank-normalised split R-hat over the predictions."""
    rhat_median: Number
    """Median R-hat."""
    ess_bulk_min: Number
    """Smallest bulk effective sample size."""
    ess_bulk_median: Number
    """Median bulk effective sample size."""
    ess_tail_min: Number
    """Smallest tail effective sample size."""
    ess_tail_median: Number
    """Median tail effective sample size."""
    mcse_mean_max: Number
    """Largest Monte Carlo standard error of a mean prediction."""
    mcse_relative_max: Number
    """Largest Monte Carlo standard error in units of the posterior standard deviation of the prediction."""
    slowest: PlaceTable
    """The prediction with the smallest effective sample size."""
    ess_bulk_median_per_second: Number
    """Median bulk effective sample size per second of sampling, without warm-up."""
    ess_bulk_median_per_step: Number
    """Median bulk effective sample size per leapfrog step, without warm-up."""
    divergent_share: Number
    """Share of divergent draws."""
    longest_share: Number
    """Share of draws whose trajectory reached the largest allowed length."""
    ebfmi_min: Number
    """Smallest E-BFMI: expected squared change of energy in a transition over the variance of the energy."""
    ebfmi_per_chain: list[Number]
    """E-BFMI of each chain."""
    modes: list[list[int]]
    """Groups of chains that agree on the predictions, largest first; chains count from 0."""
    modes_distance: Number
    """Largest distance of the first group to another, in within-chain standard deviations; 0 for one group."""
    modes_furthest: PlaceTable | None
    """Where that distance is attained; null for one group."""
    weights: WeightDiagnostics
    """Convergence of the sampled parameters: of up to 256, evenly spread."""


class ReferenceTable(ChainsTable):
    """HMC on all parameters."""

    verdict: VerdictTable
    """Whether its chains can be trusted."""
    predictive: Predictive
    """Accuracy of its predictions."""
    diagnostics: Diagnostics
    """Convergence of its chains."""


class Agreement(Table):
    """Distance to HMC on all parameters, over the validation inputs."""

    rms_mean_error: Number
    """Root mean square difference of the mean predictions."""
    rms_log_std_ratio: Number
    """Root mean square log ratio of the predictive standard deviations."""
    mean_log_std_ratio: Number
    """Mean log ratio of the predictive standard deviations."""


class AgreementTable(Table):
    """Distance of both approximations to HMC on all parameters."""

    vi: Agreement
    """Of VI."""
    vihmc: Agreement
    """Of VI-HMC."""


class Summary(Table):
    """The outcome of a run."""

    problem: str
    """Name of the problem."""
    preset: str
    """The preset that the settings started from."""
    objective: str
    """Objective of the VI fit: `elbo` or `published`."""
    kl_weight: float
    """Weight of the KL term; below 1, q approximates a tempered posterior."""
    noise_std: float | list[float]
    """Standard deviation of the observation noise, one number or one per output."""
    prior_std: Number
    """Prior standard deviation of the weights, if the problem has a single one."""
    threshold: float
    """Share to capture by the selected parameters."""
    seed: int
    """Random seed."""
    fit_from: str | None = None
    """The run whose fit was used, if one was."""
    num_params: int
    """Number of parameters."""
    num_selected: int
    """Number of selected parameters."""
    first_stage: str
    """`vi` or `laplace`."""
    rule: str
    """The rule by which parameters were selected."""
    captured_share: Number
    """Share of the total sensitivity Σ S² held by the selected parameters."""
    captured_variance: CapturedVariance | None
    """Share of the predictive variance captured by the selected parameters under the Gauss–Newton posterior
    ([selection.md](selection.md)); null if not computed."""
    frozen_share: FrozenShare
    """Share of the first-order predictive variance contributed by the frozen parameters; error bars of chains with
    `hmc.frozen` = `mean` omit it."""
    selected: list[str] | None
    """Names of the selected parameters; null for models of more than 200 parameters."""
    selected_per_leaf: dict[str, tuple[int, int]]
    """For every array of the model, the number of selected parameters and of all parameters."""
    vi: Fit
    """The first stage."""
    verdict: VerdictTable
    """Whether the VI-HMC chains can be trusted."""
    hmc: ChainsTable
    """The VI-HMC chains and their cost."""
    predictive: Predictive
    """Accuracy of VI-HMC at the validation inputs."""
    predictive_vi: Predictive
    """Accuracy of VI alone."""
    diagnostics: Diagnostics
    """Convergence of the VI-HMC chains, measured on the predictions; of an operator, on up to 16 × 16 of them."""
    reference: ReferenceTable | None = None
    """HMC on all parameters, if it was run."""
    agreement_with_reference: AgreementTable | None = None
    """Distance of VI and VI-HMC to HMC on all parameters, if it was run."""
    published: dict[str, Any] | None = None
    """Published results on this problem, if there are any."""
    reports: dict[str, PartTable] | None = None
    """Accuracy on every part of the data by name, for problems that have parts; `left_out` are training inputs predicted
    by fits without them."""
    units: str | None = None
    """Units of the keys that end in `_in_units`; all else is in normalised units."""
    data: dict[str, Any] | None = None
    """Your own data: files with their checksums, split, names, means and standard deviations, noise."""
    notice: str | None = None
    """A sentence about the data that must be read with the numbers."""
    peak_memory_gb: Number
    """Largest resident memory of the process in GB."""
    peak_memory_gb_after: dict[str, Number]
    """The same at the end of each stage."""
    seconds: dict[str, Number]
    """Wall time of each stage, compilation included."""
    versions: dict[str, str]
    """Versions of the packages."""
    backend: str
    """Device and floating-point format."""


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
        key, meaning = f"{prefix}{name}", " ".join((field.description or "").split())
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
    arguments = get_args(annotation)
    found = [inner for inner in arguments if isinstance(inner, type) and issubclass(inner, BaseModel)]
    if found:
        return found[0], not isinstance(annotation, UnionType)
    tables = [table for inner in arguments if get_args(inner) and (table := _table_of(inner))[0] is not None]
    return tables[0] if tables else (None, False)


if __name__ == "__main__":
    print(summary_table())
