r"""The posterior of an operator on a regular grid: rows of sensors in, rows of locations out.

.. math::
    \log p(\theta \mid D) = \log N(\theta; 0, \mathrm{prior\_std}^2)
    + \sum_{u, x} \log N(y(u, x);\, F_\theta(u)(x),\ \mathrm{noise\_std}^2) + \mathrm{const}

The model is a :class:`vihmc.models.regular_grid.GridOperator`. Its network computes in the precision of the targets;
energies are sums in the widest float there is. Fields can be predicted at another resolution, where functions are
sampled as finely.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from vihmc.errors import InputError
from vihmc.models.regular_grid import GridOperator
from vihmc.posterior.checks import Validation, as_finite, check_lengths
from vihmc.posterior.cut import LEFT_OUT, cut_scales
from vihmc.posterior.density import Posterior, RowWise
from vihmc.posterior.layout import ParamLayout
from vihmc.posterior.likelihoods import Gaussian, Likelihood
from vihmc.posterior.normal import LOG_2PI
from vihmc.posterior.priors import Prior
from vihmc.posterior.squared_gradients import estimate_squared_gradients
from vihmc.posterior.subspace import Subspace
from vihmc.types import Inputs, PredictFn, Vector, register_pytree

_FUNCTIONS_TO_SCORE = 32
_NUM_PROBES = 64
_OUTPUT_LAYER = "project.1"
"""The arrays of the output layer are the last: a bias, and then weights."""


@dataclass(frozen=True, eq=False)
class FieldPosterior(Posterior):
    """A posterior whose observations are functions on a grid. Build it with :meth:`on_grid`.

    Attributes:
        locations: Where every training field is known.
    """

    locations: Float[Array, "locations dims"]

    @classmethod
    def on_grid(
        cls,
        model: GridOperator,
        functions: Any,
        locations: Any,
        fields: Any,
        *,
        prior_std: float | None = None,
        likelihood: Gaussian | None = None,
        dtype: str = "float32",
    ) -> "FieldPosterior":
        """Check the data and build the posterior.

        Args:
            model: The operator on the grid.
            functions: Values of each function at the sensors, (functions, sensors).
            locations: Coordinates, (locations, dims).
            fields: The field of each function at each location, (functions, locations).
            prior_std: Known prior std of every weight and bias; learnt if not given.
            likelihood: Gaussian, with one learnt noise for all locations if not given.
            dtype: What the network computes in.

        Raises:
            InputError: If data are not finite or do not fit the model.
        """
        functions, locations, fields = (
            as_finite(name, value, dtype)
            for name, value in (("functions", functions), ("locations", locations), ("fields", fields))
        )
        check_lengths(functions, fields)
        layout = ParamLayout.of(jax.eval_shape(model.init, jax.random.key(0)))
        theta = jax.ShapeDtypeStruct((layout.size,), dtype)
        outputs = jax.eval_shape(lambda theta: model.apply(layout.unravel(theta), functions), theta)
        bound = (likelihood or Gaussian(per_output=False)).bind(fields, outputs)
        prior = Prior(prior_std).on(layout, jnp.result_type(float))
        layout = replace(layout, scale_names=(*bound.scale_names, *prior.scale_names))
        return cls(model, layout, functions, fields, bound, prior, locations)

    def predict(self, theta: Vector, inputs: Inputs) -> Float[Array, "functions locations"]:
        """Run the operator on functions, at the locations of the grid that has as many sensors."""
        return self.model.apply(self.layout.unravel(theta.astype(self.targets.dtype)), inputs)

    def log_likelihood(self, theta: Vector, batch: Any = None) -> Array:
        """Log likelihood of all fields, or an unbiased estimate of it from those of some functions."""
        rows = slice(None) if batch is None else batch
        outputs, targets = self.predict(theta, self.inputs[rows]), self.targets[rows]
        found = self.log_likelihood_of_outputs(theta, outputs, targets)
        return self.num_observations / targets.shape[0] * found

    def log_likelihood_of_outputs(self, theta: Vector, outputs: Array, targets: Array) -> Array:
        """Log likelihood of fields, given what the model predicts of them."""
        wide = jnp.result_type(float)
        scales = self.scales(theta).likelihood.astype(wide)
        return self.likelihood.log_likelihood(targets.astype(wide), outputs.astype(wide), scales)

    @property
    def has_fast_squared_gradients(self) -> bool:
        """Yes: they are estimated from some functions."""
        return True

    def sum_squared_gradients(
        self, theta: Vector, inputs: Inputs, *, weights: Array | None = None, memory_mb: float = 256.0
    ) -> Vector:
        """Estimate sums of squared derivatives from random signs, on some functions that are evenly spread.

        Exact sums need a pass through the network for every value of every field.
        """
        count = min(len(inputs), _FUNCTIONS_TO_SCORE)
        index = np.linspace(0, len(inputs) - 1, count).round().astype(int)
        squares, _ = estimate_squared_gradients(
            self.predict, theta.astype(self.targets.dtype), inputs[index], jax.random.key(0),
            weights=None if weights is None else weights[index], num_probes=_NUM_PROBES, memory_mb=memory_mb,
        )  # fmt: skip
        return (squares * (len(inputs) / count)).astype(theta.dtype)

    def restrict(self, subspace: Subspace, *, num_shards: int | None = None) -> Callable[[Array], Array]:
        """The log density of the selected parameters, with the noise found where functions were left out.

        The selected weights do not inform the noise (:mod:`vihmc.posterior.cut`). If weights of the output layer alone
        are selected, the density is a quadratic form, which is computed once.
        """
        if num_shards is not None:
            raise InputError(f"`num_shards` must be left out for fields on a grid, got {num_shards}.")
        sums = self._sums_below(subspace, subspace.center)
        scales = subspace.center[self.num_params :]
        density = Partial(_density_of_selected, self, subspace, sums)
        return cut_scales(density, scales=scales, counts=self.scale_counts)

    @property
    def _noise_counts(self) -> Float[Array, " scales"]:
        """The functions that the fit left out: errors at the locations of one function are not independent."""
        count = max(1.0, LEFT_OUT * self.num_observations)
        return jnp.full(self.likelihood.num_scales, count, jnp.result_type(float))

    @property
    def scales_are_cut(self) -> bool:
        """Yes, see :meth:`restrict`."""
        return True

    @property
    def output_layer(self) -> str:
        """The last arrays of the network."""
        return _OUTPUT_LAYER

    def linear_curvature(self, subspace: Subspace, theta: Vector) -> Float[Array, "selected selected"] | None:
        """Of the output layer: products of what it multiplies, channel by channel."""
        sums = self._sums_below(subspace, theta)
        if sums is None:
            return None
        chosen = np.asarray(subspace.selected)
        is_weight = chosen < self.num_params
        feature, channel = np.divmod(np.where(is_weight, chosen - self._output_start, 0), self._num_channels)
        is_same = (channel[:, None] == channel) & np.logical_and.outer(is_weight, is_weight)
        return jnp.where(is_same, sums.quadratic[channel[:, None], feature[:, None], feature], 0)

    @property
    def _output_start(self) -> int:
        """Where the output layer begins: biases of all channels, then for every feature its weights of all channels."""
        return self.layout.offsets[self.layout.leaf_names.index(f"{_OUTPUT_LAYER}.bias")]

    @property
    def _num_channels(self) -> int:
        return self.model.network.num_outputs

    def _sums_below(self, subspace: Subspace, theta: Vector) -> "OutputSums | None":
        """What the likelihood depends on the data by, if all selected weights are in the output layer."""
        is_inside = np.asarray(subspace.selected).min(initial=self.dim) >= self._output_start
        return _sum_of_output_layer(self, theta) if is_inside else None

    def row_wise(self, subspace: Subspace, inputs: Inputs, *, locations: Array | None = None) -> RowWise:
        """The fields of some functions at a time, at all locations of their grid or at some of them."""
        predict_fn = subspace.restrict(self.predict)
        if locations is None:
            return RowWise(predict_fn, inputs)
        chosen = self.model.indices_at(inputs.shape[1], np.asarray(locations))
        return RowWise(Partial(_at_some, predict_fn, jnp.asarray(chosen)), inputs)

    def likelihood_of_rows(self, *, locations: Array | None = None) -> Likelihood:
        """Rows are functions; there is one noise for all locations, or the noise of each training location."""
        likelihood = self.likelihood.at_new_inputs()
        if locations is None or likelihood.has_one_precision:
            return likelihood
        assert isinstance(likelihood, Gaussian)
        chosen = self.model.indices_at(self.inputs.shape[1], np.asarray(locations))
        return replace(likelihood, noise_groups=likelihood.noise_groups[chosen])

    def check_validation(self, validation: Validation | tuple) -> Validation:
        """Return validation data as arrays; their grid may be another one that the model knows."""
        given = Validation(*validation)  # pyrefly: ignore
        inputs = self.check_inputs("validation", given.inputs)
        targets = as_finite("validation", given.targets, self.targets.dtype)
        check_lengths(inputs, targets)
        expected = self.model.grid_of(inputs.shape[1]).size
        if targets.shape[1:] != (expected,):
            raise InputError(
                f"`validation` must have a value at each of the {expected} locations of the grid of its functions, "
                f"got shape {targets.shape}."
            )
        return Validation(inputs, targets)

    def check_inputs(self, name: str, inputs: Inputs) -> Inputs:
        """Return functions as finite arrays, after checking that the model knows the grid they are sampled on."""
        checked = as_finite(name, inputs, self.targets.dtype)
        if checked.ndim != 2:
            raise InputError(f"`{name}` must have a row per function and a column per sensor, got {checked.shape}.")
        self.model.grid_of(checked.shape[1])
        return checked

    def at_inputs(self, name: str, inputs: Inputs, *, locations: Any = None) -> tuple["FieldPosterior", Inputs]:
        """The posterior that knows the grid of these locations, if they are another one; and the checked functions."""
        there = self
        if locations is not None and len(locations) != len(self.locations):
            model = self.model.with_grid("locations", np.asarray(locations))
            if not self.likelihood.has_one_precision and model is not self.model:
                raise InputError("`locations` must be those of training where each has a noise of its own, got others.")
            there = replace(self, model=model)
        return there, there.check_inputs(name, inputs)


register_pytree(
    FieldPosterior,
    data_fields=["inputs", "targets", "likelihood", "prior", "initial", "shared", "locations"],
    meta_fields=["model", "layout"],
)


class OutputSums(NamedTuple):
    r"""The log likelihood as a function of the output layer W: :math:`c + \sum_k b_k^\top w_k - w_k^\top G_k w_k / 2`.

    Channels come first; the first feature is one, for the bias.
    """

    constant: Float[Array, ""]
    linear: Float[Array, "channels features"]
    quadratic: Float[Array, "channels features features"]


@jax.jit
def _sum_of_output_layer(posterior: FieldPosterior, theta: Vector) -> OutputSums:
    """One pass through the data, at the noise of `theta`. No gradient needs another."""
    model, num_channels, wide = posterior.model, posterior._num_channels, jnp.result_type(float)
    params = posterior.layout.unravel(theta.astype(posterior.targets.dtype))
    hidden = model.hidden(params, posterior.inputs)
    grid = model.grid_of(posterior.inputs.shape[1])
    (numbers,) = model.off_grid(jnp.arange(grid.size).reshape(1, -1, num_channels), grid)
    precision = posterior.precision(theta, posterior.inputs).astype(wide)
    targets = posterior.targets.astype(wide) - model.field_mean

    def on_grid(rows: Array) -> Float[Array, "channels points"]:
        return jnp.zeros_like(rows).at[:, numbers].set(rows).reshape(-1, num_channels).T

    features = hidden.reshape(-1, hidden.shape[-1]).astype(wide)
    features = jnp.concatenate([jnp.ones_like(features[:, :1]), features], axis=1)
    linear = model.field_std * on_grid(precision * targets) @ features
    quadratic = jax.lax.map(lambda weights: (features * weights[:, None]).T @ features, on_grid(precision))
    constant = 0.5 * jnp.sum(jnp.log(precision) - precision * targets**2 - LOG_2PI)
    return OutputSums(constant, linear, model.field_std**2 * quadratic)


def _density_of_selected(
    posterior: FieldPosterior, subspace: Subspace, sums: OutputSums | None, position: Float[Array, " selected"]
) -> Array:
    """Prior and likelihood, from what was summed up if that is known."""
    theta = subspace.embed(position)
    if sums is None:
        found = posterior.log_likelihood_of_outputs(
            theta, posterior.predict(theta, posterior.inputs), posterior.targets
        )  # fmt: skip
    else:
        layer = theta[posterior._output_start : posterior.num_params].reshape(-1, posterior._num_channels).T
        pulled = jnp.einsum("kij,kj->ki", sums.quadratic, layer)
        found = sums.constant + jnp.sum((sums.linear - 0.5 * pulled) * layer)
    return found + posterior.log_prior(theta)


def _at_some(
    predict_fn: PredictFn, chosen: Int[Array, " places"], position: Vector, functions: Array
) -> Float[Array, "functions places"]:
    return predict_fn(position, functions)[:, chosen]
