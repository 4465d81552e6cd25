"""Every setting of a run, with its default: the only home of defaults.

A run is described by one frozen tree. It is read from a preset or a TOML file,
changed by ``stage.key=value`` overrides, checked as a whole, and stored beside
the results. Each stage takes its own branch, so it can be used alone:
``fit(posterior, VIConfig(num_steps=2000), rng_key)``.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from vihmc.errors import InputError, nearest

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Activation = Literal["tanh", "sin", "relu", "gelu", "silu"]
Names = Annotated[
    tuple[str, ...],
    Field(min_length=1),
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
]
"""One name, or a list of them."""

PRESETS = ("paper", "default", "quick")
_UNSET = "none"


class Settings(BaseModel):
    """A frozen branch of the tree; unknown keys are errors that name the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    def __init__(self, **values: Any) -> None:
        """Check the values; a broken rule is an :class:`InputError` in one sentence."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InputError(_sentence(type(self), error)) from None


class SineConfig(Settings):
    """A sum of two sines, learnt by a small network from points with a gap in the middle."""

    name: Literal["sine_small", "sine_large"] = Field("sine_small", description="Which of the two problems.")
    num_points: Annotated[int, Field(ge=2)] = Field(20, description="Training points, half on either side of the gap.")
    num_validation: Annotated[int, Field(ge=2)] = Field(300, description="Points of the validation grid.")
    noise_std: PositiveFloat = Field(1e-3, description="Std of the noise, in the data and in the likelihood.")
    prior_std: PositiveFloat = Field(1.0, description="Prior std of every weight and bias.")
    data_seed: Count = Field(0, description="Seed of the noise in the data; `seed` does not change the data.")


class BurgersConfig(Settings):
    """The solution operator of the Burgers equation, learnt by a DeepONet; or any operator, from a file."""

    name: Literal["burgers"] = Field("burgers", description="The problem.")
    field: Literal["pi_deeponet", "fno"] = Field("pi_deeponet", description="Whose random initial conditions.")
    viscosity: PositiveFloat = Field(0.01, description="Viscosity ν.")
    num_training: PositiveInt = Field(1000, description="Initial conditions to learn from.")
    num_validation: PositiveInt = Field(1000, description="Initial conditions to validate on.")
    num_times: Annotated[int, Field(ge=2)] = Field(101, description="Times of the grid, from 0 to 1.")
    num_positions: Annotated[int, Field(ge=2)] = Field(101, description="Positions of the grid, from 0 to 1.")
    num_modes: Annotated[int, Field(ge=16, multiple_of=2)] = Field(256, description="Modes of the solver.")
    time_step: PositiveFloat = Field(2.5e-3, description="Largest time step of the solver.")
    data_seed: Count = Field(0, description="Seed of the initial conditions; `seed` does not change the data.")
    data_file: str | None = Field(
        None, description="A .npz or .mat file with branch_in, trunk_in and solution, instead of generated data."
    )
    branch_width: PositiveInt = Field(100, description="Neurons per hidden layer of the branch.")
    branch_depth: PositiveInt = Field(9, description="Linear layers of the branch.")
    trunk_width: PositiveInt = Field(100, description="Neurons per hidden layer of the trunk.")
    trunk_depth: PositiveInt = Field(9, description="Linear layers of the trunk.")
    latent_size: PositiveInt = Field(100, description="Outputs of branch and trunk.")
    activation: Activation = Field("tanh", description="Nonlinearity.")
    num_waves: Count = Field(
        2, description="Harmonics of the last coordinate that the trunk sees instead of it; 0 for the bare coordinate."
    )
    period: PositiveFloat = Field(1.0, description="Period of the last coordinate.")
    noise_std: PositiveFloat = Field(0.1, description="Std of the noise in the likelihood; the data have none.")
    prior_std: PositiveFloat = Field(0.1, description="Prior std of every weight and bias.")
    model_dtype: Literal["float32", "float64"] = Field(
        "float32", description="What the networks compute in; energies are float64 in any case."
    )


class ConeConfig(Settings):
    """Wall-pressure spectra on a hypersonic cone, learnt by a DeepONet."""

    name: Literal["cone", "cone_synthetic"] = Field("cone", description="The published data, or the stand-in.")
    data_dir: str | None = Field(
        None, description="Folder with the published files; else that of VIHMC_CONE_DATA; else the stand-in is used."
    )
    num_training: PositiveInt = Field(68, description="Inputs of the stand-in to learn from.")
    num_validation: PositiveInt = Field(13, description="Inputs of the stand-in to validate on.")
    data_seed: Count = Field(0, description="Seed of the stand-in's inputs; `seed` does not change the data.")
    branch_width: PositiveInt = Field(44, description="Neurons per hidden layer of the branch.")
    branch_depth: PositiveInt = Field(6, description="Linear layers of the branch.")
    trunk_width: PositiveInt = Field(44, description="Neurons per hidden layer of the trunk.")
    trunk_depth: PositiveInt = Field(5, description="Linear layers of the trunk.")
    latent_size: PositiveInt = Field(20, description="Outputs of branch and trunk.")
    activation: Activation = Field("tanh", description="Nonlinearity.")
    noise_std: PositiveFloat = Field(5e-3, description="Std of the noise in the likelihood, in normalised units.")
    prior_std: PositiveFloat = Field(0.01, description="Prior std of every weight and bias.")
    model_dtype: Literal["float32", "float64"] = Field(
        "float32", description="What the networks compute in; energies are float64 in any case."
    )


class OwnDataConfig(Settings):
    """What runs on data of one's own have in common: where the data are, how they are split, and the noise."""

    data_file: str | None = Field(None, description="The file with the data; a run needs one.")
    validation_file: str | None = Field(
        None, description="A file of the same form to validate on; if not given, a part of `data_file` is put aside."
    )
    validation_share: Probability = Field(
        0.2, description="Share of `data_file`, drawn at random, to validate on, where there is no `validation_file`."
    )
    data_seed: Count = Field(0, description="Seed of that draw; `seed` does not change the data.")
    standardise: bool = Field(
        True, description="Whether the network sees the data with mean 0 and std 1; results are in their own units."
    )
    noise_share: PositiveFloat = Field(
        0.1, description="Std of the noise as a share of the std of the targets, where `noise_std` is not given."
    )


