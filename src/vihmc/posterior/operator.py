r"""The posterior of a DeepONet on all pairs of functions and locations.

.. math::
    \log p(\theta \mid D) = \log N(\theta; m, \mathrm{prior\_std}^2)
    + \sum_{u, x} \log N(y(u, x);\, b_\theta(u) \cdot t_\theta(x) + c,\ \mathrm{noise\_std}(x)^2) + \mathrm{const}

Both scales can be known, or learnt with the weights. The noise is one for all locations, or one for each group of them.

The networks run on every function and on every location once, never on every pair (:mod:`vihmc.posterior.pairs`).
With a selection, whatever no selected parameter touches is computed once (:mod:`vihmc.posterior.cached_layers`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int
from scipy.spatial import KDTree

from vihmc.errors import InputError
from vihmc.models.deeponet import DeepONet, Factors
from vihmc.models.features import check_digits
from vihmc.models.standardised import OperatorScalings, numbered
from vihmc.posterior.branch_output import branch_curvature
from vihmc.posterior.cached_layers import RestrictedOperator
from vihmc.posterior.checks import as_finite
from vihmc.posterior.cut import QuadraticForm, cut_scales
from vihmc.posterior.density import Posterior, RowWise, choose_part, draw_rows
from vihmc.posterior.layer_costs import FrozenLayers, frozen_layers
from vihmc.posterior.layout import ParamLayout
from vihmc.posterior.likelihoods import Gaussian, Likelihood
from vihmc.posterior.pairs import PairTargets, factorise, half_squared_error, log_likelihood, weigh
from vihmc.posterior.priors import Prior
from vihmc.posterior.shards import ShardedDensity, check_shards
from vihmc.posterior.shared import Shared
from vihmc.posterior.subspace import Subspace
from vihmc.types import Inputs, Key, LogDensity, Params, Vector, register_pytree, short

_ROWS_AT_ONCE = 16
_MAX_QUADRATIC = 2000
"""Most weights whose density is a matrix in memory."""


class PairBatch(NamedTuple):
    """Indices of some functions and of some locations."""

    functions: Array
    locations: Array


@dataclass(frozen=True, eq=False)
class OperatorPosterior(Posterior):
    """A posterior whose observations are functions and whose outputs are locations. Build it with :meth:`of`.

    The model computes in the precision of `targets`; positions and energies are float64.

    Attributes:
        locations: Where every field is known.
        factors: The targets without their units, and as a product for the force.
    """

    locations: Float[Array, "locations dims"]
    factors: PairTargets

    def __repr__(self) -> str:
        """As of any posterior, and how many locations there are."""
        return f"{super().__repr__()}\n  locations   {short(self.locations)}"

    @classmethod
    def on_pairs(
        cls,
        model: DeepONet,
        functions: Any,
        locations: Any,
        targets: Any,
        *,
        prior: Prior | None = None,
        prior_std: Any = None,
        likelihood: Likelihood | None = None,
        noise_std: Any = None,
        weights: Any = None,
        dtype: str = "float32",
        standardise: bool = False,
    ) -> "OperatorPosterior":
        """Check the data and build the posterior.

        Args:
            model: The operator.
            functions: Values of each function at the sensors, (functions, sensors).
            locations: Coordinates, (locations, dims).
            targets: The field of each function at each location, (functions, locations).
            prior: Of the parameters; Gaussian around zero, with one learnt scale, if not given.
            prior_std: Short for ``prior=Prior(std=prior_std)``.
            likelihood: Gaussian, with one learnt noise for all locations if not given; `Gaussian(noise_groups=...)` has
                one for each group of locations.
            noise_std: Short for ``likelihood=Gaussian(noise_std)``: one number, or one per location.
            weights: How often each value was observed, of the shape of `targets`; zero where there is none, whatever
                number stands there. Once each if not given.
            dtype: What the networks compute in.
            standardise: Whether the networks see functions, locations and fields of mean 0 and std 1. Noise,
                predictions and results stay in the units of the data.

        Raises:
            InputError: If shapes disagree, data are not finite, a std is not positive, a weight is negative, or 64-bit
                floats are off.
        """
        if jnp.result_type(float) != jnp.float64:
            raise InputError(
                "`jax_enable_x64` must be on for an operator, got off: the energy of millions of pairs needs float64 "
                "sums. Call jax.config.update('jax_enable_x64', True); the networks still compute in `dtype`."
            )
        if weights is not None:
            weights = _check_weights(weights, targets, dtype)
            targets = np.where(weights > 0, targets, 0.0)
        exact = np.asarray(targets)
        units = (functions, locations, exact if weights is None else exact[np.asarray(weights) > 0])
        functions, locations, targets = (
            as_finite(name, value, dtype)
            for name, value in (("functions", functions), ("locations", locations), ("targets", targets))
        )
        if standardise:
            model = _standardise(model, *units, dtype=dtype)
        layout = ParamLayout.of(jax.eval_shape(model.init, jax.random.key(0)))
        weight_prior = choose_part("prior", prior, "prior_std", prior_std, Prior).on(layout, jnp.result_type(float))
        for name, array in (("functions", functions), ("locations", locations)):
            if array.ndim != 2:
                raise InputError(f"`{name}` must have two axes, one row each, got shape {array.shape}.")
        _check_widths(model, functions, locations)
        if targets.shape != (expected := (functions.shape[0], locations.shape[0])):
            raise InputError(f"`targets` must have a row per function and a column per location, {expected}, "
                             f"got {targets.shape}.")  # fmt: skip
        bound = _gaussian(choose_part("likelihood", likelihood, "noise_std", noise_std, Gaussian), exact, weights)
        return cls(
            model=model,
            layout=replace(layout, scale_names=(*bound.scale_names, *weight_prior.scale_names)),
            inputs=functions,
            targets=targets,
            likelihood=bound,
            prior=weight_prior,
            locations=locations,
            factors=_factors(model, exact, targets, weights),
        )

    @classmethod
    def of(cls, model: Any, *data: Any, locations: Any = None, **settings: Any) -> Posterior:
        """Build the posterior of any operator from functions and fields.

        ``OperatorPosterior.of(model, functions, fields)``. A DeepONet is that of :meth:`on_pairs`, and needs
        `locations`. Any other model takes all values of a function at once and returns a field, as an FNO does: its
        functions are the inputs of a plain posterior, and `locations`, where given, are shared by all.

        Args:
            model: Anything that :meth:`vihmc.Posterior.of` takes.
            data: Functions and fields, after parameters if these are given.
            locations: Where all fields are known, if the model takes them: it is called with functions and locations.
            settings: Those of :meth:`on_pairs` or of :meth:`vihmc.Posterior.of`.
        """
        if not isinstance(model, DeepONet):
            *params, functions, fields = data
            inputs = functions if locations is None else (functions, Shared(locations))
            if settings.get("likelihood") is None and settings.get("noise_std") is None:
                settings["likelihood"] = Gaussian(per_output=False)
            return Posterior.of(model, *params, inputs, fields, **settings)
        if locations is None:
            raise InputError("`locations` must be given for a DeepONet, got nothing: they are where fields are known.")
        return cls.on_pairs(model, data[-2], locations, data[-1], **settings)

    @property
    def num_values(self) -> int | Array:
        """Number of observed values, each as often as it was observed."""
        return self.factors.num_observations()

    @property
    def num_network_rows(self) -> int:
        """Functions and locations, each of which runs through its network once."""
        return sum(self.targets.shape)

    @property
    def weights(self) -> Array | None:
        """How often each value was observed; None for once each."""
        return self.factors.weights

    def reweighted(self, weights: Float[Array | np.ndarray, "functions locations"]) -> "OperatorPosterior":
        """The posterior of the same values, observed more or less often: zero leaves one out.

        Raises:
            InputError: If a weight is negative or not finite, or one is given to a value that was never observed.
        """
        checked = _check_weights(weights, self.targets, self.targets.dtype)
        if self.weights is not None and np.any(checked[np.asarray(self.weights) == 0]):
            raise InputError("`weights` must be zero where they were before, got a value that was never observed.")
        return replace(self, factors=weigh(np.asarray(self.factors.values), checked, self.targets.dtype))

    def with_targets(self, targets: Array) -> "OperatorPosterior":
        """The posterior of other fields of the same functions."""
        values = ((targets - self.model.output_offset) / self.model.output_scale).astype(self.targets.dtype)
        # Other targets may have no factors of low rank, so every pair counts by itself.
        weights = jnp.ones_like(values) if self.weights is None else self.weights
        return replace(self, targets=targets.astype(self.targets.dtype), factors=weigh(values, weights, values.dtype))

    def rows(self, index: Int[np.ndarray, " rows"]) -> "OperatorPosterior":
        """The posterior of some of the functions."""
        values, left, right, _, weights = self.factors
        some = None if weights is None else weights[index]
        total = jnp.sum(values[index] if some is None else some * values[index])
        factors = PairTargets(values[index], left[index], right, total, some)
        return replace(self, inputs=self.inputs[index], targets=self.targets[index], factors=factors)

    def without(self, is_left_out: Bool[np.ndarray, " functions"]) -> "OperatorPosterior":
        """The posterior of all functions but some; where there are weights they become zero, and no shape changes."""
        if self.weights is None:
            return self.rows(np.flatnonzero(~is_left_out))
        return self.reweighted(np.asarray(self.weights) * ~is_left_out[:, None])

    def perturbed(self, rng_key: Key, theta: Vector) -> "OperatorPosterior":
        """The posterior of other data: fresh noise is added to the fields."""
        weights = jnp.ones_like(self.targets) if self.weights is None else self.weights
        nothing = jnp.zeros_like(self.targets)
        noise = self.likelihood.perturb(rng_key, nothing, nothing, self.scales(theta).likelihood)
        # A value that was seen w times is known √w times as well; one that never was does not count.
        noise = noise / jnp.sqrt(jnp.where(weights > 0, weights, 1))
        values = self.factors.values + (noise / self.model.output_scale).astype(self.targets.dtype)
        return replace(
            self, targets=self.targets + noise.astype(self.targets.dtype), factors=weigh(values, weights, values.dtype)
        )

    def predict(self, theta: Vector, inputs: Inputs) -> Float[Array, "functions locations"]:
        """Run the operator on functions, at the training locations."""
        return self.predict_at(theta, self.locations, inputs)

    def predict_at(self, theta: Vector, locations: Array, functions: Array) -> Float[Array, "functions locations"]:
        """Run the operator on functions, at any locations."""
        return self.model.apply_pairs(self._params(theta), functions, locations)

    def _params(self, theta: Vector) -> Params:
        return self.layout.unravel(theta.astype(self.targets.dtype))

    def log_likelihood(self, theta: Vector, batch: Any = None) -> Array:
        """Log likelihood of all pairs, or an unbiased estimate of it from those of a :class:`PairBatch`."""
        if batch is None:
            factors = self.model.factors(self._params(theta), self.inputs, self.locations)
            return self._from_error(theta, half_squared_error(factors, self.factors, self._is_per_location))
        functions, locations = self.inputs[batch.functions], self.locations[batch.locations]
        branch, trunk, bias = self.model.factors(self._params(theta), functions, locations)
        squares = (self.factors.values[batch.functions][:, batch.locations] - (branch @ trunk.T + bias)) ** 2
        if self.weights is not None:
            squares = self.weights[batch.functions][:, batch.locations] * squares
        half = 0.5 * self.targets.size / squares.size
        if not self._is_per_location:
            return self._from_error(theta, half * jnp.sum(squares))
        nothing = jnp.zeros(self.targets.shape[1], squares.dtype)
        return self._from_error(theta, nothing.at[batch.locations].add(half * jnp.sum(squares, axis=0)))

    def _from_error(self, theta: Vector, error: Array) -> Array:
        """The likelihood from half the squared error without units."""
        return log_likelihood(
            self.model.output_scale**2 * error,
            noise_std=self._noise_std(theta),
            num_observations=self.factors.num_observations(per_location=self._is_per_location),
        )

    @property
    def _is_per_location(self) -> bool:
        """Whether the noise differs from location to location."""
        return not self.likelihood.has_one_precision

    def _noise_std(self, theta: Vector) -> Array:
        wide = self.scales(theta).likelihood.astype(jnp.result_type(float))
        return self._gaussian.std(wide)

    @property
    def _gaussian(self) -> Gaussian:
        assert isinstance(self.likelihood, Gaussian)
        return self.likelihood

    def precision(self, theta: Vector, inputs: Inputs) -> Array:
        """One over the noise variance; no field is computed for it."""
        shape = (inputs.shape[0], self.locations.shape[0])
        return jnp.broadcast_to(1 / self._noise_std(theta) ** 2, shape).astype(self.targets.dtype)

    def minibatch(self, rng_key: Key, *, batch_size: int | None, num_locations: int | None = None) -> Any:
        """Draw some functions and some locations; all of them where no number is given.

        Functions come without replacement. Locations come with it: of ten thousand few are drawn twice, and a
        permutation of them takes as long as half a gradient.
        """
        if batch_size is None and num_locations is None:
            return None
        key_functions, key_locations = jax.random.split(rng_key)
        num_functions, length = self.targets.shape
        locations = jnp.arange(length)
        if num_locations is not None:
            locations = jax.random.randint(key_locations, (num_locations,), 0, length)
        functions = (
            jnp.arange(num_functions) if batch_size is None else draw_rows(key_functions, num_functions, batch_size)
        )
        return PairBatch(functions, locations)

    @property
    def has_fast_squared_gradients(self) -> bool:
        """Yes: they are sums over functions and locations."""
        return True

    def row_wise(self, subspace: Subspace, inputs: Inputs, *, locations: Array | None = None) -> RowWise:
        """The fields at some locations at a time, or at the training locations: the trunk runs on each of them once."""
        places = self.locations if locations is None else locations
        return RowWise(Partial(_field_at, self, subspace, inputs), places, is_transposed=True)

    def likelihood_of_rows(self, *, locations: Array | None = None) -> Likelihood:
        """Rows are locations; the noise at a new one is that of the nearest training location."""
        likelihood = self.likelihood.at_new_inputs().transposed()
        if locations is None or not self._is_per_location:
            return likelihood
        unit = np.maximum(np.std(self.locations, axis=0), np.finfo(np.float32).tiny)
        _, nearest = KDTree(np.asarray(self.locations) / unit).query(np.asarray(locations) / unit)
        return likelihood.rows(jnp.asarray(nearest))

    def sum_squared_gradients(
        self, theta: Vector, inputs: Inputs, *, weights: Array | None = None, memory_mb: float = 256.0
    ) -> Vector:
        """Exact sums of squared derivatives over all functions in `inputs` and all locations."""
        return _sum_squared_gradients(self, theta, inputs, weights)

    def gradients_at(
        self, theta: Vector, inputs: Inputs, points: Int[np.ndarray, " points"]
    ) -> Float[Array, "points params"]:
        """Derivatives of some outputs; the field at one location needs no other."""
        return _gradients_at(self, theta, inputs, jnp.asarray(points))

    def frozen_layers(self) -> list[FrozenLayers]:
        """Ways to leave whole layers frozen and compute them once, the cheapest first; the last freezes none."""
        num_functions, num_locations = self.targets.shape
        return frozen_layers(self.model, self.layout, num_functions=num_functions, num_locations=num_locations)

    def gauss_newton_product(self, theta: Vector, tangent: Vector) -> Vector:
        r"""Multiply a vector by :math:`J^\top W J / \text{noise\_std}^2`; in Gram form if each pair was observed once.

        A change of the product :math:`B T^\top + c` is :math:`\dot B T^\top + B \dot T^\top + \dot c`, and what goes
        back to B is that times T: Gram matrices are all that is needed of the other side, and no field is formed.
        """
        if self.weights is not None:
            return super().gauss_newton_product(theta, tangent)

        def factors(theta: Vector) -> Any:
            return self.model.factors(self._params(theta), self.inputs, self.locations)

        (branch, trunk, _), push = jax.linearize(factors, theta)
        branch_change, trunk_change, bias_change = push(tangent)
        num_functions, num_locations = self.targets.shape
        noise_var = self._noise_std(theta) ** 2
        # Relative to the largest, so that what is common to all locations is applied once, at the end.
        unit = jnp.min(noise_var)
        weights = (unit / jnp.broadcast_to(noise_var, (num_locations,))).astype(trunk.dtype)[:, None]
        weighted, weighted_change = weights * trunk, weights * trunk_change
        to_branch = branch_change @ (trunk.T @ weighted) + branch @ (trunk_change.T @ weighted)
        to_trunk = weighted_change @ (branch.T @ branch) + weighted @ (branch_change.T @ branch)
        to_bias = branch_change.sum(0) @ weighted.sum(0) + branch.sum(0) @ weighted_change.sum(0)
        backward = Factors(
            to_branch + bias_change * weighted.sum(0),
            to_trunk + bias_change * weights * branch.sum(0),
            jnp.reshape(to_bias + bias_change * num_functions * weights.sum(), jnp.shape(bias_change)).astype(
                bias_change.dtype
            ),
        )
        (gradient,) = jax.linear_transpose(push, theta)(backward)
        return self.model.output_scale**2 * gradient / unit

    def restrict(self, subspace: Subspace, *, num_shards: int | None = None) -> Callable[[Array], Array]:
        """The log density as a function of the selected parameters, with everything frozen computed once.

        With a number of shards, every shard has an equal part of the functions.
        """
        if num_shards is not None and self.scales_are_cut:
            raise InputError(
                f"`num_shards` must be left out where functions that the fit leaves out determine the noise, got "
                f"{num_shards}."
            )
        restricted = RestrictedOperator.of(
            self.model,
            self.layout,
            self.inputs,
            self.locations,
            self.factors,
            subspace,
            prior=self.prior,
            likelihood=self._gaussian,
        )
        if num_shards is None:
            density = Partial(RestrictedOperator.log_density, restricted)
            return self._cut(subspace, density) if self.scales_are_cut else density
        check_shards("num_shards", self.num_observations, num_shards)
        return ShardedDensity(Partial(RestrictedOperator.log_density_of_shard, restricted), num_shards)

    @property
    def scales_are_cut(self) -> bool:
        """Whether the noise comes from functions that the fit leaves out."""
        return self.num_left_out > 0

    @property
    def _noise_counts(self) -> Float[Array, " scales"]:
        """Values that the noise is found from; of functions that were left out, each counts once."""
        if not self.scales_are_cut:
            return super()._noise_counts
        return jnp.full(self.likelihood.num_scales, self.num_left_out, jnp.result_type(float))

    def _cut(self, subspace: Subspace, density: LogDensity) -> LogDensity:
        """The density with scales left where the fit found them: of the output layer a quadratic form."""
        theta, selected = subspace.center.astype(jnp.result_type(float)), subspace.selected
        curvature = self.linear_curvature(subspace, theta) if len(selected) <= _MAX_QUADRATIC else None
        if curvature is not None:
            known, is_weight = self.given_scales(theta), selected < self.num_params
            prior_std = jnp.broadcast_to(known.prior_std, (self.num_params,))[
                jnp.minimum(selected, self.num_params - 1)
            ]
            precision = curvature + jnp.diag(jnp.where(is_weight, 1 / prior_std**2, 0))
            density = Partial(QuadraticForm.log_density, QuadraticForm.around(density, theta[selected], precision))
        return cut_scales(density, scales=theta[self.num_params :], counts=self.scale_counts)

    @property
    def output_layer(self) -> str:
        """That of the branch, in whose weights the fields are linear."""
        return f"branch.layers.{self.model.branch.num_layers - 1}"

    def linear_curvature(self, subspace: Subspace, theta: Vector) -> Float[Array, "selected selected"] | None:
        r"""Of the branch's output layer, :math:`\sum_u \phi_u \phi_u^\top \otimes T^\top P_u T`.

        :math:`\phi` enters the layer, T is the trunk, and P has the precision of every value.
        """
        names, offsets = self.layout.leaf_names, self.layout.offsets
        mine = [number for number, name in enumerate(names) if name.startswith(f"{self.output_layer}.")]
        chosen, begin, end = np.asarray(subspace.selected), offsets[mine[0]], offsets[mine[-1] + 1]
        is_weight = chosen < self.num_params
        if not is_weight.any() or np.any((chosen[is_weight] < begin) | (chosen[is_weight] >= end)):
            return None
        numbers = jnp.asarray(np.where(is_weight, chosen - begin, 0))
        precision = self.precision(theta, self.inputs[:1])[0]
        found = branch_curvature(
            self.model, self._params(theta), self.inputs, self.locations, precision, self.weights, numbers
        )
        return jnp.where(np.logical_and.outer(is_weight, is_weight), found, 0)


register_pytree(
    OperatorPosterior,
    data_fields=["inputs", "targets", "likelihood", "prior", "initial", "shared", "locations", "factors"],
    meta_fields=["model", "layout"],
)


def _field_at(
    posterior: OperatorPosterior, subspace: Subspace, functions: Array, position: Array, locations: Array
) -> Float[Array, "locations functions"]:
    return subspace.restrict(Partial(_predict_at, posterior))(position, locations, functions).T


def _predict_at(posterior: OperatorPosterior, theta: Vector, locations: Array, functions: Array) -> Array:
    return posterior.predict_at(theta, locations, functions)


@jax.jit
def _sum_squared_gradients(posterior: OperatorPosterior, theta: Array, inputs: Inputs, weights: Array | None) -> Array:
    sums = posterior.model.sum_squared_gradients(posterior._params(theta), inputs, posterior.locations, weights)
    return posterior.layout.ravel(sums)


@jax.jit
def _gradients_at(posterior: OperatorPosterior, theta: Array, functions: Array, points: Array) -> Array:
    def one(point: Array) -> Array:
        function, location = jnp.divmod(point, posterior.locations.shape[0])
        at = posterior.locations[location][None]
        return jax.grad(lambda theta: posterior.predict_at(theta, at, functions[function][None])[0, 0])(theta)

    return jax.lax.map(one, points, batch_size=min(_ROWS_AT_ONCE, len(points)))


def _factors(model: DeepONet, exact: np.ndarray, targets: Array, weights: np.ndarray | None) -> PairTargets:
    """Targets as the networks see them: without units, which are taken off before anything is rounded."""
    if model.output_offset != 0 or model.output_scale != 1:
        targets = jnp.asarray((exact.astype(np.float64) - model.output_offset) / model.output_scale, targets.dtype)
    if weights is not None:
        return weigh(np.asarray(targets), weights, targets.dtype)
    return factorise(np.asarray(targets), targets.dtype)._replace(values=targets)


def _gaussian(likelihood: Likelihood, targets: np.ndarray, weights: np.ndarray | None) -> Gaussian:
    """One noise for all pairs, or one for each group of locations, in float64 like the energies."""
    if not isinstance(likelihood, Gaussian):
        raise InputError(f"`likelihood` must be Gaussian for an operator, got {type(likelihood).__name__}.")
    if likelihood.noise_std is not None and np.shape(likelihood.noise_std) not in ((), targets.shape[1:]):
        raise InputError(
            f"`noise_std` must be one number for an operator, or one per location, shape {targets.shape[1:]}, got "
            f"{np.shape(likelihood.noise_std)}. It is the standard deviation of the observation noise."
        )
    observed = targets if weights is None else np.where(weights > 0, targets, np.nan)
    wide = jnp.asarray(observed, jnp.result_type(float))
    # What belongs to every output of a table would be one noise per location: too many to be the default.
    shared = likelihood if likelihood.noise_groups is not None else replace(likelihood, per_output=False)
    return shared.bind(wide, jax.ShapeDtypeStruct(wide.shape, wide.dtype))


def _check_weights(weights: Any, targets: Any, dtype: Any) -> np.ndarray:
    weights = np.asarray(as_finite("weights", weights, dtype))
    if weights.shape != np.shape(targets):
        raise InputError(f"`weights` must have the shape of `targets`, {np.shape(targets)}, got {weights.shape}.")
    if np.min(weights) < 0 or not np.any(weights):
        raise InputError(
            f"`weights` must not be negative, nor all zero, got a smallest of {np.min(weights):g} and a sum of "
            f"{np.sum(weights):g}. Each is how often a value was observed."
        )
    return weights


def _standardise(model: DeepONet, functions: Any, locations: Any, fields: Any, *, dtype: str) -> DeepONet:
    scalings = OperatorScalings.of(model, functions, locations, fields)
    for name, scaling in zip(("functions", "locations", "targets"), scalings, strict=True):
        check_digits(numbered(name, len(scaling.means)), scaling, dtype, "dtype")
    return scalings.around(model)


def _check_widths(model: DeepONet, functions: Array, locations: Array) -> None:
    try:
        branch, trunk = jax.eval_shape(model.features, functions, locations)
    except (TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"`model` must accept the functions and locations, got an error: {reason}") from error
    for name, given, network in (("functions", branch, model.branch), ("locations", trunk, model.trunk)):
        if given.shape[1] != network.widths[0]:
            raise InputError(
                f"`{name}` must have {network.widths[0]} columns after the feature map, got {given.shape[1]}."
            )
