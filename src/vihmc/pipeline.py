"""The method on one screen.

1. **Fit**: a Gaussian approximation q of all parameters, by mean-field VI or a MAP and the curvature there.
2. **Select**: score how much each parameter moves the prediction, and select the few that matter.
3. **Sample**: HMC on the selected parameters, with the others frozen at the mean of q or, per chain, a perturbed MAP.
4. **Predict**: average the model over the draws.

The first three stages may be repeated from independent starts (`num_fits`); predictions then pool the draws of all fits
with equal weights, and their spread has a part between fits beside that around each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vihmc.checkpointing import Observer
from vihmc.config.method import MethodConfig
from vihmc.diagnostics.watch import PredictionWatch, Watched, some_predictions
from vihmc.fit.first_stage import fit_first_stage, independent_start
from vihmc.fit.perturbed_map import frozen_values
from vihmc.fit.pooled_noise import with_pooled_noise
from vihmc.fit.result import FitResult
from vihmc.frameworks.adapt import to_module
from vihmc.posterior.checks import Validation
from vihmc.posterior.density import Posterior
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.predict import Prediction, predict_posterior
from vihmc.samplers.chains import Journal
from vihmc.samplers.third_stage import Sampled, check_sampler, sample_subspace
from vihmc.selection.linear_model import Captured
from vihmc.selection.second_stage import Selected, captured_at, select_parameters
from vihmc.selection.sensitivity import frozen_share
from vihmc.types import Inputs, Key, Params

_STREAM_FITS = 7000
FIT_PARTS = "fit-"


def part_name(number: int) -> str:
    """What the journal of a further fit is called: fits are counted from one where people read it."""
    return f"{FIT_PARTS}{number + 1}"


class Fitted(NamedTuple):
    """A fit, and the parameters that were selected at it."""

    fit: FitResult
    selected: Selected


@dataclass(frozen=True, eq=False)
class Inference:
    """What the method found; :meth:`predict` is what it was done for.

    Attributes:
        posterior: Model, prior, likelihood and data.
        fits: First and second stage from each start.
        sampled_per_fit: The chains around each fit.
    """

    posterior: Posterior
    fits: tuple[Fitted, ...]
    sampled_per_fit: tuple[Sampled, ...]

    @property
    def fit(self) -> FitResult:
        """The first of the fits."""
        return self.fits[0].fit

    @property
    def selected(self) -> Selected:
        """What was selected at the first of the fits."""
        return self.fits[0].selected

    @cached_property
    def sampled(self) -> Sampled:
        """The chains of all fits."""
        return Sampled.pool(self.sampled_per_fit)

    @property
    def subspace(self) -> Subspace:
        """The selected parameters."""
        return self.sampled.subspace

    def predict(self, inputs: Inputs, **settings: Any) -> Prediction:
        """Predict with error bars at `inputs`; `settings` are those of :func:`vihmc.predict.predict_posterior`."""
        there, checked = self.posterior.at_inputs("inputs", inputs)
        return predict_posterior(there, self.sampled.space, self.sampled.draws, checked, **settings)

    def params(self, draw: int) -> Params:
        """The model's tree of parameters at a draw; draws of all chains count one after the other."""
        position = jnp.asarray(self.sampled.draws[draw])
        return self.posterior.layout.unravel(self.sampled.space.embed(position))

    def to_module(self, draw: int) -> Any:
        """The model at a draw, as an object of the library that it came from.

        A module of NNX, Equinox or PyTorch; variables of Linen; parameters of Haiku, with its state if it has one.
        """
        return to_module(self.posterior.model, self.params(draw))

    def to_torch(self, draw: int) -> Any:
        """A new `torch.nn.Module` with the weights of a draw."""
        return to_module(self.posterior.model, self.params(draw), framework="torch")

    def captured_at(self, inputs: Inputs) -> Captured:
        """Share of the variance of the predictions at `inputs` that selected parameters capture, by a linear model.

        Of several fits, at the first.
        """
        there, checked = self.posterior.at_inputs("inputs", inputs)
        return captured_at(there, self.fit.q.mean, self.selected.indices, checked)

    def frozen_share(self, inputs: Inputs) -> float:
        """Share of the first-order variance of the predictions at `inputs` that frozen parameters contribute."""
        there, checked = self.posterior.at_inputs("inputs", inputs)
        return mean_frozen_share(there, self.fits, checked)


def mean_frozen_share(posterior: Posterior, fits: Sequence[Fitted], inputs: Inputs, **others: Any) -> float:
    """Share of the first-order variance that frozen parameters contribute at `inputs`, its mean over the fits."""
    shares = [
        frozen_share(posterior, fit.q.mean, fit.q.std, selected.subspace(fit.q.mean).selected, inputs, **others)
        for fit, selected in fits
    ]
    return sum(shares) / len(shares)