class MLPConfig(OwnDataConfig):
    """Any regression: a dense network on columns of one's own."""

    name: Literal["mlp"] = Field("mlp", description="The kind of model: a dense network.")
    data_file: str | None = Field(None, description="A .csv, .npz or .mat file with a row per observation.")
    inputs: Names | None = Field(
        None, description="Columns of a .csv, or arrays, that enter; if not given all other columns, or the array X."
    )
    targets: Names | None = Field(
        None, description="Columns or arrays to predict; if not given the last column, or the array y."
    )
    hidden: tuple[PositiveInt, ...] = Field((32, 32), description="Neurons of each hidden layer.")
    activation: Activation = Field("tanh", description="Nonlinearity.")
    noise_std: PositiveFloat | tuple[PositiveFloat, ...] | None = Field(
        None, description="Std of the noise in units of the targets, one number or one per target; see `noise_share`."
    )
    prior_std: PositiveFloat = Field(0.5, description="Prior std of every weight and bias.")


class DeepONetConfig(OwnDataConfig):
    """Any operator: a DeepONet on functions, locations and fields of one's own."""

    name: Literal["deeponet"] = Field("deeponet", description="The kind of model: an operator.")
    data_file: str | None = Field(None, description="A .npz or .mat file with functions, locations and fields.")
    functions: str = Field("branch_in", description="The array of functions at their sensors, (functions, sensors).")
    locations: str = Field("trunk_in", description="The array of locations, (locations, coordinates).")
    fields: str = Field("solution", description="The array of fields, (functions, locations).")
    coordinates: Names | None = Field(None, description="Names of the columns of `locations`, for figures and reports.")
    branch_width: PositiveInt = Field(40, description="Neurons per hidden layer of the branch.")
    branch_depth: PositiveInt = Field(3, description="Linear layers of the branch.")
    trunk_width: PositiveInt = Field(40, description="Neurons per hidden layer of the trunk.")
    trunk_depth: PositiveInt = Field(3, description="Linear layers of the trunk.")
    latent_size: PositiveInt = Field(20, description="Outputs of branch and trunk.")
    activation: Activation = Field("tanh", description="Nonlinearity.")
    num_waves: Count = Field(
        0, description="Harmonics of the last coordinate that the trunk sees instead of it; 0 if it is not periodic."
    )
    period: PositiveFloat = Field(1.0, description="Period of the last coordinate, in its own units.")
    noise_std: PositiveFloat | None = Field(
        None, description="Std of the noise, or of the error that is tolerable, in units of the fields."
    )
    prior_std: PositiveFloat = Field(0.3, description="Prior std of every weight and bias.")
    model_dtype: Literal["float32", "float64"] = Field(
        "float32", description="What the networks compute in; energies are float64 in any case."
    )


