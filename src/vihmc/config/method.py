"""The settings of every stage of the method; the only home of their defaults.

A run is described by one frozen tree, validated as a whole and stored beside the results. Each stage takes its own
section, so it can be used alone: ``fit(posterior, VIConfig(num_steps=2000), rng_key)``.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, create_model, model_serializer, model_validator

from vihmc.config.settings import Count, NonNegative, PositiveFloat, PositiveInt, Probability, Seconds, Settings, Share

PAPER_THRESHOLD = 0.9
SMALL_MODEL = 5000
"""Up to so many parameters all are sampled where scales are learnt, if nothing else is asked for."""


class VIConfig(Settings):
    """First stage: a Gaussian approximation of all parameters, by VI or around a mode."""

    objective: Literal["elbo", "published"] = Field(
        "elbo", description="'elbo' has KL(q‖prior); 'published' has KL(prior‖q), as the paper's published code."
    )
    num_steps: PositiveInt = Field(20_000, description="Optimiser steps of the VI fit.")
    num_samples: PositiveInt = Field(10, description="Monte Carlo samples of q per step.")
    learning_rate: PositiveFloat = Field(1e-2, description="Initial learning rate; it decays to zero as a cosine.")
    second_moment_decay: Probability = Field(0.99, description="Adam's decay rate of squared gradients (beta 2).")
    batch_size: PositiveInt | None = Field(None, description="Observations per step; all of them if not given.")
    num_locations: PositiveInt | None = Field(
        None, description="Locations per step, for an operator; all of them if not given."
    )
    optimizer: Literal["adam", "muon"] = Field(
        "adam", description="Optimiser of the mean. Muon is much faster on deep networks."
    )
    weight_decay: NonNegative | Annotated[tuple[NonNegative, ...], Field(min_length=1)] = Field(
        0.0,
        description="Decoupled weight decay of the MAP: weights shrink by this times the learning rate at "
        "every step, whatever their gradient. It holds back networks that would fit every function. Of several "
        "numbers every fit tries each, and keeps the one that predicts best what it leaves out.",
    )
    std_learning_rate: PositiveFloat | None = Field(
        None, description="Adam's learning rate for the std of q; `learning_rate` if not given."
    )
    kl_weight: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Weight of the KL term; below 1, q approximates a tempered posterior."
    )
    map_steps: Count = Field(5000, description="Steps of the MAP fit that the mean of q starts from.")
    initial_mean_std: PositiveFloat = Field(
        0.1, description="Std of the random initial mean, where the model has no initialisation of its own."
    )
    initial_std: PositiveFloat | Literal["curvature"] = Field(
        0.01, description="Initial std of q; 'curvature' takes it from the Gauss–Newton diagonal at the initial mean."
    )
    num_bound_samples: Annotated[int, Field(ge=2)] = Field(
        512, description="Monte Carlo samples of the ELBO that is reported at the end."
    )
    record_every: PositiveInt = Field(100, description="Steps between two records of the loss history.")

    @property
    def weight_decays(self) -> tuple[float, ...]:
        """All that a fit tries."""
        return self.weight_decay if isinstance(self.weight_decay, tuple) else (self.weight_decay,)


class SelectionConfig(Settings):
    """Second stage: which parameters HMC samples."""

    rule: Literal["auto", "sensitivity", "predictive", "random", "variance", "magnitude"] = Field(
        "auto",
        description="'sensitivity' is the paper's score; 'predictive' the set that captures most of the predictive "
        "variance; the others are baselines of the paper's size. 'auto' is 'predictive' where target inputs are named, "
        "else 'sensitivity'.",
    )
    threshold: Share | None = Field(
        None,
        description="Share to capture: of the predictive variance with 'predictive', else of the total score. If not "
        "given, 0.9 as in the paper; but everything where scales are learnt and the model is small, because frozen "
        "weights hold their scale back and a subset mixes worse.",
    )
    count: PositiveInt | None = Field(None, description="Number of parameters to select, instead of a threshold.")
    within: str | None = Field(
        None,
        description="Select only from arrays of the model whose names start with this, such as 'project.1'; '' is all. "
        "If not given, all; but the output layer of an operator whose noise is found where fits leave functions out, "
        "with a count of 1000 unless a number or a threshold is given.",
    )
    target_inputs: str = Field(
        "training",
        description="Inputs at which predictions matter: 'training', 'validation', or a file such as .csv or .npz.",
    )
    captured_variance: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Whether to compute the share of predictive variance that the selected parameters capture; 'auto' "
        "does where the rule needs it or it takes about a minute at most.",
    )
    max_captured_loss: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Captured variance that 'predictive' may lose to keep whole layers of an operator frozen, which "
        "makes gradients cheaper.",
    )

    def with_defaults(
        self, *, has_target_inputs: bool, num_params: int | None = None, num_scales: int = 0
    ) -> "SelectionConfig":
        """Return the same with all that was left open decided.

        Args:
            has_target_inputs: Whether the user said where the model will be used.
            num_params: Size of the model, if it is known.
            num_scales: How many scales are learnt.
        """
        decided: dict[str, Any] = {}
        if self.rule == "auto":
            named = has_target_inputs or self.target_inputs != "training"
            decided["rule"] = "predictive" if named else "sensitivity"
        if self.threshold is None:
            is_small = num_params is not None and num_params <= SMALL_MODEL
            decided["threshold"] = 1.0 if num_scales and is_small else PAPER_THRESHOLD
        return self.model_copy(update=decided) if decided else self

    @property
    def target_inputs_file(self) -> str | None:
        """The file of target inputs, if it is one."""
        return None if self.target_inputs in ("training", "validation") else self.target_inputs


class SamplerConfig(Settings):
    """Third stage: Markov chains on the selected parameters."""

    kernel: Literal["hmc", "nuts"] = Field("hmc", description="HMC with a given trajectory length, or NUTS.")
    num_chains: PositiveInt = Field(8, description="Number of chains.")
    chains_at_once: Literal["all", "one_per_core", "one"] = Field(
        "all",
        description="All chains as one batch; on each core one after the other, for models whose arrays fill its "
        "cache; or one after the other, for models that fill the machine.",
    )
    num_draws: PositiveInt = Field(1000, description="Retained draws of each chain; at most, where there is a budget.")
    budget: Seconds | None = Field(
        None,
        description="Wall time of the draws, in seconds or as '10m': chains run until their predictions have converged "
        "or it is spent. It decides how many draws there are, never which. If not given, there are `num_draws`.",
    )
    num_warmup: Count = Field(1000, description="Warm-up steps of each chain.")
    max_warmup: PositiveInt | None = Field(
        None,
        description="While the chains drift the warm-up goes on, up to so many steps, and learns step size and metric "
        "anew; if not given, it ends after `num_warmup` steps.",
    )
    thin: PositiveInt = Field(1, description="Transitions per retained draw.")
    num_shards: Annotated[int, Field(ge=2)] | None = Field(
        None, description="Shards of the data, for HMC with symmetric data splitting; none for all data at each step."
    )
    last_layer: Literal["auto", "marginalise", "sample"] = Field(
        "auto",
        description="Integrate the output layer out exactly, or sample it like the others; 'auto' integrates where the "
        "network is narrow and there are at least 32 chains.",
    )
    frozen: Literal["mean", "perturbed_map"] = Field(
        "mean",
        description="Values of the frozen parameters: the mean of q, as in the paper; or for each chain a perturbed "
        "MAP (randomise-then-optimise), which puts their uncertainty into the error bars and needs many chains.",
    )
    start: Literal["q", "q_mean", "prior"] = Field(
        "q", description="Initial positions: drawn from q, its mean, or drawn from the prior."
    )
    metric: Literal["q", "identity", "adapted", "fisher", "curvature"] = Field(
        "adapted",
        description="Inverse mass matrix: variances of q, the identity, variances learnt during warm-up, the inverse "
        "of the Fisher information averaged over warm-up draws (learnt scales are then integrated out), or the prior "
        "with the leading Gauss–Newton directions at the mean of q.",
    )
    step_size: PositiveFloat | None = Field(None, description="Leapfrog step; found by dual averaging if not given.")
    target_acceptance: Probability = Field(0.8, description="Acceptance rate that dual averaging aims at.")
    jitter: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="Relative half-width of the random number of leapfrog steps; 1 is from zero to twice."
    )
    posterior_var: PositiveFloat | None = Field(
        None,
        description="`v` of the paper's rule for the trajectory length, π·v/2; if not given, a trajectory is a quarter "
        "period of the slowest direction, π·std/2.",
    )
    num_integration_steps: PositiveInt | None = Field(
        None, description="Leapfrog steps per draw; from the trajectory length if not given."
    )
    max_integration_steps: PositiveInt = Field(1023, description="Upper bound on leapfrog steps per draw.")
    drop_bad_chains: bool = Field(False, description="Leave out chains that stand still or diverge.")

    @property
    def length_jitter(self) -> float:
        """The jitter of HMC; NUTS has none."""
        return self.jitter if self.kernel == "hmc" else 0.0

    @model_validator(mode="after")
    def _settings_fit_each_other(self) -> "SamplerConfig":
        if self.num_shards is not None:
            for name, fitting in (("kernel", "hmc"), ("frozen", "mean")):
                if getattr(self, name) != fitting:
                    raise ValueError(
                        f"`num_shards` goes with {name} '{fitting}', got num_shards {self.num_shards} and {name} "
                        f"'{getattr(self, name)}'"
                    )
            if self.metric == "curvature":
                raise ValueError(f"`num_shards` must be left out with metric 'curvature', got {self.num_shards}")
        if (self.step_size is None or self.metric in ("adapted", "fisher")) and self.num_warmup < 100:
            raise ValueError(
                f"`num_warmup` must be at least 100 to find the step size or the metric, got {self.num_warmup}"
            )
        if self.max_warmup is not None and self.max_warmup < self.num_warmup:
            raise ValueError(
                f"`max_warmup` must be at least num_warmup, got {self.max_warmup} and num_warmup {self.num_warmup}"
            )
        if self.frozen != "mean":
            if self.metric == "curvature":
                raise ValueError(f"`metric` 'curvature' goes with frozen 'mean', got frozen '{self.frozen}'")
            if self.last_layer == "marginalise":
                raise ValueError(f"`last_layer` 'marginalise' goes with frozen 'mean', got frozen '{self.frozen}'")
            if self.num_chains < 2:
                raise ValueError(f"`num_chains` must be at least 2 with frozen '{self.frozen}', got {self.num_chains}")
        return self


def _optional_fields(model: type[Settings]) -> dict[str, Any]:
    """The fields of `model`, each of which may be left out."""
    return {
        # pyrefly: ignore[not-a-type]
        name: (Annotated[field.annotation, *field.metadata, None] | None, Field(None, description=field.description))
        for name, field in model.model_fields.items()
    }


SamplerChanges = create_model("SamplerChanges", __base__=Settings, **_optional_fields(SamplerConfig))
"""Settings of a sampler that differ from those of another; what is left out is inherited."""


class DerivedSampler(SamplerChanges):  # pyrefly: ignore[invalid-inheritance]
    """A sampler like that of the selected parameters, but for the settings that are given."""

    def derived_from(self, base: SamplerConfig) -> SamplerConfig:
        """Return the settings of `base` with those given here on top."""
        changes = {name: getattr(self, name) for name in self.model_fields_set & set(SamplerConfig.model_fields)}
        return base.model_copy(update=changes)

    @model_serializer(mode="wrap")
    def _write_what_is_given(self, write: Any) -> dict[str, Any]:
        inherited = set(SamplerConfig.model_fields) - self.model_fields_set
        return {name: value for name, value in write(self).items() if name not in inherited}


class PredictionConfig(Settings):
    """Predictions at the validation inputs."""

    quantiles: Annotated[tuple[Probability, ...], Field(min_length=2)] = Field(
        (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975), description="Levels of the predictive quantiles."
    )
    num_vi_draws: PositiveInt = Field(4000, description="Draws of q for the predictions of VI alone.")
    num_draws: PositiveInt | None = Field(
        None, description="Draws of the chains to predict with, evenly spread; all of them if not given."
    )
    observation_quantiles: bool = Field(True, description="Whether to compute quantiles of new observations.")

    @model_validator(mode="after")
    def _quantiles_ascend(self) -> "PredictionConfig":
        if list(self.quantiles) != sorted(set(self.quantiles)):
            raise ValueError(f"`quantiles` must be strictly ascending, got {list(self.quantiles)}")
        return self


def check_division(num_fits: int, sampler: SamplerConfig) -> None:
    """Refuse chains that cannot be divided equally over the fits, two at least for each: R-hat is within a fit."""
    if num_fits == 1:
        return
    if sampler.num_chains % num_fits or sampler.num_chains < 2 * num_fits:
        raise ValueError(
            f"`num_chains` must be a multiple of num_fits, two at least for each fit, got {sampler.num_chains} chains "
            f"and {num_fits} fits"
        )
    if sampler.frozen != "mean":
        raise ValueError(f"`num_fits` above 1 goes with frozen 'mean', got {num_fits} and frozen '{sampler.frozen}'")


class MethodConfig(Settings):
    """The method, on any posterior."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(0, description="Random seed of everything but the data.")
    first_stage: Literal["auto", "vi", "laplace"] = Field(
        "auto",
        description="'vi' is mean-field VI; 'laplace' a MAP of `vi.map_steps` steps and the Gauss–Newton diagonal "
        "there. 'auto' is 'laplace' where scales are learnt, which VI gets wrong, else 'vi'.",
    )
    num_fits: PositiveInt = Field(
        1,
        description="Independent first stages, each with its own selection, frozen values and an equal share of the "
        "chains. Predictions pool them with equal weights: the error bars then have the spread between fits too.",
    )
    vi: VIConfig = VIConfig()
    selection: SelectionConfig = SelectionConfig()
    hmc: SamplerConfig = SamplerConfig()

    @model_validator(mode="after")
    def _chains_can_be_divided(self) -> "MethodConfig":
        check_division(self.num_fits, self.hmc)
        return self

    @property
    def hmc_per_fit(self) -> SamplerConfig:
        """Settings of the chains of one fit: its share of the chains and of the budget."""
        if self.num_fits == 1:
            return self.hmc
        check_division(self.num_fits, self.hmc)
        budget = None if self.hmc.budget is None else self.hmc.budget / self.num_fits
        return self.hmc.model_copy(update={"num_chains": self.hmc.num_chains // self.num_fits, "budget": budget})

    def uses_laplace(self, *, num_scales: int) -> bool:
        """Whether the first stage is Laplace, given how many scales are learnt."""
        return num_scales > 0 if self.first_stage == "auto" else self.first_stage == "laplace"

    def num_fit_steps(self, *, num_scales: int) -> int:
        """Steps of the first stage."""
        of_mode = self.vi.map_steps * len(self.vi.weight_decays)
        return of_mode + (0 if self.uses_laplace(num_scales=num_scales) else self.vi.num_steps)