def infer(
    posterior: Posterior,
    config: MethodConfig | None = None,
    *,
    initial_params: Params | None = None,
    validation: Validation | tuple | None = None,
    target_inputs: Inputs | None = None,
    fitted: FitResult | Sequence[FitResult] | None = None,
    watched: Watched | None = None,
    observer: Observer | None = None,
    journal: Journal | None = None,
) -> Inference:
    """Run the method on a posterior.

    Args:
        posterior: Model, prior, likelihood and data.
        config: Settings of all stages.
        initial_params: Where the first fit starts, a tree like the model's; if not given, the parameters that the model
            came with, or small random numbers. Further fits start at other random numbers of the same kind.
        validation: Inputs, targets and, if they differ, weights, to follow the fit on.
        target_inputs: Where the model will be used: parameters are selected that matter there.
        fitted: The first stage of an earlier run on the same posterior, or several, to use as they are.
        watched: Predictions that have to converge before chains with a budget may end; those at the validation inputs,
            or at the training inputs, if not given.
        observer: Hears about progress.
        journal: Remembers what has been done, and knows what was done before an interruption.
    """
    config, observer, journal = config or MethodConfig(), observer or Observer(), journal or Journal()
    check_sampler("hmc", posterior, config.hmc)
    fits = tuple(
        fit_and_select(
            posterior, config, number, initial_params=initial_params, validation=validation, fitted=fitted,
            target_inputs=target_inputs, observer=observer, journal=journal,
        )
        for number in range(config.num_fits)
    )  # fmt: skip
    watched = watched or some_predictions(posterior, posterior.inputs if validation is None else validation[0])
    means = with_pooled_noise(posterior, [one.fit.q.mean for one in fits])
    sampled = (
        sample_around(
            posterior, config, replace(fit.q, mean=mean), selected, number,
            watched=watched, observer=observer, journal=journal,
        )
        for number, ((fit, selected), mean) in enumerate(zip(fits, means, strict=True))
    )  # fmt: skip
    return Inference(posterior, fits, tuple(sampled))


def fit_and_select(
    posterior: Posterior,
    config: MethodConfig,
    number: int = 0,
    *,
    observer: Observer,
    journal: Journal,
    initial_params: Params | None = None,
    validation: Validation | tuple | None = None,
    target_inputs: Inputs | None = None,
    fitted: FitResult | Sequence[FitResult] | None = None,
) -> Fitted:
    """Run the first two stages of fit number `number`; arguments are those of :func:`infer`."""
    (key_fit, key_scores, key_selection, _), part = _stage_keys(config, number), _journal_of(journal, number)
    start = initial_params if number == 0 else independent_start(posterior, initial_params, key_fit)
    known = (fitted,) if isinstance(fitted, FitResult) else tuple(fitted or ())
    with observer.stage("vi", config.num_fit_steps(num_scales=posterior.num_scales)):
        fit = part.once("fit", lambda: fit_first_stage(
            posterior, config, key_fit, initial_params=start, fitted=known[number] if number < len(known) else None,
            validation=validation, on_record=observer.on_fit, checkpoints=part,
        ))  # fmt: skip
    with observer.stage("selection", 1):
        selected = part.once("selected", lambda: select_parameters(
            posterior, fit.q, config.selection, key_scores=key_scores, key_selection=key_selection,
            target_inputs=target_inputs, validation=validation, on_direction=observer.on_direction,
        ))  # fmt: skip
    return Fitted(fit, selected)


def sample_around(
    posterior: Posterior,
    config: MethodConfig,
    q: MeanField,
    selected: Selected,
    number: int,
    *,
    watched: Watched,
    observer: Observer,
    journal: Journal,
) -> Sampled:
    """Run the chains of one fit, number `number`, on the parameters that were selected at it, around its Gaussians."""
    sampler, rng_key, part = config.hmc_per_fit, _stage_keys(config, number)[3], _journal_of(journal, number)
    subspace = selected.subspace(q.mean)
    frozen = frozen_values(posterior, q, subspace, config, rng_key, observer, part)
    predictions = watched(subspace if frozen is None else whole_space(subspace.center))
    watch = PredictionWatch(
        *predictions, targets=None if frozen is None else range(sampler.num_chains), on_look=observer.on_look
    )
    with observer.stage("hmc", sampler.num_warmup + sampler.num_draws):
        if sampler.budget is not None:
            observer.on_budget(sampler.budget)
        return sample_subspace(
            posterior, q, subspace, sampler, rng_key, frozen=frozen, on_steps=observer.on_steps,
            watch=watch, journal=part.chains("hmc", of_all=frozen is not None),
        )  # fmt: skip


def _stage_keys(config: MethodConfig, number: int) -> Key:
    """Random keys of a fit, its scores, its selection and its chains."""
    key = jax.random.key(config.seed)
    return jax.random.split(jax.random.fold_in(key, _STREAM_FITS + number) if number else key, 4)


def _journal_of(journal: Journal, number: int) -> Journal:
    """The journal of a fit: that of the run for the first, and a part of it for each of the others."""
    return journal.part(part_name(number)) if number else journal
