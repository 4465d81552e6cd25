"""The second stage as the pipeline runs it: scores, the selected parameters, and the variance that these capture."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vihmc.config.method import SelectionConfig
from vihmc.errors import InputError
from vihmc.posterior.checks import Validation
from vihmc.posterior.density import Posterior
from vihmc.posterior.mean_field import MeanField
from vihmc.posterior.subspace import Subspace
from vihmc.selection.captured_variance import find_captured
from vihmc.selection.linear_model import NUM_DIRECTIONS, NUM_POINTS, Captured, linearise
from vihmc.selection.rules import select
from vihmc.selection.sensitivity import Scores, score
from vihmc.types import Inputs, Key, Vector

_STREAM_LINEAR = 5000
_MAX_OPERATIONS = 1e11
"""Captured variance that nobody asked for is left out where it would take more: about a minute on a few cores."""
_MAX_NUMBERS = 3e8
_OUTPUT_COUNT = 1000
"""Weights of an output layer that are selected, if nothing else is asked for."""


class Selected(NamedTuple):
    """The outcome of the second stage.

    Attributes:
        scores: Sensitivity of every parameter.
        indices: The selected parameters, ascending.
        captured: Share of the predictive variance that they capture; None if it was not computed.
    """

    scores: Scores
    indices: Int[np.ndarray, " selected"]
    captured: Captured | None

    def __repr__(self) -> str:
        """How many were selected, and what they capture."""
        values = np.asarray(self.scores.values, dtype=float)
        share = 100 * values[self.indices].sum() / values.sum()
        lines = [
            f"Selected {len(self.indices):,} of {values.size:,} parameters",
            f"{share:.1f} % of the first-order variance",
        ]
        return "\n  ".join(lines if self.captured is None else [*lines, repr(self.captured)])

    def subspace(self, center: Vector) -> Subspace:
        """The selected parameters and all learnt scales, with the other parameters at `center`."""
        scales = np.arange(len(self.scores.values), len(center))
        return Subspace.of(np.concatenate([self.indices, scales]), center)


def select_parameters(
    posterior: Posterior,
    q: MeanField,
    config: SelectionConfig,
    *,
    key_scores: Key,
    key_selection: Key,
    target_inputs: Inputs | None = None,
    validation: Validation | tuple | None = None,
    on_direction: Callable[[int, int], None] | None = None,
) -> Selected:
    """Score every parameter of the model, select, and find the captured variance; learnt scales are those of q.

    Args:
        posterior: Model and data.
        q: The Gaussian approximation of the first stage.
        config: The rule.
        key_scores: For scores that are estimated.
        key_selection: For the random baseline and the linear model.
        target_inputs: Where the model will be used, whatever `config.target_inputs` says.
        validation: Validation data, if these are the target inputs.
        on_direction: Called with how many Gauss–Newton products have been computed, and of how many.
    """
    num_scales = posterior.num_scales
    if target_inputs is None:
        config = _with_output_layer(posterior, config)
    posterior, q = posterior.given_scales(q.mean), q.first(posterior.num_params)
    inputs, weights = _find_target_inputs(posterior, config, target_inputs, validation)
    config = config.with_defaults(
        has_target_inputs=target_inputs is not None, num_params=posterior.num_params, num_scales=num_scales
    )
    scores = score(posterior, q.mean, q.std, inputs, weights=weights, rng_key=key_scores)
    linear = None
    if _needs_linear_model(posterior, config):
        key_linear = jax.random.fold_in(key_selection, _STREAM_LINEAR)
        linear = linearise(posterior, q.mean, inputs, key_linear, weights=weights, on_direction=on_direction)
    values, config = _within(posterior, config, scores.values)
    subspace = select(
        values,
        config,
        mean=q.mean,
        std=q.std,
        linearised=linear,
        frozen_layers=posterior.frozen_layers(),
        rng_key=key_selection,
    )
    indices = np.asarray(subspace.selected)
    return Selected(scores, indices, None if linear is None else find_captured(linear, indices))


def of_model(posterior: Posterior, selected: Int[np.ndarray | Array, " selected"]) -> Int[np.ndarray, " weights"]:
    """Those of the selected parameters that are the model's, not scales."""
    indices = np.asarray(selected)
    return indices[indices < posterior.num_params]


def captured_at(
    posterior: Posterior, mean: Vector, selected: Int[np.ndarray | Array, " selected"], inputs: Inputs
) -> Captured:
    """Share of the variance of the predictions at `inputs` that selected parameters capture, by a linear model."""
    checked, weights = posterior.check_inputs("inputs", inputs), mean[: posterior.num_params]
    linear = linearise(posterior.given_scales(mean), weights, checked, jax.random.key(0))
    return find_captured(linear, of_model(posterior, selected))


def _with_output_layer(posterior: Posterior, config: SelectionConfig) -> SelectionConfig:
    """Where the noise is the fit's and nothing else is asked for, the output layer: its density is a quadratic form."""
    is_open = config.within is None and config.threshold is None and config.target_inputs == "training"
    if not (is_open and posterior.scales_are_cut and posterior.output_layer and config.rule in ("auto", "sensitivity")):
        return config
    return config.model_copy(update={"within": posterior.output_layer, "count": config.count or _OUTPUT_COUNT})


def _within(posterior: Posterior, config: SelectionConfig, values: Array) -> tuple[Array, SelectionConfig]:
    """Scores, zero outside the arrays that may be selected from, and a count that these arrays have."""
    if config.within is None:
        return values, config
    names, sizes = posterior.layout.leaf_names, posterior.layout.leaf_sizes
    is_inside = np.repeat([name.startswith(config.within) for name in names], sizes)
    if not is_inside.any() or config.rule != "sensitivity":
        raise InputError(
            f"`selection.within` must be the beginning of a name among {', '.join(names)}, with the rule "
            f"'sensitivity', got '{config.within}' and the rule '{config.rule}'."
        )
    count = None if config.count is None else min(config.count, int(is_inside.sum()))
    return jnp.where(jnp.asarray(is_inside), values, 0), config.model_copy(update={"count": count})


def _needs_linear_model(posterior: Posterior, config: SelectionConfig) -> bool:
    if config.rule == "predictive" or config.captured_variance == "always":
        return True
    if config.captured_variance == "never":
        return False
    num_products = NUM_POINTS + 2 * NUM_DIRECTIONS
    operations = float(num_products) * posterior.num_network_rows * posterior.num_params
    return operations <= _MAX_OPERATIONS and float(num_products) * posterior.num_params <= _MAX_NUMBERS


def _find_target_inputs(
    posterior: Posterior,
    config: SelectionConfig,
    target_inputs: Inputs | None,
    validation: Validation | tuple | None,
) -> tuple[Inputs, Float[Array, "..."] | None]:
    """The target inputs, and how much each prediction there counts."""
    if target_inputs is not None:
        return posterior.check_inputs("target_inputs", target_inputs), None
    if config.target_inputs == "training":
        return posterior.inputs, posterior.weights
    if config.target_inputs_file is not None:
        raise InputError(
            f"`selection.target_inputs` must be 'training' or 'validation' where no file is read, got "
            f"'{config.target_inputs_file}'. Pass the inputs themselves as `target_inputs`."
        )
    if validation is None:
        raise InputError("`selection.target_inputs` must be 'training' without validation data, got 'validation'.")
    checked = posterior.check_validation(validation)
    return checked.inputs, None if checked.weights is None else jnp.asarray(checked.weights)