ProblemConfig = SineConfig | BurgersConfig | ConeConfig | MLPConfig | DeepONetConfig


class VIConfig(Settings):
    """First stage: the mean-field Gaussian fit of all parameters."""

    objective: Literal["elbo", "published"] = Field(
        "elbo", description="KL(q‖prior), the bound; or KL(prior‖q), what the paper's published code minimises."
    )
    num_steps: PositiveInt = Field(20_000, description="Optimiser steps at most.")
    num_samples: PositiveInt = Field(10, description="Monte Carlo samples of q per step.")
    learning_rate: PositiveFloat = Field(1e-2, description="The optimiser's step at the start.")
    second_moment_decay: Probability = Field(
        0.99, description="Adam's memory of squared gradients; a short one forgets the steep start sooner."
    )
    schedule: Literal["constant", "cosine", "plateau"] = Field(
        "cosine", description="Learning rate: constant, cosine to zero, or a factor smaller on a plateau."
    )
    plateau_patience: PositiveInt = Field(1000, description="Steps without improvement that make a plateau.")
    plateau_factor: Probability = Field(0.1, description="What a plateau multiplies the learning rate by.")
    plateau_drops: Count = Field(2, description="Reductions before the next plateau means converged.")
    stop_when_converged: bool = Field(
        True, description="Stop at the plateau after the last reduction; cosine runs to its end."
    )
    batch_size: PositiveInt | None = Field(None, description="Observations per step; all of them if not given.")
    num_locations: PositiveInt | None = Field(
        None, description="Locations per step, for an operator; all of them if not given."
    )
    optimizer: Literal["adam", "muon"] = Field(
        "adam", description="What leads the mean: Adam, or Muon, which is far faster on deep networks of matrices."
    )
    std_learning_rate: PositiveFloat | None = Field(
        None, description="Adam's step for the std of q, in units of its logarithm; `learning_rate` if not given."
    )
    kl_weight: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="What the divergence is multiplied by; below 1 the fit is colder than the posterior."
    )
    map_steps: Count = Field(5000, description="Steps of a maximum-a-posteriori fit that the mean starts from.")
    initial_mean_std: PositiveFloat = Field(
        0.1, description="Spread of the random starting mean, where the model has no start of its own."
    )
    initial_std: PositiveFloat | Literal["curvature"] = Field(
        0.01, description="Starting std of q, or 'curvature' for that of the Gauss-Newton diagonal at the start."
    )
    num_bound_samples: Annotated[int, Field(ge=2)] = Field(
        512, description="Monte Carlo samples of the bound that is reported at the end."
    )
    record_every: PositiveInt = Field(100, description="Steps between two records of the history.")


class SensitivityConfig(Settings):
    """Second stage: one score per parameter."""

    method: Literal["exact", "random_signs"] = Field("exact", description="All gradients, or an unbiased estimate.")
    inputs: Literal["training", "validation"] = Field("training", description="Where the predictions are scored.")
    num_probes: Annotated[int, Field(ge=2)] = Field(256, description="Backward passes of the estimate.")
    memory_mb: PositiveFloat = Field(256.0, description="Bound on the memory of a chunk of gradients.")


class SelectionConfig(Settings):
    """Which parameters HMC gets."""

    rank_by: Literal["sensitivity", "random", "variance", "magnitude"] = Field(
        "sensitivity", description="The paper's score, or a baseline of the same size."
    )
    rule: Literal["at_most", "at_least", "count"] = Field(
        "at_most", description="The paper's rule, the smallest set that reaches the threshold, or a given number."
    )
    threshold: Share = Field(0.9, description="Share of the total sensitivity to keep.")
    count: PositiveInt | None = Field(None, description="How many to keep, with the rule `count`.")
    ties: Literal["error", "include", "exclude"] = Field(
        "error", description="What to do when the cut falls between equal scores."
    )

    @model_validator(mode="after")
    def _count_belongs_to_its_rule(self) -> Self:
        if (self.rule == "count") != (self.count is not None):
            raise ValueError(f"`count` goes with the rule 'count', got rule '{self.rule}' and count {self.count}")
        return self


