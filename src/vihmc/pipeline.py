"""The method on one screen.

1. **Fit**: a Gaussian approximation q of all parameters, by mean-field VI or a MAP and the curvature there.
2. **Select**: score how much each parameter moves the prediction, and select the few that matter.
3. **Sample**: HMC on the selected parameters, with the others frozen at the mean of q or, per chain, a perturbed MAP.
4. **Predict**: average the model over the draws.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from vihmc.checkpointing import Observer
from vihmc.config.method import MethodConfig
from vihmc.diagnostics.watch import PredictionWatch, Watched, some_predictions
from vihmc.fit.first_stage import fit_first_stage
from vihmc.fit.perturbed_map import frozen_values
from vihmc.fit.result import FitResult
from vihmc.frameworks.adapt import to_module
from vihmc.posterior.checks import Validation
from vihmc.posterior.density import Posterior
from vihmc.posterior.subspace import Subspace, whole_space
from vihmc.predict import Prediction, predict_posterior
from vihmc.samplers.chains import Journal
from vihmc.samplers.third_stage import Sampled, check_sampler, sample_subspace
from vihmc.selection.linear_model import Captured
from vihmc.selection.second_stage import Selected, captured_at, select_parameters
from vihmc.selection.sensitivity import frozen_share
from vihmc.types import Inputs, Key, Params


@dataclass(frozen=True, eq=False)
class Inference:
    """What the method found; :meth:`predict` is what it was done for."""

    posterior: Posterior
    fit: FitResult
    selected: Selected
    sampled: Sampled

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
        """Share of the variance of the predictions at `inputs` that selected parameters capture, by a linear model."""
        there, checked = self.posterior.at_inputs("inputs", inputs)
        return captured_at(there, self.fit.q.mean, self.subspace.selected, checked)

    def frozen_share(self, inputs: Inputs) -> float:
        """Share of the first-order variance of the predictions at `inputs` that frozen parameters contribute."""
        q, (there, checked) = self.fit.q, self.posterior.at_inputs("inputs", inputs)
        return frozen_share(there, q.mean, q.std, self.subspace.selected, checked)


def infer(
    posterior: Posterior,
    config: MethodConfig | None = None,
    *,
    initial_params: Params | None = None,
    validation: Validation | tuple | None = None,
    target_inputs: Inputs | None = None,
    fitted: FitResult | None = None,
    watched: Watched | None = None,
    observer: Observer | None = None,
    journal: Journal | None = None,
) -> Inference:
    """Run the method on a posterior.

    Args:
        posterior: Model, prior, likelihood and data.
        config: Settings of all stages.
        initial_params: Where the fit starts, a tree like the model's; if not given, the parameters that the model came
            with, or small random numbers.
        validation: Inputs, targets and, if they differ, weights, to follow the fit on.
        target_inputs: Where the model will be used: parameters are selected that matter there.
        fitted: The first stage of an earlier run on the same posterior, to use as it is.
        watched: Predictions that have to converge before chains with a budget may end; those at the validation inputs,
            or at the training inputs, if not given.
        observer: Hears about progress.
        journal: Remembers what has been done, and knows what was done before an interruption.
    """
    config, observer, journal = config or MethodConfig(), observer or Observer(), journal or Journal()
    check_sampler("hmc", posterior, config.hmc)
    fit, selected = fit_and_select(
        posterior, config, initial_params=initial_params, validation=validation, target_inputs=target_inputs,
        fitted=fitted, observer=observer, journal=journal,
    )  # fmt: skip
    subspace, rng_key = selected.subspace(fit.q.mean), _stage_keys(config)[3]
    frozen = frozen_values(posterior, fit.q, subspace, config, rng_key, observer, journal)
    predictions = (watched or some_predictions(posterior, posterior.inputs if validation is None else validation[0]))(
        subspace if frozen is None else whole_space(subspace.center)
    )
    watch = PredictionWatch(*predictions, one_target=frozen is None, on_look=observer.on_look)
    with observer.stage("hmc", config.hmc.num_warmup + config.hmc.num_draws):
        if config.hmc.budget is not None:
            observer.on_budget(config.hmc.budget)
        sampled = sample_subspace(
            posterior, fit.q, subspace, config.hmc, rng_key, frozen=frozen, on_steps=observer.on_steps,
            watch=watch, journal=journal.chains("hmc", of_all=frozen is not None),
        )  # fmt: skip
    return Inference(posterior, fit, selected, sampled)


def fit_and_select(
    posterior: Posterior,
    config: MethodConfig,
    *,
    observer: Observer,
    journal: Journal,
    initial_params: Params | None = None,
    validation: Validation | tuple | None = None,
    target_inputs: Inputs | None = None,
    fitted: FitResult | None = None,
) -> tuple[FitResult, Selected]:
    """Run the first two stages; arguments are those of :func:`infer`."""
    key_fit, key_scores, key_selection, _ = _stage_keys(config)
    with observer.stage("vi", config.num_fit_steps(num_scales=posterior.num_scales)):
        fit = journal.once("fit", lambda: fit_first_stage(
            posterior, config, key_fit, initial_params=initial_params, fitted=fitted,
            validation=validation, on_record=observer.on_fit, checkpoints=journal,
        ))  # fmt: skip
    with observer.stage("selection", 1):
        selected = journal.once("selected", lambda: select_parameters(
            posterior, fit.q, config.selection, key_scores=key_scores, key_selection=key_selection,
            target_inputs=target_inputs, validation=validation, on_direction=observer.on_direction,
        ))  # fmt: skip
    return fit, selected


def _stage_keys(config: MethodConfig) -> Key:
    """Random keys of the fit, the scores, the selection and the chains."""
    return jax.random.split(jax.random.key(config.seed), 4)
