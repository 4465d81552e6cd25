r"""The posterior of a model's parameters and scales: the one object that every stage shares.

.. math::
    \log p(\theta, u \mid D) = \log N(\theta; m, \mathrm{prior\_std}(u)^2) + \log p(u)
    + \sum_j \log p(y_j \mid F_\theta(x_j), u) + \mathrm{const}

One flat vector has the weights :math:`\theta` first and the logarithms u of the learnt scales (noise, prior) after
them; where all scales are known there are none. VI maximises a bound on it, HMC samples it, prediction averages over
it. It is a pytree whose arrays are its leaves, so compiled functions take it as an argument. Its methods are all that a
stage asks of a posterior; other kinds of data (:class:`vihmc.OperatorPosterior`) answer the same questions in their
own, faster way.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int

from vihmc.errors import InputError
from vihmc.frameworks.adapt import adapt_model
from vihmc.models.model import SquaredGradients
from vihmc.models.standardised import standardise as as_standardised
from vihmc.posterior.checks import Validation, as_finite, check_inputs_like, check_lengths, check_validation
from vihmc.posterior.cut import num_left_out
from vihmc.posterior.hierarchy import Scales, log_hyperprior, log_prior, split_scales
from vihmc.posterior.layer_costs import FrozenLayers
from vihmc.posterior.layout import ParamLayout
from vihmc.posterior.likelihoods import Gaussian, Likelihood
from vihmc.posterior.priors import Prior, WeightPrior
from vihmc.posterior.row_blocks import MANY_ROWS, accumulate, map_in_blocks, sum_in_blocks, take_rows
from vihmc.posterior.shards import ShardedDensity, check_shards
from vihmc.posterior.shared import SplitInputs, is_same, join_inputs, split_inputs
from vihmc.posterior.squared_gradients import gradients_at, sum_squared_gradients
from vihmc.posterior.subspace import Subspace
from vihmc.types import Inputs, Key, Params, PredictFn, Vector, register_pytree, short

_MAX_PERMUTED = 1000
_FIRST_LOG_PRIOR_STD = 0.0
_MANY_DERIVATIVES = 100_000_000
"""Rows times parameters from which on squared derivatives are summed layer by layer, if the model can."""


class RowWise(NamedTuple):
    """The model's output as a function that can be evaluated some rows at a time.

    Attributes:
        predict_fn: ``predict_fn(position, rows)`` on selected parameters.
        rows: All rows.
        is_transposed: Whether rows are the second axis of the output, as the locations of an operator are.
    """

    predict_fn: PredictFn
    rows: Inputs
    is_transposed: bool = False


@dataclass(frozen=True, eq=False)
class Posterior:
    """Prior and likelihood around a model. Build it with :meth:`of`.

    Attributes:
        model: Has ``apply(params, inputs)``.
        layout: Where each parameter sits in the flat vector.
        inputs: Training inputs, observations along the leading axis.
        targets: Training targets.
        likelihood: How targets scatter around the model's outputs.
        prior: Of the model's parameters.
        initial: Where a fit starts, if the model came with parameters of its own.
        shared: Inputs that all observations share.
    """

    model: Any
    layout: ParamLayout
    inputs: Inputs
    targets: Array
    likelihood: Likelihood
    prior: WeightPrior
    initial: Vector | None = field(default=None, kw_only=True)
    shared: Inputs = field(default=None, kw_only=True)

    @classmethod
    def of(
        cls,
        model: Any,
        *data: Any,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        prior_std: Any = None,
        noise_std: Any = None,
        standardise: bool = False,
    ) -> "Posterior":
        """Check everything that can be checked before tracing, and build the posterior.

        ``Posterior.of(model, inputs, targets)``, or ``Posterior.of(apply, params, inputs, targets)``. Scales that are
        not given are learnt.

        Args:
            model: A Flax, Equinox or PyTorch module, a Haiku transform, a model of this package, or a pure function
                ``apply(params, inputs)``. A module is used in evaluation mode.
            data: Parameters, inputs and targets. Parameters can be left out where the model brings or makes its own;
                a fit then starts at them. For a plain function they are an example, only their structure is used.
                Inputs are an array or a pytree of arrays with a common leading axis; one that all observations
                share is a :class:`vihmc.Shared`. Targets are what was observed there; for most likelihoods of the
                shape that the model returns.
            likelihood: How targets scatter around the outputs; Gaussian if not given.
            prior: Of the parameters; Gaussian around zero, with one learnt scale, if not given.
            prior_std: Short for ``prior=Prior(std=prior_std)``.
            noise_std: Short for ``likelihood=Gaussian(noise_std)``: one positive number, one per entry of the last axis
                of `targets`, or one per observation.
            standardise: Whether the model sees inputs and targets of mean 0 and std 1. Noise, predictions and results
                stay in the units of the data. A model whose data are far from size one needs it.

        Raises:
            InputError: If shapes disagree, data are not finite, a std is not positive, `apply` is no JAX function, or
                targets are whole numbers and no likelihood is named.
        """
        params, inputs, targets = _parts_of(data)
        if likelihood is None and noise_std is None:
            _check_not_labels(targets)
        observations = choose_part("likelihood", likelihood, "noise_std", noise_std, Gaussian)
        weights = choose_part("prior", prior, "prior_std", prior_std, Prior)
        dtype, given_targets = jnp.result_type(float), targets
        given_inputs, shared = split_inputs("inputs", inputs, dtype)
        inputs = jax.tree.map(lambda leaf: as_finite("inputs", leaf, dtype), given_inputs)
        targets = as_finite("targets", targets, dtype)
        check_lengths(inputs, targets)
        first_row = jax.tree.map(lambda leaf: leaf[:1], inputs)
        model, params, is_start = adapt_model(model, params, join_inputs(first_row, shared))
        layout = ParamLayout.of(params)
        outputs = _check_model(model, layout, SplitInputs(inputs, shared), dtype)
        if standardise:
            if shared is not None:
                raise InputError("`standardise` must be left out where inputs are shared, got True: scale them before.")
            units = None if observations.is_discrete else given_targets
            model = as_standardised(model, given_inputs, units, num_outputs=outputs.shape[-1], dtype=dtype)
        bound, weight_prior = observations.bind(targets, outputs), weights.on(layout, dtype, params)
        layout = replace(layout, scale_names=(*bound.scale_names, *weight_prior.scale_names))
        initial = layout.ravel(params).astype(dtype) if is_start else None
        return cls(model, layout, inputs, targets, bound, weight_prior, initial=initial, shared=shared)

    def __repr__(self) -> str:
        """Model, data, likelihood and prior, a line each."""
        inputs = ", ".join(short(leaf) for leaf in jax.tree.leaves(self.inputs))
        lines = (
            f"{type(self).__name__} of {self.num_params:,} parameters",
            f"model       {short(self.model)}",
            f"data        {self.num_observations:,} observations: inputs {inputs}, targets {short(self.targets)}",
            f"likelihood  {self.likelihood!r}",
            f"prior       {self.prior!r}",
            f"learnt      {', '.join(self.layout.scale_names) or 'no scales'}",
        )
        return "\n  ".join(lines)

    @property
    def num_params(self) -> int:
        """Number of scalar parameters of the model."""
        return self.layout.size

    @property
    def dim(self) -> int:
        """Length of the vector: parameters of the model and learnt scales."""
        return self.layout.dim

    @property
    def num_scales(self) -> int:
        """Number of learnt scales."""
        return self.dim - self.num_params

    def scales(self, theta: Float[Array, "dim *chains"]) -> Scales:
        """The learnt scales of a vector."""
        return split_scales(theta, self.num_params, self.likelihood)

    def given_scales(self, theta: Vector) -> "Posterior":
        """The posterior of the weights alone, with all scales known to be those of `theta`."""
        if not self.num_scales:
            return self
        scales = self.scales(theta)
        return replace(
            self,
            layout=replace(self.layout, scale_names=()),
            likelihood=self.likelihood.given(scales.likelihood),
            prior=self.prior.given(scales.prior),
        )

    def with_initial_scales(self, weights: Vector) -> Float[Array, " dim"]:
        """A vector of these weights, and of the scales where inference starts."""
        of_prior = jnp.full(self.prior.num_scales, _FIRST_LOG_PRIOR_STD)
        return jnp.concatenate([weights, self.likelihood.initial_log_scales(self.targets), of_prior]).astype(
            weights.dtype
        )

    @property
    def prior_std(self) -> Array:
        """Standard deviation of the prior where it is known: one number or one per parameter."""
        assert not self.prior.num_scales, "The scales are learnt: see `given_scales`."
        return self.prior.std(jnp.zeros(0))

    @property
    def num_observations(self) -> int:
        """Length of the leading axis of the data."""
        return self.targets.shape[0]

    @property
    def num_values(self) -> int | Array:
        """Number of observed values, over all outputs."""
        return self.targets.size

    @property
    def num_network_rows(self) -> int:
        """Rows that run through the network for one gradient."""
        return self.num_observations

    @property
    def weights(self) -> Array | None:
        """How often each output was observed, of the shape of `targets`; None for once each."""
        return None

    def predict(self, theta: Vector, inputs: Inputs) -> Array:
        """Run the model on a parameter vector; on very many rows, a block of them at a time."""
        params = self.layout.unravel(theta)

        def run(rows: Inputs) -> Array:
            return self.model.apply(params, join_inputs(rows, self.shared))

        return map_in_blocks(run, inputs) if len(jax.tree.leaves(inputs)[0]) > MANY_ROWS else run(inputs)

    @property
    def has_fast_squared_gradients(self) -> bool:
        """Whether :meth:`sum_squared_gradients` costs less than a gradient for every output."""
        return self._sums_squares_of_layers

    @property
    def _sums_squares_of_layers(self) -> bool:
        """Whether the model sums squared derivatives layer by layer, and there are so many that it matters."""
        if self.num_observations * self.num_params <= _MANY_DERIVATIVES or not isinstance(self.model, SquaredGradients):
            return False
        theta = jax.ShapeDtypeStruct((self.dim,), self.targets.dtype)
        return jax.eval_shape(_layer_squares, self, theta, self.inputs, None) is not None

    def row_wise(self, subspace: Subspace, inputs: Inputs, *, locations: Array | None = None) -> RowWise:
        """The predictions at `inputs`, to be evaluated some rows at a time.

        `locations` are for operators alone, whose fields are predicted there.
        """
        if locations is not None:
            raise InputError("`locations` must be left out for a model that is no operator, got an array.")
        return RowWise(subspace.restrict(self.predict), inputs)

    def likelihood_of_rows(self, *, locations: Array | None = None) -> Likelihood:
        """The likelihood of new observations of what :meth:`row_wise` predicts."""
        return self.likelihood.at_new_inputs()

    def log_prior(self, theta: Vector) -> Array:
        """Log density of the prior of weights and scales, normalised."""
        return log_prior(theta, self.num_params, self.likelihood, self.prior)

    def log_hyperprior(self, scales: Scales) -> Array:
        """Log density of the learnt scales before the data."""
        return log_hyperprior(scales, self.likelihood, self.prior)

    def log_likelihood(self, theta: Vector, batch: Any = None) -> Array:
        """Log likelihood of all data, or an unbiased estimate of it from the observations in `batch`."""
        if batch is None and self.num_observations > MANY_ROWS:
            return sum_in_blocks(_log_likelihood_of_rows, self.num_observations, (self, theta))
        log_scales = self.scales(theta).likelihood
        if batch is None:
            return self.likelihood.log_likelihood(self.targets, self.predict(theta, self.inputs), log_scales)
        inputs, targets = jax.tree.map(lambda leaf: leaf[batch], (self.inputs, self.targets))
        scale, likelihood = self.num_observations / batch.shape[0], self.likelihood.rows(batch)
        return scale * likelihood.log_likelihood(targets, self.predict(theta, inputs), log_scales)

    def log_density(self, theta: Vector) -> Array:
        """Log of prior times likelihood: the target of HMC."""
        return self.log_prior(theta) + self.log_likelihood(theta)

    def with_targets(self, targets: Array) -> "Posterior":
        """The posterior of other targets at the same inputs."""
        return replace(self, targets=targets.astype(self.targets.dtype))

    def rows(self, index: Int[np.ndarray, " rows"]) -> "Posterior":
        """The posterior of some of the observations."""
        inputs, targets = jax.tree.map(lambda leaf: leaf[index], (self.inputs, self.targets))
        return replace(self, inputs=inputs, targets=targets, likelihood=self.likelihood.rows(jnp.asarray(index)))

    def _successive_rows(self, start: Any, size: int) -> "Posterior":
        """The posterior of a block of observations."""
        inputs, targets = take_rows((self.inputs, self.targets), start, size)
        return replace(self, inputs=inputs, targets=targets, likelihood=self.likelihood.rows(start + jnp.arange(size)))

    def without(self, is_left_out: Bool[np.ndarray, " rows"]) -> "Posterior":
        """The posterior of all observations but some; an operator may keep its shapes."""
        return self.rows(np.flatnonzero(~is_left_out))

    def perturbed(self, rng_key: Key, theta: Vector) -> "Posterior":
        """The posterior of other data: fresh noise, as it is at `theta`, is added to the targets."""
        outputs = self.predict(theta, self.inputs)
        return self.with_targets(self.likelihood.perturb(rng_key, self.targets, outputs, self.scales(theta).likelihood))

    def precision(self, theta: Vector, inputs: Inputs) -> Array:
        """Fisher information of the outputs at `inputs`, as observations there would give."""
        likelihood = self.likelihood if inputs is self.inputs else self.likelihood.at_new_inputs()
        return likelihood.precision(self.predict(theta, inputs), self.scales(theta).likelihood)

    def minibatch(self, rng_key: Key, *, batch_size: int | None, num_locations: int | None = None) -> Any:
        """Draw the indices of some observations; None, for all, where no number is given."""
        if num_locations is not None:
            raise InputError(f"`num_locations` must be left out for a model that is no operator, got {num_locations}.")
        return None if batch_size is None else draw_rows(rng_key, self.num_observations, batch_size)

    def restrict(self, subspace: Subspace, *, num_shards: int | None = None) -> Callable[[Array], Array]:
        """The log density as a function of the selected parameters, the others frozen; in shards if asked for."""
        if num_shards is None:
            return subspace.restrict(self.log_density)
        check_shards("num_shards", self.num_observations, num_shards)
        return ShardedDensity(Partial(_shard_density, self, subspace), num_shards)

    @property
    def scale_counts(self) -> Float[Array, " scales"]:
        """How many independent values every learnt scale is found from: observations, or weights."""
        of_prior = self.prior.sums(jnp.ones(self.num_params)) if self.prior.num_scales else jnp.zeros(0)
        return jnp.concatenate([self._noise_counts, of_prior])

    @property
    def _noise_counts(self) -> Float[Array, " scales"]:
        return self.likelihood.scale_counts(self.targets, self.weights)

    @property
    def num_left_out(self) -> int:
        """Observations that fits leave out to find the noise from: some, if a large model learns it."""
        return num_left_out(
            num_scales=self.likelihood.num_scales, num_params=self.num_params, num_observations=self.num_observations
        )

    @property
    def scales_are_cut(self) -> bool:
        """Whether :meth:`restrict` keeps the scales as the fit found them, whatever the selected parameters are."""
        return False

    @property
    def output_layer(self) -> str | None:
        """The beginning of the names of the arrays of an output layer that :meth:`linear_curvature` knows."""
        return None

    def linear_curvature(self, subspace: Subspace, theta: Vector) -> Float[Array, "selected selected"] | None:
        """Gauss–Newton matrix of selected weights that predictions are linear in; None if it takes every derivative."""
        return None

    def sum_squared_gradients(
        self, theta: Vector, inputs: Inputs, *, weights: Array | None = None, memory_mb: float = 256.0
    ) -> Vector:
        r"""Exact sums :math:`\sum_j w_j J_{ji}^2` over all outputs at `inputs`."""
        if self._sums_squares_of_layers:
            return _sum_squares_of_layers(self, theta, inputs, weights)
        return sum_squared_gradients(self.predict, theta, inputs, weights=weights, memory_mb=memory_mb)

    def gradients_at(
        self, theta: Vector, inputs: Inputs, points: Int[np.ndarray, " points"]
    ) -> Float[Array, "points params"]:
        """Derivatives of some outputs by all parameters; `points` are indices into all outputs, inputs first."""
        return gradients_at(self.predict, theta, inputs, points)

    def gauss_newton_product(self, theta: Vector, tangent: Vector) -> Vector:
        r"""Multiply a vector by :math:`J^\top W P J`, with J of the training predictions and P their precision."""
        if self.num_observations > MANY_ROWS:
            return accumulate(
                lambda start, size: self._successive_rows(start, size).gauss_newton_product(theta, tangent),
                self.num_observations,
            ).astype(theta.dtype)
        outputs, push = jax.linearize(lambda theta: self.predict(theta, self.inputs), theta)
        change = self.likelihood.precision_product(outputs, self.scales(theta).likelihood, push(tangent))
        if self.weights is not None:
            change = self.weights * change
        (gradient,) = jax.linear_transpose(push, theta)(change.astype(outputs.dtype))
        return gradient

    def frozen_layers(self) -> list[FrozenLayers]:
        """Ways to leave whole layers frozen and compute them once, the cheapest first; none for a plain model."""
        return []

    def check_validation(self, validation: Validation | tuple) -> Validation:
        """Return validation data as arrays, after checking that they are shaped like the training data."""
        given = Validation(*validation)  # pyrefly: ignore
        checked = given._replace(inputs=self._rows_like_training("validation", given.inputs))
        return check_validation(checked, inputs=self.inputs, targets=self.targets)

    def check_inputs(self, name: str, inputs: Inputs) -> Inputs:
        """Return inputs as finite arrays, after checking that they are shaped like the training inputs.

        Another resolution is allowed where the outputs follow it.
        """
        return check_inputs_like(name, self._rows_like_training(name, inputs), self.inputs, self._follows)

    def at_inputs(self, name: str, inputs: Inputs, *, locations: Any = None) -> tuple["Posterior", Inputs]:
        """The posterior that shares what `inputs` share, such as another grid; and their checked rows.

        `locations` are for operators alone, some of which have to know on which grid functions are sampled.
        """
        rows, shared = split_inputs(name, inputs, self.targets.dtype)
        there = self if shared is None else replace(self, shared=shared)
        return there, there.check_inputs(name, rows)

    def _rows_like_training(self, name: str, inputs: Inputs) -> Inputs:
        rows, shared = split_inputs(name, inputs, self.targets.dtype)
        if shared is not None and not is_same(shared, self.shared):
            raise InputError(f"`{name}` must share what the training inputs share, got another shared array.")
        return rows

    def _follows(self, inputs: Inputs) -> bool:
        """Whether the model takes inputs of this shape and returns outputs of another shape than the targets have."""
        theta = jax.ShapeDtypeStruct((self.dim,), self.targets.dtype)
        try:
            outputs = jax.eval_shape(self.predict, theta, inputs)
        except Exception:
            return False
        here = jax.eval_shape(self.predict, theta, self.inputs)
        has_changed = outputs.ndim == here.ndim and outputs.shape[1:] != here.shape[1:]
        return has_changed and self.likelihood.has_one_precision


register_pytree(
    Posterior,
    data_fields=["inputs", "targets", "likelihood", "prior", "initial", "shared"],
    meta_fields=["model", "layout"],
)


def _parts_of(data: tuple) -> tuple[Params | None, Inputs, Any]:
    """Parameters, if they are given, inputs and targets."""
    if len(data) not in (2, 3):
        raise InputError(
            "`Posterior.of` must be given inputs and targets, or params, inputs and targets, after the model, got "
            f"{len(data)} arguments."
        )
    return (None, *data) if len(data) == 2 else data


def _check_not_labels(targets: Any) -> None:
    kind = np.asarray(targets).dtype
    if np.issubdtype(kind, np.integer) or np.issubdtype(kind, np.bool_):
        raise InputError(
            f"`targets` must be floating-point numbers where no likelihood is named, got {kind}. Name it: "
            "likelihood=Categorical() or Bernoulli() for labels, Poisson() for counts, Gaussian() for measured numbers."
        )


def choose_part(name: str, given: Any, short_name: str, short: Any, kind: Any) -> Any:
    """The part that is given, or one made from the short form."""
    if given is not None and short is not None:
        raise InputError(f"`{short_name}` must be left out where `{name}` is given, got {short}.")
    return kind(short) if given is None else given


def draw_rows(rng_key: Key, num_rows: int, batch_size: int) -> Int[Array, " batch"]:
    """Draw rows at random: without replacement, or with it where there are many.

    A permutation of ten thousand rows takes longer than the gradient of a batch, and that of a million a second. Drawn
    one by one, few of so many rows are drawn twice, and the sum over the batch is as unbiased.
    """
    if num_rows > _MAX_PERMUTED and num_rows > batch_size:
        return jax.random.randint(rng_key, (batch_size,), 0, num_rows)
    return jax.random.permutation(rng_key, num_rows)[:batch_size]


def _layer_squares(posterior: Posterior, theta: Vector, inputs: Inputs, weights: Array | None) -> Vector | None:
    sums = posterior.model.sum_squared_rows(posterior.layout.unravel(theta), inputs, weights)
    return None if sums is None else posterior.layout.ravel(sums)


@jax.jit
def _sum_squares_of_layers(posterior: Posterior, theta: Vector, inputs: Inputs, weights: Array | None) -> Vector:
    num_rows = len(jax.tree.leaves(inputs)[0])
    if num_rows <= MANY_ROWS:
        found = _layer_squares(posterior, theta, inputs, weights)
    else:
        found = accumulate(
            lambda start, size: _layer_squares(posterior, theta, *take_rows((inputs, weights), start, size)), num_rows
        )
    assert found is not None, "asked for before"
    return found.astype(theta.dtype)


def _log_likelihood_of_rows(tree: tuple[Posterior, Vector], start: Any, size: int) -> Array:
    posterior, theta = tree
    return posterior._successive_rows(start, size).log_likelihood(theta)


def _shard_density(posterior: Posterior, subspace: Subspace, position: Array, index: Array, num_shards: int) -> Array:
    theta = subspace.embed(position)
    size = posterior.num_observations // num_shards
    # The likelihood of a batch is scaled up to all data, hence by the number of shards.
    log_likelihood = posterior.log_likelihood(theta, index * size + jnp.arange(size))
    return (posterior.log_prior(theta) + log_likelihood) / num_shards


def _check_model(model: Any, layout: ParamLayout, split: SplitInputs, dtype: Any) -> jax.ShapeDtypeStruct:
    """Refuse a model that JAX cannot trace, or that is random; return the shape of its outputs."""
    inputs = split.rows

    def run(theta: Array, some_inputs: Inputs) -> Array:
        return model.apply(layout.unravel(theta), join_inputs(some_inputs, split.shared))

    vector = jax.ShapeDtypeStruct((layout.size,), dtype)
    try:
        predicted = jax.eval_shape(run, vector, inputs)
    except jax.errors.JAXTypeError as error:
        raise InputError(
            "`apply` must be a JAX function of its arguments, without NumPy functions or Python conditions on their "
            f"values, got {type(error).__name__}: {_first_line(error)}"
        ) from error
    except Exception as error:
        raise InputError(
            f"`apply(params, inputs)` must accept the given inputs, got {type(error).__name__}: {_first_line(error)}"
        ) from error
    if not isinstance(predicted, jax.ShapeDtypeStruct):
        raise InputError(f"`apply(params, inputs)` must return one array, got a {type(predicted).__name__}.")
    if not jnp.issubdtype(predicted.dtype, jnp.floating):
        raise InputError(f"`apply` must return floating-point numbers, got {predicted.dtype}.")
    theta = 0.1 * jax.random.normal(jax.random.key(0), (layout.size,), dtype)
    first_row = jax.tree.map(lambda leaf: leaf[:1], inputs)
    first, second = (np.asarray(run(theta, first_row)) for _ in range(2))
    if not np.array_equal(first, second, equal_nan=True):
        difference = np.nanmax(np.abs(first - second))
        raise InputError(
            f"`apply` must return the same outputs for the same arguments, got outputs that differ by {difference:.3g}."
            " Switch dropout and other randomness off."
        )
    return predicted


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