class SamplerConfig(Settings):
    """Third stage: Markov chains on the kept parameters."""

    kernel: Literal["hmc", "nuts", "ghmc", "mclmc", "adjusted_mclmc"] = Field(
        "hmc",
        description="HMC with a given length; NUTS; generalised HMC, one step at a time; microcanonical Langevin, "
        "which rejects nothing and is biased by its step size; or the same with a Metropolis test, which is exact.",
    )
    integrator: Literal["leapfrog", "split"] = Field(
        "leapfrog", description="Steps of HMC: leapfrog on all data, or symmetric splitting over shards of the data."
    )
    num_shards: Annotated[int, Field(ge=2)] | None = Field(None, description="Shards of the integrator `split`.")
    num_chains: PositiveInt = Field(8, description="Number of chains.")
    chains_at_once: Literal["all", "one"] = Field(
        "all", description="All chains as one batch, or one after the other: for models that fill the machine."
    )
    num_draws: PositiveInt = Field(1000, description="Draws of each chain that count.")
    num_warmup: Count = Field(1000, description="Steps of each chain before them, which do not count.")
    thin: PositiveInt = Field(1, description="Kernel steps per stored draw.")
    head: Literal["auto", "integrate", "sample"] = Field(
        "auto",
        description="The last layer, in which a network is linear: integrate it out exactly and sample what is below, "
        "or sample it like everything else; 'auto' integrates where the network is "
        "narrow and chains are at least 32.",
    )
    start: Literal["q", "q_mean", "prior", "fits"] = Field(
        "q",
        description="Where chains start: drawn from q, at its mean, drawn from the prior, or, with all parameters, "
        "drawn from several independent fits in turn.",
    )
    start_scale: PositiveFloat = Field(
        1.0, description="What the std of the starts is multiplied by; 2 or more spreads chains wider than q."
    )
    num_fits: Annotated[int, Field(ge=2)] = Field(4, description="Fits to start from, with the start `fits`.")
    metric: Literal["q", "identity", "adapted", "adapted_low_rank", "dense", "curvature"] = Field(
        "adapted",
        description="Inverse mass matrix: variances of q, ones, learnt in the warm-up (variances, with a few leading "
        "directions, or all covariances), or the prior with the leading directions of the Gauss-Newton matrix at the "
        "mean of q.",
    )
    adapted_rank: PositiveInt = Field(10, description="Directions of the metric `adapted_low_rank`.")
    curvature_rank: PositiveInt = Field(256, description="Directions of the metric `curvature`.")
    step_size: PositiveFloat | None = Field(
        None, description="Integration step; if not given found by dual averaging, for mclmc by the energy error."
    )
    target_acceptance: Probability = Field(
        0.8, description="What dual averaging aims at; 0.95 or more suits ghmc, and mclmc has none."
    )
    trajectory: Literal["quarter_period", "paper", "fixed", "chees"] = Field(
        "quarter_period",
        description="Rule for the length of a trajectory, or over how much of it ghmc and mclmc forget their momentum.",
    )
    jitter: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0,
        description="How far the number of steps of each draw, common to all chains, is drawn around its value, by hmc "
        "and adjusted_mclmc; 1 is from zero to twice.",
    )
    posterior_var: PositiveFloat | None = Field(
        None, description="`v` of the paper's rule π·v/(2·step); the largest variance of q if not given."
    )
    num_integration_steps: PositiveInt | None = Field(None, description="Leapfrog steps, with the rule `fixed`.")
    max_integration_steps: PositiveInt = Field(1023, description="Upper bound on leapfrog steps per draw.")
    chunk_size: PositiveInt = Field(50, description="Draws between two progress reports; never changes the draws.")
    drop_bad_chains: bool = Field(False, description="Leave out chains that stand still or diverge.")

    @property
    def length_jitter(self) -> float:
        """The jitter, for kernels that have trajectories of a given length; the others have none."""
        return self.jitter if self.kernel in ("hmc", "adjusted_mclmc") else 0.0

    @model_validator(mode="after")
    def _lengths_belong_to_their_rules(self) -> Self:
        if self.kernel != "nuts" and (self.trajectory == "fixed") != (self.num_integration_steps is not None):
            raise ValueError(
                f"`num_integration_steps` goes with the trajectory 'fixed', got trajectory '{self.trajectory}' "
                f"and num_integration_steps {self.num_integration_steps}"
            )
        if (self.integrator == "split") != (self.num_shards is not None):
            raise ValueError(
                f"`num_shards` goes with the integrator 'split', got integrator '{self.integrator}' "
                f"and num_shards {self.num_shards}"
            )
        if self.metric == "curvature" and self.integrator == "split":
            raise ValueError("`metric` 'curvature' goes with the integrator 'leapfrog', got integrator 'split'")
        if self.integrator == "split" and self.kernel != "hmc":
            raise ValueError(f"`integrator` 'split' goes with the kernel 'hmc', got kernel '{self.kernel}'")
        learns = self.metric in ("adapted", "adapted_low_rank", "dense") or self.trajectory == "chees"
        if (self.step_size is None or learns) and self.num_warmup < 100:
            raise ValueError(
                f"`num_warmup` must be at least 100 to find the step size or the metric, got {self.num_warmup}"
            )
        return self

    @model_validator(mode="after")
    def _settings_fit_the_kernel(self) -> Self:
        if self.metric == "dense" and self.kernel in ("mclmc", "adjusted_mclmc"):
            raise ValueError(
                f"`metric` 'dense' goes with the kernels 'hmc', 'nuts' and 'ghmc', got kernel '{self.kernel}', for "
                "which there is 'adapted_low_rank'"
            )
        if self.trajectory == "chees" and self.kernel != "hmc":
            raise ValueError(f"`trajectory` 'chees' goes with the kernel 'hmc', got kernel '{self.kernel}'")
        if self.trajectory == "paper" and self.kernel not in ("hmc", "nuts"):
            raise ValueError(f"`trajectory` 'paper' goes with the kernel 'hmc', got kernel '{self.kernel}'")
        if self.trajectory == "chees" and self.num_chains < 2:
            raise ValueError(f"`num_chains` must be at least 2 with the trajectory 'chees', got {self.num_chains}")
        if self.trajectory == "chees" and self.jitter == 0:
            raise ValueError("`jitter` must be positive with the trajectory 'chees' (its authors take 1), got 0.0")
        return self


