"""The method on one screen.

1. **VI**: fit independent Gaussians to all parameters; or **Laplace**: find a mode and take the curvature there.
2. **Sensitivity**: score how much each parameter moves the prediction; keep the few that matter, and say how much of
   the predictive variance they hold.
3. **HMC**: sample the kept parameters exactly, with the others frozen at the mean of the fit; or in every chain at a
   draw of its own, from the fit or **anchored** to data and a prior that were moved at random.
4. **Prediction**: average the model over the draws.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from vihmc import predict as prediction
from vihmc.config.method import MethodConfig, SamplerConfig, SelectionConfig
from vihmc.diagnostics.convergence import find_bad_chains
from vihmc.errors import InputError
from vihmc.fit import laplace, vi
from vihmc.fit.perturbed_map import draw_anchored
from vihmc.fit.result import VIInfo, VIResult, judge
from vihmc.memory import peak_memory_gb
from vihmc.posterior.density import Posterior, Validation, check_inputs_like, check_validation
from vihmc.posterior.layer_costs import layers_allowed
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.shards import check_shards
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.predict import Prediction
from vihmc.runs.journal import Journal, Selected
from vihmc.samplers import ChainJournal, Chains, sample
from vihmc.samplers.kernel import StepInfo, Tuning
from vihmc.samplers.target import Target, differs_per_chain, is_anchored
from vihmc.selection import sensitivity
from vihmc.selection.captured_variance import find_captured
from vihmc.selection.linear_model import Captured, linearise
from vihmc.selection.rules import select
from vihmc.selection.sensitivity import Scores
from vihmc.types import Inputs, Key, Params

InitialParams = Callable[[Key], Params]
"""Draws a tree of parameters to start a fit from."""
_STREAM_FITS = 2000  # away from those that others split off
_STREAM_LINEAR = 5000
_STREAM_ANCHORED = 6000


class Observer:
    """Is told how a run goes. This one listens to nothing; the command line has one that draws progress bars."""

    def __init__(self) -> None:
        """Start with no time spent."""
        self.seconds: dict[str, float] = {}
        self.peak_memory_gb: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[None]:
        """Surround a stage of `total` steps; measures its wall time, and the memory taken by its end."""
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
        self.peak_memory_gb[name] = peak_memory_gb()

    def on_vi(self, done: int, info: VIInfo) -> None:
        """Hear about the fit: steps done, mean loss since the last call."""

    def on_chain(self, done: int) -> None:
        """Hear for how many chains it is known what they hold their frozen parameters at."""

    def on_fold(self, done: int) -> None:
        """Hear how many groups of functions have been left out and predicted."""

    def on_steps(self, phase: str, done: int, info: StepInfo) -> None:
        """Hear about the chains: phase, steps done, those of the warm-up included, statistics since the last call."""


@dataclass(frozen=True, eq=False)
class Sampled:
    """Chains on a subspace; those that went wrong are named and, if asked for, left out of `chains`."""

    subspace: Subspace
    chains: Chains
    all_chains: Chains
    tuning: Tuning
    bad_chains: dict[int, str]
    dropped: bool
    num_integrated: int = 0
    """Kept parameters of the last layer that were integrated out, and drawn afterwards."""
    is_per_chain: bool = False
    """Whether each chain has frozen parameters of its own; draws then are of all parameters."""

    @property
    def space(self) -> Subspace:
        """What draws are of: the kept parameters, or all."""
        return draws_space(self.subspace, is_per_chain=self.is_per_chain)

    @property
    def draws(self) -> np.ndarray:
        """All draws, one after the other."""
        return self.chains.positions.reshape(-1, self.space.num_kept)

    @property
    def kept_positions(self) -> np.ndarray:
        """Draws of the kept parameters alone: (chain, draw, kept)."""
        positions = self.chains.positions
        return positions[..., np.asarray(self.subspace.kept)] if self.is_per_chain else positions

    def spread(self, num_draws: int | None) -> tuple[Subspace, np.ndarray]:
        """What draws are of, and some of them, evenly spread; all of them if no number is given."""
        return self.space, spread_draws(self.chains, num_draws)


@dataclass(frozen=True, eq=False)
class Inference:
    """What the method found; :meth:`predict` is what it was done for."""

    posterior: Posterior
    vi: VIResult
    scores: Scores
    sampled: Sampled
    captured: Captured
    """Share of the predictive variance that the kept parameters hold, where predictions were scored."""

    @property
    def subspace(self) -> Subspace:
        """The kept parameters."""
        return self.sampled.subspace

    def predict(
        self,
        inputs: Inputs,
        *,
        quantiles: tuple[float, ...] = (0.025, 0.5, 0.975),
        observations: bool = True,
        memory_mb: float = 256.0,
    ) -> Prediction:
        """Predict with error bars.

        Args:
            inputs: Where; for an operator, functions, whose fields are predicted at the training locations.
            quantiles: Levels.
            observations: Whether to find the quantiles of new observations too, the costly part.
            memory_mb: Bound on the predictions held at a time.
        """
        return prediction.predict_posterior(
            self.posterior,
            self.sampled.space,
            self.sampled.draws,
            check_inputs_like("inputs", inputs, self.posterior.inputs),
            quantiles=quantiles,
            observations=observations,
            memory_mb=memory_mb,
        )

    def captured_at(self, inputs: Inputs, config: SelectionConfig | None = None) -> Captured:
        """Share of the variance of the predictions at `inputs` that the kept parameters hold, by a linear model."""
        checked = check_inputs_like("inputs", inputs, self.posterior.inputs)
        config = config or SelectionConfig()
        linear = linearise(self.posterior, self.vi.q.mean, checked, config, jax.random.key(0))
        return find_captured(linear, np.asarray(self.subspace.kept), config)

    def frozen_share(self, inputs: Inputs) -> float:
        """Share of the first-order variance of the predictions at `inputs` that the frozen parameters hold.

        With frozen parameters held at their mean the error bars do not have it.
        """
        checked = check_inputs_like("inputs", inputs, self.posterior.inputs)
        q = self.vi.q
        return sensitivity.frozen_share(self.posterior, q.mean, q.std, self.subspace.kept, checked)


def infer(
    posterior: Posterior,
    config: MethodConfig | None = None,
    *,
    initial_params: Params | None = None,
    validation: Validation | tuple | None = None,
    observer: Observer | None = None,
    fitted: VIResult | None = None,
    journal: Journal | None = None,
    use_inputs: Inputs | None = None,
) -> Inference:
    """Run the method on a posterior.

    Args:
        posterior: Model, prior, likelihood and data.
        config: Settings of all stages.
        initial_params: Where the fit starts, a tree like the model's; small random numbers if not given.
        validation: Inputs, targets and, if they differ, weights, to follow the fit on and to score predictions at if so
            configured.
        observer: Hears about progress.
        fitted: The first stage of an earlier run on the same posterior, to use as it is.
        journal: Keeps what has been done, and knows what was done before an interruption.
        use_inputs: Where the model will be used: parameters are kept that matter there, whatever
            `config.sensitivity.inputs` says.
    """
    config, observer, journal = config or MethodConfig(), observer or Observer(), journal or Journal()
    check_sampler("hmc", posterior, config.hmc)
    fitted, scores, subspace, captured = choose(
        posterior,
        config,
        initial_params=initial_params,
        validation=validation,
        observer=observer,
        fitted=fitted,
        journal=journal,
        use_inputs=use_inputs,
    )
    key_hmc = _stage_keys(config)[3]
    anchored = _find_anchored(posterior, fitted.q, subspace, config, key_hmc, observer, journal)
    with observer.stage("hmc", config.hmc.num_warmup + config.hmc.num_draws):
        chains = journal.chains("hmc", of_all=differs_per_chain(subspace, config.hmc))
        sampled = sample_subspace(
            posterior,
            fitted.q,
            subspace,
            config.hmc,
            key_hmc,
            anchored=anchored,
            on_steps=observer.on_steps,
            journal=chains,
        )
    return Inference(posterior, fitted, scores, sampled, captured)


def _find_anchored(
    posterior: Posterior,
    q: MeanField,
    subspace: Subspace,
    config: MethodConfig,
    rng_key: Key,
    observer: Observer,
    journal: Journal,
) -> Array | None:
    """What each chain holds the frozen parameters at, if that has to be found beforehand."""
    if not is_anchored(subspace, config.hmc):
        return None
    with observer.stage("frozen", config.hmc.num_chains):
        return draw_anchored(
            posterior,
            q,
            config.vi,
            jax.random.fold_in(rng_key, _STREAM_ANCHORED),
            num_chains=config.hmc.num_chains,
            num_steps=config.hmc.num_anchor_steps,
            at_once=config.hmc.chains_at_once == "all",
            on_chain=observer.on_chain,
            checkpoints=journal,
        )


class Choice(NamedTuple):
    """The first two stages: a fit, the scores at its mean, what is to be sampled, and what of the variance that is."""

    vi: VIResult
    scores: Scores
    subspace: Subspace
    captured: Captured


def choose(
    posterior: Posterior,
    config: MethodConfig | None = None,
    *,
    initial_params: Params | None = None,
    validation: Validation | tuple | None = None,
    observer: Observer | None = None,
    fitted: VIResult | None = None,
    journal: Journal | None = None,
    use_inputs: Inputs | None = None,
) -> Choice:
    """Fit, score and select: all that :func:`infer` does before its chains, with the same arguments."""
    config, observer, journal = config or MethodConfig(), observer or Observer(), journal or Journal()
    key_vi, key_scores, key_selection, _ = _stage_keys(config)
    if (known := journal.recall_fit()) is not None:
        fitted = known
    elif fitted is not None:
        fitted = judge(fitted, posterior, config.vi, key_vi)
    else:
        with observer.stage("vi", config.num_fit_steps):
            fitted = _fit_fn(config)(
                posterior,
                config.vi,
                key_vi,
                initial_mean=None if initial_params is None else posterior.layout.ravel(initial_params),
                validation=validation,
                on_record=observer.on_vi,
                checkpoints=journal,
            )
    journal.keep_fit(fitted)
    q = fitted.q

    selected = journal.recall_selected()
    if selected is None:
        with observer.stage("sensitivity", 1):
            inputs, weights = _scoring_inputs(posterior, config, validation, use_inputs)
            scores = sensitivity.score(
                posterior, q.mean, q.std, inputs, config.sensitivity, key_scores, weights=weights
            )
            key_linear = jax.random.fold_in(key_selection, _STREAM_LINEAR)
            linear = linearise(posterior, q.mean, inputs, config.selection, key_linear, weights=weights)
            subspace = select(
                scores.values,
                config.selection.settled(use_is_named=use_inputs is not None or config.use_is_named),
                mean=q.mean,
                std=q.std,
                linearised=linear,
                allowed=layers_allowed(posterior),
                rng_key=key_selection,
            )
            kept = np.asarray(subspace.kept)
            selected = Selected(scores, kept, find_captured(linear, kept, config.selection))
        journal.keep_selected(selected)
    return Choice(fitted, selected.scores, Subspace.of(selected.kept, q.mean), selected.captured)


def _fit_fn(config: MethodConfig) -> Callable[..., VIResult]:
    """What finds the Gaussians of the first stage."""
    return laplace.fit if config.first_stage == "laplace" else vi.fit


def _stage_keys(config: MethodConfig) -> Key:
    """Random keys of the fit, the scores, the selection and the chains."""
    return jax.random.split(jax.random.key(config.seed), 4)


def check_sampler(stage: str, posterior: Posterior, config: SamplerConfig) -> None:
    """Refuse settings that do not fit the data, before anything has been computed."""
    if config.start == "fits" and stage != "reference":
        raise InputError(
            f"`{stage}.start` must be 'q', 'q_mean' or 'prior', because frozen parameters are held at one fit, got "
            "'fits'; `reference.start` may be 'fits'."
        )
    if config.num_shards is not None:
        check_shards(f"{stage}.num_shards", posterior.num_observations, config.num_shards)


def sample_subspace(
    posterior: Posterior,
    q: MeanField,
    subspace: Subspace,
    config: SamplerConfig,
    rng_key: Key,
    *,
    fits: Sequence[MeanField] = (),
    anchored: Array | None = None,
    on_steps: Callable[[str, int, StepInfo], None] | None = None,
    journal: ChainJournal | None = None,
) -> Sampled:
    """Sample the posterior of the kept parameters given that the others are what `subspace` holds them at.

    Or what `anchored` says, a row for each chain, if `config` asks for that.
    """
    key_start, key_chains, key_metric, key_head = jax.random.split(rng_key, 4)
    target = Target.of(
        posterior, q, subspace, config, key_start=key_start, key_metric=key_metric, fits=fits, anchored=anchored
    )
    chains, tuning = sample(
        target.log_density,
        target.starts,
        config,
        key_chains,
        initial_var=target.initial_var,
        finish=partial(target.finish, rng_key=key_head, dtype=np.dtype(q.mean.dtype)),
        on_steps=on_steps,
        journal=journal,
    )
    chosen, bad, dropped = choose_chains(chains, config)
    return Sampled(
        subspace,
        chosen,
        chains,
        tuning,
        bad,
        dropped,
        num_integrated=subspace.num_kept - target.starts.shape[1],
        is_per_chain=target.frozen is not None,
    )


def draws_space(subspace: Subspace, *, is_per_chain: bool) -> Subspace:
    """What draws are of: the kept parameters, or all where the frozen ones differ from chain to chain."""
    return whole_space(subspace.center) if is_per_chain else subspace


def choose_chains(chains: Chains, config: SamplerConfig) -> tuple[Chains, dict[int, str], bool]:
    """Return the chains to use, those that went wrong, and whether they were left out."""
    bad = find_bad_chains(chains)
    good = [chain for chain in range(chains.num_chains) if chain not in bad]
    dropped = bool(config.drop_bad_chains and bad and good)
    return chains.keep(good) if dropped else chains, bad, dropped


def spread_draws(chains: Chains, num_draws: int | None) -> np.ndarray:
    """Some draws of all chains, evenly spread, one after the other; all of them if no number is given."""
    draws = chains.positions.reshape(-1, chains.positions.shape[-1])
    count = min(num_draws or len(draws), len(draws))
    return draws[np.linspace(0, len(draws) - 1, count).round().astype(int)]


def sample_everything(
    posterior: Posterior,
    q: MeanField,
    config: SamplerConfig,
    rng_key: Key,
    *,
    fits: Sequence[MeanField] = (),
    on_steps: Callable[[str, int, StepInfo], None] | None = None,
    journal: ChainJournal | None = None,
) -> Sampled:
    """Sample all parameters: the reference that the method is judged by. Chains may start from several fits in turn."""
    space = whole_space(q.mean)
    return sample_subspace(posterior, q, space, config, rng_key, fits=fits, on_steps=on_steps, journal=journal)


def fit_again(
    posterior: Posterior,
    config: MethodConfig,
    fitted: VIResult,
    *,
    num_fits: int,
    initial_params: InitialParams | None,
    journal: Journal | None = None,
) -> list[MeanField]:
    """Fit anew from other random starts, for chains that begin in different places; the first is `fitted`."""
    journal, fits = journal or Journal(), [fitted.q]
    for number in range(1, num_fits):
        key = jax.random.fold_in(jax.random.key(config.seed), _STREAM_FITS + number)
        key_start, key_vi = jax.random.split(key)
        start = None if initial_params is None else posterior.layout.ravel(initial_params(key_start))
        part = journal.part(f"fit-{number}")
        fit = part.recall_fit() or _fit_fn(config)(posterior, config.vi, key_vi, initial_mean=start, checkpoints=part)
        part.keep_fit(fit)
        fits.append(fit.q)
    return fits


def _scoring_inputs(
    posterior: Posterior, config: MethodConfig, validation: Validation | tuple | None, use_inputs: Inputs | None
) -> tuple[Inputs, Array | None]:
    if use_inputs is not None:
        return check_inputs_like("use_inputs", use_inputs, posterior.inputs), None
    if config.sensitivity.inputs == "training":
        return posterior.inputs, posterior.weights
    if validation is None:
        raise InputError("`sensitivity.inputs` must be 'training' without validation data, got 'validation'.")
    checked = check_validation(posterior, validation)
    return checked.inputs, None if checked.weights is None else jnp.asarray(checked.weights)
