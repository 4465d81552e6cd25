r"""The posterior of a model's parameters: the one object that every stage shares.

.. math::
    \log p(\theta \mid D) = \log N(\theta; 0, \mathrm{prior\_std}^2)
    + \sum_j \log N(y_j; F_\theta(x_j), \mathrm{noise\_std}^2) + \mathrm{const}

VI maximises a bound on it, HMC samples it, prediction averages over it. It is a
pytree whose arrays are its leaves, so compiled functions take it as an argument.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from vihmc.errors import InputError
from vihmc.models.mlp import MLP
from vihmc.models.standardised import Standardised
from vihmc.models.vectorised import LanesDensity, is_narrow
from vihmc.posterior.layout import ParamLayout
from vihmc.posterior.shards import ShardedDensity, check_shards
from vihmc.posterior.subspace import Subspace
from vihmc.types import Apply, Inputs, Key, Params, Vector

LOG_2PI = math.log(2 * math.pi)


def log_normal(residual: Array, *, std: Array) -> Array:
    """Sum of log N(residual; 0, std²); `std` broadcasts against the last axes."""
    log_std = jnp.broadcast_to(jnp.log(std), residual.shape)
    return -0.5 * jnp.sum((residual / std) ** 2) - jnp.sum(log_std) - 0.5 * residual.size * LOG_2PI


def log_normal_in_lanes(residual: Float[Array, "size lanes"], *, std: Array) -> Float[Array, " lanes"]:
    """The same in every lane, with one std for all rows or one per row."""
    std = jnp.broadcast_to(std, residual.shape[:1])[:, None]
    log_std = jnp.sum(jnp.log(std))
    return -0.5 * jnp.sum((residual / std) ** 2, axis=0) - log_std - 0.5 * residual.shape[0] * LOG_2PI


@dataclass(frozen=True, eq=False)
class Posterior:
    """Gaussian prior and Gaussian likelihood around a model. Build it with :meth:`of`.

    Attributes:
        apply: The model, ``apply(params, inputs)``.
        layout: Where each parameter sits in the flat vector.
        inputs: Training inputs, observations along the leading axis.
        targets: Training targets, of the shape that the model returns.
        prior_std: Prior standard deviation, one number or one per parameter.
        noise_std: Standard deviation of the observation noise, one number or one per output.
    """

    apply: Apply
    layout: ParamLayout
    inputs: Inputs
    targets: Array
    prior_std: Array
    noise_std: Array

    @classmethod
    def of(
        cls,
        apply: Apply,
        params: Params,
        inputs: Inputs,
        targets: Any,
        *,
        prior_std: Any,
        noise_std: Any,
    ) -> "Posterior":
        """Check everything that can be checked before tracing, and build the posterior.

        Args:
            apply: A pure function of a parameter tree and inputs.
            params: An example tree of parameters; only its structure and shapes are used.
            inputs: An array or a pytree of arrays with a common leading axis.
            targets: What the model should return for `inputs`, same shape.
            prior_std: One positive number, or a tree like `params` with one number per leaf.
            noise_std: One positive number, or one per entry of the last axis of `targets`.

        Raises:
            InputError: If shapes disagree, data are not finite or a std is not positive.
        """
        layout = ParamLayout.of(params)
        dtype = jnp.result_type(float)
        inputs = jax.tree.map(lambda leaf: as_finite("inputs", leaf, dtype), inputs)
        targets = as_finite("targets", targets, dtype)
        _check_lengths(inputs, targets)
        _check_prediction(apply, layout, inputs, targets, dtype)
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
            raise InputError(
                f"`noise_std` must be one number or one per output, shape {per_output}, got shape {noise_std.shape}."
            )
        return cls(apply, layout, inputs, targets, prior_std, noise_std)

    @property
    def num_params(self) -> int:
        """Number of scalar parameters."""
        return self.layout.size

    @property
    def num_observations(self) -> int:
        """Length of the leading axis of the data."""
        return self.targets.shape[0]

    @property
    def weights(self) -> Array | None:
        """How often each output was observed, of the shape of `targets`; None for once each."""
        return None

    def predict(self, theta: Vector, inputs: Inputs) -> Array:
        """Run the model on a parameter vector."""
        return self.apply(self.layout.unravel(theta), inputs)

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

    def moved(self, noise: Array) -> "Posterior":
        """The posterior of other data: `noise` is added to the targets."""
        return replace(self, targets=self.targets + noise.astype(self.targets.dtype))

    def minibatch(self, rng_key: Key, *, batch_size: int | None, num_locations: int | None = None) -> Any:
        """Draw the indices of some observations without replacement; None, for all, where no number is given."""
        if num_locations is not None:
            raise InputError(f"`num_locations` must be left out for a model that is no operator, got {num_locations}.")
        if batch_size is None:
            return None
        return jax.random.permutation(rng_key, self.num_observations)[:batch_size]

    def restrict(self, subspace: Subspace, *, num_shards: int | None = None) -> Callable[[Array], Array]:
        """The log density as a function of the kept parameters, with the others frozen; in shards if asked for."""
        if num_shards is None:
            return subspace.restrict(self.log_density)
        check_shards("num_shards", self.num_observations, num_shards)
        return ShardedDensity(Partial(_shard_density, self, subspace), num_shards)


class BarePosterior(NamedTuple):
    """A posterior of the same parameters whose model is the network alone, on data as the network sees them.

    Attributes:
        posterior: Of the network.
        log_units: What its log density lacks: the logarithm of the units of the targets, a constant.
    """

    posterior: Posterior
    log_units: Float[Array, ""]


def without_units(posterior: Posterior) -> BarePosterior:
    """Standardise the data instead of the model, if it is a network with units; else nothing changes."""
    model = getattr(posterior.apply, "__self__", None)
    if not isinstance(model, Standardised):
        return BarePosterior(posterior, jnp.zeros((), posterior.targets.dtype))
    unit = jnp.asarray(model.targets.stds, posterior.targets.dtype)
    bare = replace(
        posterior,
        apply=model.network.apply,
        inputs=model.inputs(posterior.inputs),
        targets=model.targets(posterior.targets),
        noise_std=posterior.noise_std / unit,
    )
    return BarePosterior(bare, -posterior.num_observations * jnp.sum(jnp.log(unit)))


def model_in_lanes(posterior: Posterior) -> MLP | None:
    """The model, if it is a network so narrow that many chains run through it best in lanes."""
    model = getattr(posterior.apply, "__self__", None)
    if not isinstance(model, MLP) or type(posterior) is not Posterior or model.num_layers < 2:
        return None
    return model if is_narrow(model.widths, num_observations=posterior.num_observations) else None


def restrict_in_lanes(posterior: Posterior, subspace: Subspace) -> LanesDensity | None:
    """The log density of the kept parameters for many chains at once, if the model is narrow."""
    bare = without_units(posterior)
    if model_in_lanes(bare.posterior) is None:
        return None
    return subspace.restrict_in_lanes(Partial(_density_in_lanes, bare))


def _density_in_lanes(bare: BarePosterior, theta: Float[Array, "params lanes"]) -> Float[Array, " lanes"]:
    posterior, model = bare.posterior, model_in_lanes(bare.posterior)
    assert model is not None
    residual = posterior.targets[..., None] - model.apply_in_lanes(posterior.layout.unravel(theta), posterior.inputs)
    noise_std = jnp.broadcast_to(posterior.noise_std, posterior.targets.shape)
    log_likelihood = log_normal_in_lanes(residual.reshape(-1, residual.shape[-1]), std=noise_std.reshape(-1))
    return log_normal_in_lanes(theta, std=posterior.prior_std) + log_likelihood + bare.log_units


def _shard_density(posterior: Posterior, subspace: Subspace, position: Array, index: Array, num_shards: int) -> Array:
    theta = subspace.embed(position)
    size = posterior.num_observations // num_shards
    # The likelihood of a batch is scaled up to all data, hence by the number of shards.
    log_likelihood = posterior.log_likelihood(theta, index * size + jnp.arange(size))
    return (posterior.log_prior(theta) + log_likelihood) / num_shards


jax.tree_util.register_dataclass(
    Posterior,
    data_fields=["inputs", "targets", "prior_std", "noise_std"],
    meta_fields=["apply", "layout"],
)


class Validation(NamedTuple):
    """Data to follow a fit on.

    Attributes:
        inputs: Like the training inputs.
        targets: Like the training targets.
        weights: How often each target was observed, zero for never; once each if not given.
    """

    inputs: Inputs
    targets: ArrayLike
    weights: ArrayLike | None = None


def check_validation(posterior: Posterior, validation: Validation | tuple) -> Validation:
    """Return validation data as arrays, after checking that they are shaped like the training data."""
    given = Validation(*validation)  # pyrefly: ignore
    inputs = check_inputs_like("validation", given.inputs, posterior.inputs)
    targets = as_finite("validation", given.targets, posterior.targets.dtype)
    _check_lengths(inputs, targets)
    if targets.shape[1:] != posterior.targets.shape[1:]:
        raise InputError(
            f"`validation` must have targets of shape (n, …) like the training targets, {posterior.targets.shape[1:]} "
            f"after the first axis, got {targets.shape[1:]}."
        )
    if given.weights is None:
        return Validation(inputs, targets)
    weights = as_finite("validation", given.weights, targets.dtype)
    if weights.shape != targets.shape:
        raise InputError(f"`validation` must have weights of the shape of its targets, {targets.shape}, "
                         f"got {weights.shape}.")  # fmt: skip
    if jnp.min(weights) < 0 or not jnp.any(weights):
        raise InputError(f"`validation` must have weights that are not negative, nor all zero, got a smallest of "
                         f"{jnp.min(weights):g} and a sum of {jnp.sum(weights):g}.")  # fmt: skip
    return Validation(inputs, targets, weights)


def check_inputs_like(name: str, inputs: Inputs, example: Inputs) -> Inputs:
    """Return `inputs` as finite arrays, after checking that they are shaped like `example` but for their length."""
    dtype = jnp.result_type(*jax.tree.leaves(example))
    inputs = jax.tree.map(lambda leaf: as_finite(name, leaf, dtype), inputs)
    shapes, expected = (
        [leaf.shape[1:] for leaf in jax.tree.leaves(tree)] if tree is not None else [] for tree in (inputs, example)
    )
    if jax.tree.structure(inputs) != jax.tree.structure(example) or shapes != expected:
        raise InputError(
            f"`{name}` must have the shapes (n, …) of the training inputs, {expected} after the first axis, "
            f"got {shapes}."
        )
    return inputs


def as_finite(name: str, value: Any, dtype: Any) -> Array:
    """Return data as an array of finite numbers of `dtype`, or raise an :class:`InputError` that names them."""
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.number) or np.issubdtype(array.dtype, np.complexfloating):
        raise InputError(f"`{name}` must be real numbers, got dtype {array.dtype}.")
    if array.ndim == 0 or array.shape[0] == 0:
        raise InputError(f"`{name}` must have at least one observation on its first axis, got shape {array.shape}.")
    with np.errstate(over="ignore"):
        array = array.astype(dtype)
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        where = tuple(bad[0].tolist())
        raise InputError(f"`{name}` must be finite, got {array[where]} at index {where} ({len(bad)} in all).")
    return jnp.asarray(array, dtype)


def as_positive(name: str, value: Any, meaning: str, dtype: Any) -> Array:
    """Return a positive number, or one axis of them, as an array of `dtype`."""
    try:
        array = np.asarray(value, dtype=float).astype(dtype)
    except (TypeError, ValueError):
        raise InputError(f"`{name}` must be a positive number, got {value!r}. It is {meaning}.") from None
    if array.ndim > 1 or not np.all(np.isfinite(array) & (array > 0)):
        raise InputError(f"`{name}` must be positive and finite, got {value}. It is {meaning}.")
    return jnp.asarray(array, dtype)


def _check_lengths(inputs: Inputs, targets: Array) -> None:
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(inputs)}
    if lengths != {targets.shape[0]}:
        raise InputError(
            f"`inputs` and `targets` must have the same number of observations, "
            f"got {sorted(lengths)} and {targets.shape[0]}."
        )


def _check_prediction(apply: Apply, layout: ParamLayout, inputs: Inputs, targets: Array, dtype: Any) -> None:
    vector = jax.ShapeDtypeStruct((layout.size,), dtype)
    try:
        predicted = jax.eval_shape(lambda theta: apply(layout.unravel(theta), inputs), vector)
    except (TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"`apply(params, inputs)` must accept the given inputs, got an error: {reason}") from error
    shape = getattr(predicted, "shape", None)
    if shape != targets.shape:
        raise InputError(
            f"`targets` must have the shape that `apply(params, inputs)` returns, {shape}, got {targets.shape}."
        )