class ReferenceConfig(SamplerConfig):
    """The same sampler on all parameters, to compare with."""

    enabled: bool = Field(False, description="Whether to run it.")


class LeaveOutConfig(SamplerConfig):
    """The same sampler on all training inputs but some, to predict these; for problems that can leave inputs out."""

    num_folds: Count = Field(0, description="Groups of training inputs that are left out in turn; 0 for not at all.")


class PredictionConfig(Settings):
    """Predictions at the validation inputs."""

    quantiles: Annotated[tuple[Probability, ...], Field(min_length=2)] = Field(
        (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975), description="Levels of the predictive quantiles."
    )
    num_vi_draws: PositiveInt = Field(4000, description="Draws of q for the predictions of VI alone.")
    num_draws: PositiveInt | None = Field(
        None, description="Draws of the chains to predict with, evenly spread; all of them if not given."
    )
    observation_quantiles: bool = Field(
        True, description="Whether to find the quantiles of new observations, noise included."
    )
    memory_mb: PositiveFloat = Field(8.0, description="Bound on the memory of a chunk of predictions.")

    @model_validator(mode="after")
    def _quantiles_ascend(self) -> Self:
        if list(self.quantiles) != sorted(set(self.quantiles)):
            raise ValueError(f"`quantiles` must be strictly ascending, got {list(self.quantiles)}")
        return self


