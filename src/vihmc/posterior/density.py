r"""The posterior of a model's parameters: the one object that every stage shares.

.. math::
    \log p(\theta \mid D) = \log N(\theta; 0, \mathrm{prior\_std}^2)
    + \sum_j \log N(y_j; F_\theta(x_j), \mathrm{noise\_std}^2) + \mathrm{const}

VI maximises a bound on it, HMC samples it, prediction averages over it. It is a pytree whose arrays are its leaves, so
compiled functions take it as an argument. Its methods are all that a stage asks of a posterior; other kinds of data
(:class:`vihmc.OperatorPosterior`) answer the same questions in their own, faster way.
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
from vihmc.models.model import as_model
from vihmc.posterior.checks import (
    Validation,
    as_finite,
    as_positive,
    check_inputs_like,
    check_lengths,
    check_validation,
)
from vihmc.posterior.layer_costs import FrozenLayers
from vihmc.posterior.layout import ParamLayout
from vihmc.posterior.normal import log_normal
from vihmc.posterior.shards import ShardedDensity, check_shards
from vihmc.posterior.squared_gradients import gradients_at, sum_squared_gradients
from vihmc.posterior.subspace import Subspace
from vihmc.types import Inputs, Key, Params, PredictFn, Vector, register_pytree

_MAX_PERMUTED = 10_000


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
    """Gaussian prior and Gaussian likelihood around a model. Build it with :meth:`of`.

    Attributes:
        model: Has ``apply(params, inputs)``.
        layout: Where each parameter sits in the flat vector.
        inputs: Training inputs, observations along the leading axis.
        targets: Training targets, of the shape that the model returns.
        prior_std: Prior standard deviation, one number or one per parameter.
        noise_std: Standard deviation of the observation noise, one number or one per output.
    """

    model: Any
    layout: ParamLayout
    inputs: Inputs
    targets: Array
    prior_std: Array
    noise_std: Array

    @classmethod
    def of(
        cls,
        apply: Any,
        params: Params,
        inputs: Inputs,
        targets: Any,
        *,
        prior_std: Any,
        noise_std: Any,
    ) -> "Posterior":
        """Check everything that can be checked before tracing, and build the posterior.

        Args:
            apply: A pure function ``apply(params, inputs)``, or an object that has one as its method `apply`.
            params: An example tree of parameters; only its structure and shapes are used.
            inputs: An array or a pytree of arrays with a common leading axis.
            targets: What the model should return for `inputs`, same shape.
            prior_std: One positive number, or a tree like `params` with one number per leaf.
            noise_std: One positive number, or one per entry of the last axis of `targets`.

        Raises:
            InputError: If shapes disagree, data are not finite, a std is not positive or `apply` is no JAX function.
        """
        layout = ParamLayout.of(params)
        dtype = jnp.result_type(float)
        inputs = jax.tree.map(lambda leaf: as_finite("inputs", leaf, dtype), inputs)
        targets = as_finite("targets", targets, dtype)
        check_lengths(inputs, targets)
        model = as_model(apply)
        _check_model(model, layout, inputs, targets, dtype)
        if jax.tree_util.all_leaves([prior_std]):
            prior_std = as_positive("prior_std", prior_std, "the standard deviation of the prior", dtype)
            if prior_std.ndim:
                raise InputError(f"`prior_std` must be one number or a tree with one per leaf, got {prior_std}.")
        else:
            leaves = jax.tree.map(lambda s: as_positive("prior_std", s, "a standard deviation", dtype), prior_std)
            prior_std = layout.spread(leaves)
        noise_std = as_positive("noise_std", noise_std, "the standard deviation of the observation noise", dtype)
        per_output = targets.shape[-1:] if targets.ndim > 1 else ()
        if noise_std.ndim and noise_std.shape != per_output:
            expected = f"one number or one per output, shape {per_output}" if per_output else "one number"
            raise InputError(f"`noise_std` must be {expected}, got shape {noise_std.shape}.")
        return cls(model, layout, inputs, targets, prior_std, noise_std)

    @property
    def num_params(self) -> int:
        """Number of scalar parameters."""
        return self.layout.size

    @property
    def num_observations(self) -> int:
        """Length of the leading axis of the data."""
        return self.targets.shape[0]

    @property
    def num_network_rows(self) -> int:
        """Rows that run through the network for one gradient."""
        return self.num_observations

    @property
    def weights(self) -> Array | None:
        """How often each output was observed, of the shape of `targets`; None for once each."""
        return None

    def predict(self, theta: Vector, inputs: Inputs) -> Array:
        """Run the model on a parameter vector."""
        return self.model.apply(self.layout.unravel(theta), inputs)

    @property
    def has_fast_squared_gradients(self) -> bool:
        """Whether :meth:`sum_squared_gradients` costs less than a gradient for every output."""
        return False

    def row_wise(self, subspace: Subspace, inputs: Inputs, *, locations: Array | None = None) -> RowWise:
        """The predictions at `inputs`, to be evaluated some rows at a time.

        `locations` are for operators alone, whose fields are predicted there.
        """
        if locations is not None:
            raise InputError("`locations` must be left out for a model that is no operator, got an array.")
        return RowWise(subspace.restrict(self.predict), inputs)

    def log_prior(self, theta: Vector) -> Array:
        """Log density of the prior, normalised."""
        return log_normal(theta, std=self.prior_std)

    def log_likelihood(self, theta: Vector, batch: Any = None) -> Array:
        """Log likelihood of all data, or an unbiased estimate of it from the observations in `batch`."""
        if batch is None:
            return log_normal(self.targets - self.predict(theta, self.inputs), std=self.noise_std)
        inputs, targets = jax.tree.map(lambda leaf: leaf[batch], (self.inputs, self.targets))
        scale = self.num_observations / batch.shape[0]
        return scale * log_normal(targets - self.predict(theta, inputs), std=self.noise_std)

    def log_density(self, theta: Vector) -> Array:
        """Log of prior times likelihood: the target of HMC."""
        return self.log_prior(theta) + self.log_likelihood(theta)

    def with_targets(self, targets: Array) -> "Posterior":
        """The posterior of other targets at the same inputs."""
        return replace(self, targets=targets.astype(self.targets.dtype))

    def perturbed(self, noise: Array) -> "Posterior":
        """The posterior of other data: `noise` is added to the targets."""
        return self.with_targets(self.targets + noise.astype(self.targets.dtype))

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

    def sum_squared_gradients(
        self, theta: Vector, inputs: Inputs, *, weights: Array | None = None, memory_mb: float = 256.0
    ) -> Vector:
        r"""Exact sums :math:`\sum_j w_j J_{ji}^2` over all outputs at `inputs`."""
        return sum_squared_gradients(self.predict, theta, inputs, weights=weights, memory_mb=memory_mb)

    def gradients_at(
        self, theta: Vector, inputs: Inputs, points: Int[np.ndarray, " points"]
    ) -> Float[Array, "points params"]:
        """Derivatives of some outputs by all parameters; `points` are indices into all outputs, inputs first."""
        return gradients_at(self.predict, theta, inputs, points)

    def gauss_newton_product(self, theta: Vector, tangent: Vector) -> Vector:
        r"""Multiply a vector by :math:`J^\top W J / \text{noise\_std}^2`, with J of the training predictions."""
        weight = 1 / self.noise_std if self.weights is None else jnp.sqrt(self.weights) / self.noise_std
        _, push = jax.linearize(lambda theta: self.predict(theta, self.inputs), theta)
        outputs = push(tangent)
        (gradient,) = jax.linear_transpose(push, theta)((weight**2 * outputs).astype(outputs.dtype))
        return gradient

    def frozen_layers(self) -> list[FrozenLayers]:
        """Ways to leave whole layers frozen and compute them once, the cheapest first; none for a plain model."""
        return []

    def check_validation(self, validation: Validation | tuple) -> Validation:
        """Return validation data as arrays, after checking that they are shaped like the training data."""
        return check_validation(validation, inputs=self.inputs, targets=self.targets)

    def check_inputs(self, name: str, inputs: Inputs) -> Inputs:
        """Return inputs as finite arrays, after checking that they are shaped like the training inputs."""
        return check_inputs_like(name, inputs, self.inputs)


register_pytree(
    Posterior,
    data_fields=["inputs", "targets", "prior_std", "noise_std"],
    meta_fields=["model", "layout"],
)


def draw_rows(rng_key: Key, num_rows: int, batch_size: int) -> Int[Array, " batch"]:
    """Draw rows at random: without replacement, or with it where there are many.

    A permutation of a million rows takes longer than a gradient; of so many, hardly any is drawn twice.
    """
    if num_rows > _MAX_PERMUTED and num_rows > batch_size:
        return jax.random.randint(rng_key, (batch_size,), 0, num_rows)
    return jax.random.permutation(rng_key, num_rows)[:batch_size]


def _shard_density(posterior: Posterior, subspace: Subspace, position: Array, index: Array, num_shards: int) -> Array:
    theta = subspace.embed(position)
    size = posterior.num_observations // num_shards
    # The likelihood of a batch is scaled up to all data, hence by the number of shards.
    log_likelihood = posterior.log_likelihood(theta, index * size + jnp.arange(size))
    return (posterior.log_prior(theta) + log_likelihood) / num_shards


def _check_model(model: Any, layout: ParamLayout, inputs: Inputs, targets: Array, dtype: Any) -> None:
    """Refuse a model that JAX cannot trace, that returns something else than the targets' shape, or that is random."""

    def run(theta: Array, some_inputs: Inputs) -> Array:
        return model.apply(layout.unravel(theta), some_inputs)

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
    shape = getattr(predicted, "shape", None)
    if shape != targets.shape:
        raise InputError(
            f"`targets` must have the shape that `apply(params, inputs)` returns, {shape}, got {targets.shape}."
        )
    if not jnp.issubdtype(predicted.dtype, jnp.floating):
        raise InputError(f"`apply` must return floating-point numbers, got {predicted.dtype}.")
    theta = 0.1 * jax.random.normal(jax.random.key(0), (layout.size,), dtype)
    first_row = jax.tree.map(lambda leaf: leaf[:1], inputs)
    first, second = (np.asarray(run(theta, first_row)) for _ in range(2))
    if not np.array_equal(first, second, equal_nan=True):
        difference = np.nanmax(np.abs(first - second))
        raise InputError(
            f"`apply` must return the same outputs for the same arguments, got outputs that differ by {difference:.3g}. "
            "Switch dropout and other randomness off."
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
