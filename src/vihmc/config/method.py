"""The settings of every stage, with their defaults; with :mod:`vihmc.config.problems` the only home of defaults.

A run is described by one frozen tree, checked as a whole and stored beside the results. Each stage takes its own
branch, so it can be used alone: ``fit(posterior, VIConfig(num_steps=2000), rng_key)``. How a tree is read from presets,
files and overrides is in :mod:`vihmc.config.files`.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vihmc.config.problems import ProblemConfig, SineConfig
from vihmc.config.settings import Count, PositiveFloat, PositiveInt, Probability, Settings, Share


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
    inputs_file: str | None = Field(
        None,
        description="A file of inputs, .npz, .csv or .mat, where the model will be used: scored there instead.",
    )
    order: Literal[1, 2] = Field(
        1, description="Variance of the prediction to first order, as published, or to second, which is estimated."
    )
    num_probes: Annotated[int, Field(ge=2)] = Field(256, description="Backward passes of the estimate.")
    memory_mb: PositiveFloat = Field(256.0, description="Bound on the memory of a chunk of gradients.")


class SelectionConfig(Settings):
    """Which parameters HMC gets."""

    rank_by: Literal["auto", "sensitivity", "predictive", "random", "variance", "magnitude"] = Field(
        "auto",
        description="The paper's score; predictive, the set that captures most of the predictive variance; or a "
        "baseline of the size of the paper's. `auto` is predictive where inputs of use are named, else the paper's "
        "score: as many parameters as there are data capture all the variance at the data.",
    )
    rule: Literal["auto", "at_most", "at_least", "count"] = Field(
        "auto",
        description="The paper's rule, the smallest set that reaches the threshold, or a given number; `auto` is the "
        "paper's for its score and the baselines, and to reach the threshold for predictive.",
    )
    threshold: Share = Field(
        0.9, description="Share to keep: with `predictive` of the predictive variance, else of the total sensitivity."
    )
    count: PositiveInt | None = Field(None, description="How many to keep, with the rule `count`.")
    num_points: PositiveInt = Field(512, description="Predictions whose captured variance is looked at, at most.")
    num_exact: PositiveInt = Field(
        4096, description="Up to so many observations, captured variance is computed with all of them."
    )
    num_directions: PositiveInt = Field(
        512, description="Directions of the data that it is computed with otherwise, at most."
    )
    num_solved: Count = Field(
        16,
        description="Predictions whose captured variance is then solved for with all data, for the report; 0 for none: "
        "what directions leave out makes the share look smaller.",
    )
    tolerance: PositiveFloat = Field(
        0.01, description="Directions that change no variance by more than this part of it are left out."
    )
    growth: Annotated[float, Field(ge=0, le=1)] = Field(
        0.05, description="How many are added at a time by `predictive`, as a part of those that are there."
    )
    give_up: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Captured variance that `predictive` may give up, as a share, for layers of an operator that stay "
        "frozen and are computed once; 0 for none.",
    )
    ties: Literal["error", "include", "exclude"] = Field(
        "error", description="What to do when the cut falls between equal scores."
    )

    def settled(self, *, use_is_named: bool) -> Self:
        """The same with nothing left open, given whether anybody said where the model will be used."""
        by_use = "predictive" if use_is_named else "sensitivity"
        rank_by = by_use if self.rank_by == "auto" else self.rank_by
        rule = self.rule
        if rule == "auto":
            rule = "at_least" if rank_by == "predictive" else "at_most"
        return self.model_copy(update={"rank_by": rank_by, "rule": rule})

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
    frozen: Literal["mean", "per_chain", "anchored"] = Field(
        "mean",
        description="What frozen parameters are held at: the mean of q, as in the paper; or in every chain a value of "
        "its own, so that what they do not know is in the error bars, and then as many chains as can be had: a draw of "
        "q, or the mode of a posterior whose data and prior were moved at random, which is nearer and takes a climb.",
    )
    num_anchor_steps: PositiveInt = Field(5000, description="Steps of each climb, with frozen `anchored`.")
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
    def _frozen_can_differ(self) -> Self:
        if self.frozen != "mean":
            fitting = {"metric": self.metric != "curvature", "integrator": self.integrator != "split"}
            for name in (name for name, fits in fitting.items() if not fits):
                raise ValueError(
                    f"`{name}` '{getattr(self, name)}' goes with frozen 'mean', got frozen '{self.frozen}'"
                )
            if self.head == "integrate":
                raise ValueError(f"`head` 'integrate' goes with frozen 'mean', got frozen '{self.frozen}'")
            if self.num_chains < 2:
                raise ValueError(f"`num_chains` must be at least 2 with frozen '{self.frozen}', got {self.num_chains}")
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
    first_stage: Literal["vi", "laplace"] = Field(
        "vi",
        description="Fit independent Gaussians; or find a mode, in `vi.map_steps` steps, and take the curvature there.",
    )
    vi: VIConfig = VIConfig()
    sensitivity: SensitivityConfig = SensitivityConfig()
    selection: SelectionConfig = SelectionConfig()
    hmc: SamplerConfig = SamplerConfig()
    reference: ReferenceConfig = ReferenceConfig()
    prediction: PredictionConfig = PredictionConfig()

    @property
    def use_is_named(self) -> bool:
        """Whether it is said where the model will be used, and not only where its data are."""
        return self.sensitivity.inputs_file is not None or self.sensitivity.inputs == "validation"

    @property
    def num_fit_steps(self) -> int:
        """Steps of the first stage."""
        return self.vi.map_steps + (self.vi.num_steps if self.first_stage == "vi" else 0)


class Config(MethodConfig):
    """A whole run: the method and the problem it is run on."""

    leave_out: LeaveOutConfig = LeaveOutConfig()

    preset: str = Field("default", description="Where the values came from; a label, set by the command.")
    precision: Literal["float32", "float64"] = Field("float64", description="Floating-point format.")
    num_cores: PositiveInt | None = Field(None, description="Cores that chains are dealt out to; all if not given.")
    problem: Annotated[ProblemConfig, Field(discriminator="name")] = SineConfig()