class MethodConfig(Settings):
    """The method, on whatever posterior."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(0, description="Seed of everything but the data.")
    vi: VIConfig = VIConfig()
    sensitivity: SensitivityConfig = SensitivityConfig()
    selection: SelectionConfig = SelectionConfig()
    hmc: SamplerConfig = SamplerConfig()
    reference: ReferenceConfig = ReferenceConfig()
    prediction: PredictionConfig = PredictionConfig()


class Config(MethodConfig):
    """A whole run: the method and the problem it is run on."""

    leave_out: LeaveOutConfig = LeaveOutConfig()

    preset: str = Field("default", description="Where the values came from; a label, set by the command.")
    precision: Literal["float32", "float64"] = Field("float64", description="Floating-point format.")
    num_cores: PositiveInt | None = Field(None, description="Cores that chains are dealt out to; all if not given.")
    problem: Annotated[ProblemConfig, Field(discriminator="name")] = SineConfig()


def known_problems() -> tuple[str, ...]:
    """Names of the problems that ship with the package."""
    files = resources.files("vihmc.presets").iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def load_preset(problem: str, preset: str = "default") -> dict[str, Any]:
    """Return the settings of a shipped problem as a nested dict: its base, then the preset on top."""
    problems = known_problems()
    if problem not in problems:
        raise InputError(
            f"`problem` must be one of {', '.join(problems)} or a .toml file, got '{problem}'."
            + nearest(problem, problems)
        )
    if preset not in PRESETS:
        raise InputError(f"`preset` must be one of {', '.join(PRESETS)}, got '{preset}'." + nearest(preset, PRESETS))
    tables = _preset_tables(problem)
    return merge(merge(tables["base"], tables.get(preset, {})), {"preset": preset})


def _preset_tables(problem: str) -> dict[str, Any]:
    """All presets of a problem; one that is like another names it, and what it changes."""
    text = resources.files("vihmc.presets").joinpath(f"{problem}.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return merge(_preset_tables(tables.pop("like")), tables) if "like" in tables else tables


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML file as a nested dict."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"`{path}` must be a readable file: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` must be valid TOML: {error}.") from None


def parse_override(text: str) -> dict[str, Any]:
    """Turn ``stage.key=value`` into a nested dict; the value is read as TOML, else as a string; `none` unsets."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError(f"`--set` must have the form stage.key=value, got '{text}'.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    *stages, key = name.strip().split(".")
    override: dict[str, Any] = {key: parsed}
    for stage in reversed(stages):
        override = {stage: override}
    return override


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the leaves of `change` on top."""
    merged = dict(base)
    for key, value in change.items():
        inner = merged.get(key)
        merged[key] = merge(inner, value) if isinstance(value, Mapping) and isinstance(inner, Mapping) else value
    return merged


def build_config(*layers: Mapping[str, Any], overrides: Iterable[str] = ()) -> Config:
    """Merge nested dicts from left to right, then ``stage.key=value`` overrides, and check the whole."""
    settings: dict[str, Any] = {}
    for layer in (*layers, *map(parse_override, overrides)):
        settings = merge(settings, layer)
    return Config(**_with_unset(settings))


def _with_unset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null, so a setting that is not given on purpose is the word `none`."""
    branches = {key: _with_unset(value) if isinstance(value, Mapping) else value for key, value in settings.items()}
    return {key: None if value == _UNSET else value for key, value in branches.items()}


def to_toml(settings: Settings) -> str:
    """Write settings as TOML that :func:`read_toml` and :func:`build_config` turn back into the same settings."""
    values = settings.model_dump(mode="json")
    scalars = {key: value for key, value in values.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    blocks = [toml_lines(scalars)] + [f"[{name}]\n{toml_lines(table)}" for name, table in tables.items()]
    return "\n\n".join(filter(None, blocks)) + "\n"


def toml_lines(values: Mapping[str, Any]) -> str:
    """Write settings without tables, one per line; what is not given is the word `none`."""
    written = {key: _UNSET if value is None else value for key, value in values.items()}
    return "\n".join(f"{key} = {_toml_value(value)}" for key, value in written.items())


def _toml_value(value: Any) -> str:
    # JSON writes strings, numbers, booleans and lists just as TOML does, but for one sign that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _sentence(model: type[BaseModel], error: ValidationError) -> str:
    """Say the first problem of a failed validation in one sentence."""
    first = error.errors()[0]
    # Pydantic also names the kind of problem and the alternative of a union that it tried; a person did not write them.
    not_written = {*known_problems(), "float"}
    path = [str(part) for part in first["loc"] if str(part).isidentifier() and part not in not_written]
    name = ".".join(path) or model.__name__
    if first["type"] == "extra_forbidden":
        return f"`{name}` is not a known setting.{nearest(name, model.model_fields)}"
    if first["type"] == "value_error":
        cause = first["ctx"]["error"]
        # A branch has already said its sentence; what is missing is where in the tree the branch is.
        return f"`{name}.{str(cause)[1:]}" if isinstance(cause, InputError) else f"{cause}."
    if first["type"] == "union_tag_invalid":
        tag = first["ctx"]["tag"]
        names = known_problems()
        return f"`{name}.name` must be one of {', '.join(names)}, got '{tag}'.{nearest(tag, names)}"
    rule = first["msg"].removeprefix("Input should be ").replace("a valid ", "a ").replace("a integer", "an integer")
    return f"`{name}` must be {rule[0].lower() + rule[1:]}, got {_short(first['input'])}."


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
