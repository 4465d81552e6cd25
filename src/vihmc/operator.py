r"""The posterior of a DeepONet on all pairs of functions and locations.

.. math::
    \log p(\theta \mid D) = \log N(\theta; 0, \mathrm{prior\_std}^2)
    + \sum_{u, x} \log N(y(u, x);\, b_\theta(u) \cdot t_\theta(x) + c,\ \mathrm{noise\_std}^2) + \mathrm{const}

The networks run on every function and on every location once, never on every pair (:mod:`vihmc.pairs`). With a
selection, whatever no kept parameter touches is computed once: the layers below the first kept one, and the whole
product of a side that is frozen.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from vihmc.errors import InputError
from vihmc.layout import ParamLayout
from vihmc.models.deeponet import DeepONet, Factors
from vihmc.models.mlp import MLP
from vihmc.pairs import PairTargets, Summary, factorise, half_squared_error, summarise
from vihmc.posterior import LOG_2PI, Posterior, as_finite, as_positive, log_normal
from vihmc.shards import ShardedDensity, check_shards
from vihmc.subspace import Subspace, scatter
from vihmc.types import Inputs, Key, Params, Vector


class PairBatch(NamedTuple):
    """Indices of some functions and of some locations."""

    functions: Array
    locations: Array


@dataclass(frozen=True, eq=False)
class OperatorPosterior(Posterior):
    """A posterior whose observations are functions and whose outputs are locations. Build it with :meth:`on_pairs`.

    The model computes in the precision of `targets`; positions and energies are float64.

    Attributes:
        model: The operator.
        locations: Where every field is known.
        factors: The targets as a product, for the force.
    """

    model: DeepONet
    locations: Float[Array, "locations dims"]
    factors: PairTargets

    @classmethod
    def on_pairs(
        cls,
        model: DeepONet,
        functions: Any,
        locations: Any,
        targets: Any,
        *,
        prior_std: float,
        noise_std: float,
        dtype: str = "float32",
    ) -> "OperatorPosterior":
        """Check the data and build the posterior.

        Args:
            model: The operator.
            functions: Values of each function at the sensors, (functions, sensors).
            locations: Coordinates, (locations, dims).
            targets: The field of each function at each location, (functions, locations).
            prior_std: Prior standard deviation of every weight and bias.
            noise_std: Standard deviation of the observation noise.
            dtype: What the networks compute in.

        Raises:
            InputError: If shapes disagree, data are not finite, a std is not positive, or 64-bit floats are off.
        """
        if jnp.result_type(float) != jnp.float64:
            raise InputError(
                "`jax_enable_x64` must be on for an operator, got off: the energy of millions of pairs needs float64 "
                "sums. Call jax.config.update('jax_enable_x64', True); the networks still compute in `dtype`."
            )
        functions, locations, targets = (
            as_finite(name, value, dtype)
            for name, value in (("functions", functions), ("locations", locations), ("targets", targets))
        )
        layout = ParamLayout.of(jax.eval_shape(model.init, jax.random.key(0)))
        for name, array in (("functions", functions), ("locations", locations)):
            if array.ndim != 2:
                raise InputError(f"`{name}` must have two axes, one row each, got shape {array.shape}.")
        _check_widths(model, functions, locations)
        if targets.shape != (expected := (functions.shape[0], locations.shape[0])):
            raise InputError(f"`targets` must have a row per function and a column per location, {expected}, "
                             f"got {targets.shape}.")  # fmt: skip
        return cls(
            apply=model.apply,
            layout=layout,
            inputs=functions,
            targets=targets,
            prior_std=_one_std("prior_std", prior_std, "the standard deviation of the prior"),
            noise_std=_one_std("noise_std", noise_std, "the standard deviation of the observation noise"),
            model=model,
            locations=locations,
            factors=factorise(np.asarray(targets), targets.dtype)._replace(values=targets),
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
            return self.from_error(half_squared_error(factors, self.factors, None, None))
        functions, locations = self.inputs[batch.functions], self.locations[batch.locations]
        predicted = self.model.apply_pairs(self._params(theta), functions, locations)
        residual = self.targets[batch.functions][:, batch.locations] - predicted
        scale = self.targets.size / residual.size
        return self.from_error(scale * 0.5 * jnp.sum(residual**2))

    def from_error(self, error: Array) -> Array:
        """Log likelihood of all pairs from half the sum of their squared residuals."""
        constant = self.targets.size * (jnp.log(self.noise_std) + 0.5 * LOG_2PI)
        return -error.astype(jnp.result_type(float)) / self.noise_std**2 - constant

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
        return PairBatch(jax.random.permutation(key_functions, num_functions)[:batch_size], locations)

    def sum_squared_gradients(self, theta: Vector, inputs: Inputs) -> Vector:
        """Exact sums of squared derivatives over all functions in `inputs` and all locations."""
        return self.layout.ravel(self.model.sum_squared_gradients(self._params(theta), inputs, self.locations))

    def restrict(self, subspace: Subspace, *, num_shards: int | None = None) -> Callable[[Array], Array]:
        """The log density as a function of the kept parameters, with everything frozen computed once.

        With a number of shards, every shard has an equal part of the functions.
        """
        restricted = RestrictedOperator.of(self, subspace)
        if num_shards is None:
            return Partial(RestrictedOperator.log_density, restricted)
        check_shards(self.num_observations, num_shards)
        return ShardedDensity(Partial(RestrictedOperator.log_density_of_shard, restricted), num_shards)


jax.tree_util.register_dataclass(
    OperatorPosterior,
    data_fields=["inputs", "targets", "prior_std", "noise_std", "locations", "factors"],
    meta_fields=["apply", "layout", "model"],
)


@dataclass(frozen=True, eq=False)
class RestrictedOperator:
    """The posterior on a subspace, with what is frozen already evaluated.

    Attributes:
        posterior: The whole problem.
        branch_start: First layer of the branch with a kept parameter; its number of layers if there is none.
        trunk_start: The same for the trunk.
        bounds: For every leaf, where its kept entries begin and end among all kept ones.
        frozen: Values of all leaves; entries that are kept are replaced.
        ranks: For every leaf, the place of each scalar among the kept ones of that leaf, or -1.
        indices: For every leaf, which of its scalars are kept.
        branch_input: What enters the branch's first active layer.
        trunk_input: The same for the trunk.
        branch_summary: What the force needs of a frozen branch, else None.
        trunk_summary: What the force needs of a frozen trunk, else None.
        kept_prior_std: Prior standard deviation of the kept parameters.
        frozen_log_prior: Log prior of the frozen ones, a constant.
    """

    posterior: OperatorPosterior
    branch_start: int
    trunk_start: int
    bounds: tuple[tuple[int, int], ...]
    frozen: list[Array]
    ranks: list[Array]
    indices: list[Array]
    branch_input: Array
    trunk_input: Array
    branch_summary: Summary | None
    trunk_summary: Summary | None
    kept_prior_std: Array
    frozen_log_prior: Array

    @classmethod
    def of(cls, posterior: OperatorPosterior, subspace: Subspace) -> "RestrictedOperator":
        """Find what no kept parameter touches, and evaluate it."""
        model, layout, dtype = posterior.model, posterior.layout, posterior.targets.dtype
        kept, rank = np.asarray(subspace.kept), np.asarray(subspace.rank)
        offsets = np.asarray(layout.offsets)
        bounds = np.searchsorted(kept, offsets)
        pieces = list(zip(offsets[:-1], offsets[1:], bounds[:-1], strict=True))
        has_kept = dict(zip(layout.leaf_names, np.diff(bounds) > 0, strict=True))
        starts = [_first_kept(network, side, has_kept) for side, network in _sides(model)]
        params = layout.unravel(subspace.center.astype(dtype))
        hidden = model.features(posterior.inputs, posterior.locations)
        hidden = [
            network.apply_layers(params[side], value, start=0, stop=start)
            for (side, network), value, start in zip(_sides(model), hidden, starts, strict=True)
        ]
        bases = (posterior.factors.left, posterior.factors.right)
        summaries = [
            summarise(value, basis) if start == network.num_layers else None
            for (_, network), value, basis, start in zip(_sides(model), hidden, bases, starts, strict=True)
        ]
        prior_std = jnp.broadcast_to(posterior.prior_std, subspace.center.shape)
        is_frozen = np.flatnonzero(rank < 0)
        return cls(
            posterior=posterior,
            branch_start=starts[0],
            trunk_start=starts[1],
            bounds=tuple(pairwise(bounds.tolist())),
            frozen=[subspace.center[start:end].astype(dtype) for start, end, _ in pieces],
            ranks=[jnp.asarray(np.maximum(rank[start:end] - first, -1)) for start, end, first in pieces],
            indices=[
                jnp.asarray(kept[slice(*bound)] - start)
                for (start, _, _), bound in zip(pieces, pairwise(bounds), strict=True)
            ],
            branch_input=hidden[0],
            trunk_input=hidden[1],
            branch_summary=summaries[0],
            trunk_summary=summaries[1],
            kept_prior_std=prior_std[subspace.kept],
            frozen_log_prior=log_normal(subspace.center[is_frozen].astype(prior_std.dtype), std=prior_std[is_frozen]),
        )

    def log_density(self, position: Float[Array, " kept"]) -> Array:
        """Log of prior times likelihood at a position in the subspace."""
        factors, targets = self.factors(position), self.posterior.factors
        error = half_squared_error(factors, targets, self.branch_summary, self.trunk_summary)
        return self._log_prior(position) + self.posterior.from_error(error)

    def log_density_of_shard(self, position: Float[Array, " kept"], index: Array, num_shards: int) -> Array:
        """One of the terms that `log_density` is the sum of: some of the functions, and a share of the prior."""
        size = self.posterior.num_observations // num_shards

        def rows(array: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(array, index * size, size)

        values, left, right, _ = self.posterior.factors
        part = rows(values)
        targets = PairTargets(part, rows(left), right, jnp.sum(part))
        factors = replace(self, branch_input=rows(self.branch_input)).factors(position)
        error = half_squared_error(factors, targets, None, self.trunk_summary)
        # The constants of the likelihood are those of all data, and so is the error once it is scaled up.
        return (self._log_prior(position) + self.posterior.from_error(num_shards * error)) / num_shards

    def _log_prior(self, position: Array) -> Array:
        return log_normal(position, std=self.kept_prior_std) + self.frozen_log_prior

    def factors(self, position: Float[Array, " kept"]) -> Factors:
        """Run the active layers."""
        model, params = self.posterior.model, self._params(position)
        bias = params["bias"] if model.output_bias else jnp.zeros((), self.posterior.targets.dtype)
        return Factors(
            model.branch.apply_layers(
                params["branch"], self.branch_input, start=self.branch_start, stop=model.branch.num_layers
            ),
            model.trunk.apply_layers(
                params["trunk"], self.trunk_input, start=self.trunk_start, stop=model.trunk.num_layers
            ),
            bias,
        )

    def _params(self, position: Array) -> Params:
        """All leaves; one without a kept entry is a constant, so that no derivative of it is ever computed."""
        layout, position = self.posterior.layout, position.astype(self.posterior.targets.dtype)
        leaves = [
            (scatter(position[first:last], indices, rank, values) if last > first else values).reshape(shape)
            for (first, last), indices, rank, values, shape in zip(
                self.bounds, self.indices, self.ranks, self.frozen, layout.shapes, strict=True
            )
        ]
        return jax.tree.unflatten(layout.treedef, leaves)


jax.tree_util.register_dataclass(
    RestrictedOperator,
    data_fields=[
        "posterior",
        "frozen",
        "ranks",
        "indices",
        "branch_input",
        "trunk_input",
        "branch_summary",
        "trunk_summary",
        "kept_prior_std",
        "frozen_log_prior",
    ],
    meta_fields=["branch_start", "trunk_start", "bounds"],
)


def _one_std(name: str, value: Any, meaning: str) -> Array:
    std = as_positive(name, value, meaning, jnp.result_type(float))
    if std.ndim:
        raise InputError(f"`{name}` must be one number for an operator, got {value}. It is {meaning}.")
    return std


def _sides(model: DeepONet) -> tuple[tuple[str, MLP], tuple[str, MLP]]:
    return (("branch", model.branch), ("trunk", model.trunk))


def _first_kept(network: MLP, side: str, has_kept: dict[str, bool]) -> int:
    for index in range(network.num_layers):
        if any(has_kept.get(f"{side}.layers.{index}.{leaf}", False) for leaf in ("weight", "bias")):
            return index
    return network.num_layers


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
