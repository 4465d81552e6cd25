r"""The posterior of a DeepONet on a subspace: whatever no selected parameter touches is computed once.

Three things make the force cheap, and none changes it:

- **Frozen layers.** Below the first layer with a selected parameter all activations are constants. A side without
  selected parameters enters by its Gram matrix alone (:mod:`vihmc.posterior.pairs`).
- **Blocks.** The parameters that matter form a network within the network. Neurons are put in an order where the
  selected weights of a layer fill its upper left block, and only that block of the weight gradient is computed.
- **Chunks.** The trunk runs forth and back on some thousand locations at a time, which stay in the processor's cache.
  That is possible since the gradient of the trunk needs nothing of the other locations:
  :math:`\partial E/\partial T = T\,(B^\top B) - R\,(L^\top B) + c\,\mathbf 1(\mathbf 1^\top B)`, row by row.

Where the noise differs from location to location, the Gram matrix of a frozen trunk depends on it and is formed anew.

The force is computed in the precision of the data. The value, which decides whether a draw is accepted and is needed
once per draw, is computed in float64 throughout: residuals of float32 networks have errors that do not average out. On
Burgers they sum to a thousandth of a nat at the fit (noise 0.1) and to a quarter of one at random weights (noise 1).
"""

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.models.deeponet import DeepONet, Factors
from vihmc.models.mlp import MLP
from vihmc.posterior.hierarchy import log_prior, split_scales
from vihmc.posterior.layout import ParamLayout
from vihmc.posterior.likelihoods import Gaussian
from vihmc.posterior.pairs import (
    PairTargets,
    Summary,
    bias_gradient,
    error_gradient,
    log_likelihood,
    residual_form,
    summarise,
)
from vihmc.posterior.priors import WeightPrior
from vihmc.posterior.subspace import Subspace, scatter
from vihmc.types import Params, register_pytree

_CHUNK_BYTES = 24e6
"""Activations and targets of a chunk of locations: less than the last-level cache of most processors."""
_SIDES = ("branch", "trunk")


@dataclass(frozen=True, eq=False)
class RestrictedOperator:
    """The posterior on a subspace, with what is frozen already evaluated. Build it with :meth:`of`.

    Attributes:
        model: The operator.
        layout: The layout of its parameters.
        starts: For branch and trunk, the first layer with a selected parameter; the number of layers if there is none.
        blocks: For branch and trunk, rows and columns of each layer's weights that hold all selected ones.
        bounds: For every leaf, where its selected entries begin and end among all selected ones.
        frozen: Values of all leaves in float64; entries that are selected are replaced.
        ranks: For every leaf, the place of each scalar among the selected ones of that leaf, or -1.
        indices: For every leaf, which of its scalars are selected.
        exact_inputs: What enters the first active layers of branch and trunk, in float64.
        branch_input: The same for the branch, in the precision of the data.
        trunk_input: The same for the trunk, in chunks of locations.
        right: The targets' factor on the locations, in the same chunks.
        mask: One for a location, zero for the padding of the last chunk.
        summaries: For branch and trunk, what the force needs of a side that is frozen, else None.
        targets: Targets on all pairs, without units.
        likelihood: Of the observations.
        prior: Of all parameters of the model.
        subspace: The selected parameters, learnt scales among them.
    """

    model: DeepONet
    layout: ParamLayout
    starts: tuple[int, int]
    blocks: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
    bounds: tuple[tuple[int, int], ...]
    frozen: list[Array]
    ranks: list[Array]
    indices: list[Array]
    exact_inputs: tuple[Float[Array, "functions width"], Float[Array, "locations trunk_width"]]
    branch_input: Float[Array, "functions width"]
    trunk_input: Float[Array, "chunks size trunk_width"]
    right: Float[Array, "chunks size rank"]
    mask: Float[Array, "chunks size 1"]
    summaries: tuple[Summary | None, Summary | None]
    targets: PairTargets
    likelihood: Gaussian
    prior: WeightPrior
    subspace: Subspace

    @classmethod
    def of(
        cls,
        model: DeepONet,
        layout: ParamLayout,
        functions: Array,
        locations: Array,
        targets: PairTargets,
        subspace: Subspace,
        *,
        prior: WeightPrior,
        likelihood: Gaussian,
    ) -> "RestrictedOperator":
        """Find what no selected parameter touches, and evaluate it."""
        dtype = targets.values.dtype
        selected, rank = np.asarray(subspace.selected), np.asarray(subspace.rank)
        is_selected = dict(zip(layout.leaf_names, _split(layout, rank >= 0), strict=True))
        orders, blocks = _orders(model, layout, is_selected)
        bounds = tuple(pairwise(np.searchsorted(selected, layout.offsets).tolist()))
        center = _split(layout, np.asarray(subspace.center, dtype=np.float64))
        frozen = [jnp.asarray(values.ravel()[order]) for values, order in zip(center, orders, strict=True)]
        ranks, indices = [], []
        for piece, order, (first, _) in zip(_split(layout, rank), orders, bounds, strict=True):
            ranks.append(jnp.asarray(np.maximum(piece.ravel()[order] - first, -1)))
            indices.append(jnp.asarray(np.argsort(order)[np.flatnonzero(piece.ravel() >= 0)]))

        params = _unflatten(layout, frozen)
        networks = (model.branch, model.trunk)
        starts = (
            _first_selected(model.branch, "branch", is_selected),
            _first_selected(model.trunk, "trunk", is_selected),
        )
        features = model.features(functions.astype(jnp.float64), locations.astype(jnp.float64))
        exact_inputs = tuple(
            network.apply_layers(params[side], value, start=0, stop=start)
            for side, network, value, start in zip(_SIDES, networks, features, starts, strict=True)
        )
        branch, trunk = (value.astype(dtype) for value in exact_inputs)
        summaries = tuple(
            summarise(value, basis) if start == network.num_layers and is_known else None
            for network, value, basis, start, is_known in zip(
                networks,
                (branch, trunk),
                (targets.left, targets.right),
                starts,
                (True, likelihood.has_one_precision),
                strict=True,
            )
        )
        num_chunks = _num_chunks(model.trunk, targets.right) if targets.weights is None else 1
        chunk = partial(_in_chunks, num_chunks=num_chunks)
        return cls(
            model=model,
            layout=layout,
            starts=starts,
            blocks=blocks,
            bounds=bounds,
            frozen=frozen,
            ranks=ranks,
            indices=indices,
            exact_inputs=(exact_inputs[0], exact_inputs[1]),
            branch_input=branch,
            trunk_input=chunk(trunk),
            right=chunk(targets.right),
            mask=chunk(jnp.ones((len(trunk), 1), dtype)),
            summaries=(summaries[0], summaries[1]),
            targets=targets,
            likelihood=likelihood,
            prior=prior,
            subspace=subspace.held_at(subspace.center.astype(jnp.float64)),
        )

    def log_density(self, position: Float[Array, " selected"]) -> Array:
        """Log of prior times likelihood at a position in the subspace."""
        return self._log_prior(position) + self._log_likelihood(position, _misfit(position, self))

    def log_density_of_shard(self, position: Float[Array, " selected"], index: Array, num_shards: int) -> Array:
        """One of the terms that `log_density` is the sum of: some of the functions, and a share of the prior."""
        values, left, right, _, weights = self.targets
        size = len(values) // num_shards

        def rows(array: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(array, index * size, size)

        part = rows(values)
        shard = replace(
            self,
            exact_inputs=(rows(self.exact_inputs[0]), self.exact_inputs[1]),
            branch_input=rows(self.branch_input),
            targets=PairTargets(part, rows(left), right, jnp.sum(part), None if weights is None else rows(weights)),
            summaries=(None, self.summaries[1]),
        )
        # The constants of the likelihood are those of all data, and so is the error once it is scaled up.
        error = num_shards * _misfit(position, shard)
        return (self._log_prior(position) + self._log_likelihood(position, error)) / num_shards

    def _log_likelihood(self, position: Array, error: Array) -> Array:
        noise_std = self.likelihood.std(
            split_scales(self.subspace.embed(position), self.layout.size, self.likelihood).likelihood
        )
        error = self.model.output_scale**2 * error
        count = self.targets.num_observations(per_location=self._is_per_location)
        return log_likelihood(error, noise_std=noise_std, num_observations=count)

    @property
    def _is_per_location(self) -> bool:
        return not self.likelihood.has_one_precision

    def _log_prior(self, position: Array) -> Array:
        # Frozen weights count in the density of their scale.
        return log_prior(self.subspace.embed(position), self.layout.size, self.likelihood, self.prior)

    def _active(self, position: Array) -> list[Array]:
        """The leaves that have selected entries, with these put in; in the precision of `position`."""
        leaves = zip(self.bounds, self.indices, self.ranks, self.frozen, strict=True)
        return [
            scatter(position[first:last], indices, rank, values.astype(position.dtype))
            for (first, last), indices, rank, values in leaves
            if last > first
        ]

    def _params(self, active: list[Array]) -> Params:
        """All leaves; one without a selected entry is a constant, so that no derivative of it is ever computed."""
        given, dtype = iter(active), active[0].dtype
        leaves = [
            next(given) if last > first else values.astype(dtype)
            for (first, last), values in zip(self.bounds, self.frozen, strict=True)
        ]
        return _unflatten(self.layout, leaves)

    def _run(self, side: int, active: list[Array], hidden: Array) -> Array:
        """Run the active layers of the branch (0) or the trunk (1)."""
        network: MLP = (self.model.branch, self.model.trunk)[side]
        multiply = [partial(_block_product, rows, columns) for rows, columns in self.blocks[side]]
        params = self._params(active)[_SIDES[side]]
        return network.apply_layers(params, hidden, start=self.starts[side], stop=network.num_layers, multiply=multiply)

    def _bias(self, active: list[Array]) -> Array:
        if not self.model.output_bias:
            return jnp.zeros((), active[0].dtype)
        return self._params(active)["bias"]

    def error(self, position: Float[Array, " selected"]) -> Array:
        """Half the squared error, in all or at each location, from all residuals, in float64."""
        active = self._active(position.astype(jnp.float64))
        branch, trunk = (self._run(side, active, self.exact_inputs[side]) for side in (0, 1))
        factors = Factors(branch, trunk, self._bias(active))
        return residual_form(factors, self.targets, per_location=self._is_per_location)

    def error_gradient(
        self, position: Float[Array, " selected"], location_weights: Float[Array, " locations"] | None
    ) -> Array:
        """Gradient of half the squared error, in the precision of the data; in Gram form unless pairs have weights."""
        active, pull = jax.vjp(self._active, position.astype(self.targets.values.dtype))
        by_leaves = self._gradient_by_gram if self.targets.weights is None else self._gradient_by_residuals
        return pull(by_leaves(active, location_weights))[0].astype(position.dtype)

    def _gradient_by_residuals(self, active: list[Array], location_weights: Array | None) -> list[Array]:
        def run(leaves: list[Array]) -> Factors:
            inputs = (self.branch_input, self.trunk_input[0])
            branch, trunk = (self._run(side, leaves, hidden) for side, hidden in enumerate(inputs))
            return Factors(branch, trunk, self._bias(leaves))

        factors, pull = jax.vjp(run, active)
        return pull(error_gradient(factors, self.targets, location_weights=location_weights))[0]

    def _gradient_by_gram(self, active: list[Array], location_weights: Array | None) -> list[Array]:
        branch, pull_branch = jax.vjp(lambda leaves: self._run(0, leaves, self.branch_input), active)
        bias, pull_bias = jax.vjp(self._bias, active)
        of_branch, of_trunk = self.summaries
        if of_branch is None:
            of_branch = summarise(branch, self.targets.left)
        total = jax.tree.map(jnp.zeros_like, active)
        if of_trunk is None:
            total, of_trunk = self._gradient_of_trunk(active, of_branch, bias, location_weights)
        by_bias = bias_gradient(of_branch, of_trunk, self.targets, bias, location_weights=location_weights)
        parts = [total, *pull_bias(by_bias)]
        if self.summaries[0] is None:
            by_branch = branch @ of_trunk.gram - self.targets.left @ of_trunk.cross + bias * of_trunk.total
            parts += pull_branch(by_branch)
        return jax.tree.map(lambda *leaves: sum(leaves), *parts)

    def _gradient_of_trunk(
        self, active: list[Array], of_branch: Summary, bias: Array, location_weights: Array | None
    ) -> tuple[list[Array], Summary]:
        """One chunk of locations after the other; on the way, what the branch needs to know of the trunk."""

        def body(carry: tuple, chunk: tuple[Array, Array, Array, Array | None]) -> tuple[tuple, None]:
            hidden, right, mask, weights = chunk
            trunk, pull = jax.vjp(lambda leaves: mask * self._run(1, leaves, hidden), active)
            by_trunk = trunk @ of_branch.gram - right @ of_branch.cross + bias * of_branch.total
            if weights is not None:
                by_trunk = weights * by_trunk
            return jax.tree.map(jnp.add, carry, (pull(by_trunk)[0], summarise(trunk, right, weights))), None

        latent, rank, dtype = of_branch.gram.shape[0], self.right.shape[-1], self.right.dtype
        shapes = ((latent, latent), (rank, latent), (latent,))
        zero = (jax.tree.map(jnp.zeros_like, active), Summary(*(jnp.zeros(shape, dtype) for shape in shapes)))
        weights = None if location_weights is None else _in_chunks(location_weights[:, None], num_chunks=len(self.mask))
        chunks = (self.trunk_input, self.right, self.mask, weights)
        if len(self.mask) == 1:
            return body(zero, jax.tree.map(lambda leaf: leaf[0], chunks))[0]
        return jax.lax.scan(body, zero, chunks)[0]


register_pytree(
    RestrictedOperator,
    data_fields=[
        "frozen",
        "ranks",
        "indices",
        "exact_inputs",
        "branch_input",
        "trunk_input",
        "right",
        "mask",
        "summaries",
        "targets",
        "likelihood",
        "prior",
        "subspace",
    ],
    meta_fields=["model", "layout", "starts", "blocks", "bounds"],
)


@jax.custom_vjp
def _misfit(position: Array, restricted: RestrictedOperator) -> Array:
    """Half the squared error, with a program of its own for the gradient."""
    return restricted.error(position)


def _misfit_forward(position: Array, restricted: RestrictedOperator) -> tuple[Array, tuple]:
    return restricted.error(position), (position, restricted)


def _misfit_backward(residual: tuple, cotangent: Array) -> tuple[Array, None]:
    position, restricted = residual
    if cotangent.ndim:
        weights = cotangent.astype(restricted.targets.values.dtype)
        return restricted.error_gradient(position, weights), None
    return cotangent.astype(position.dtype) * restricted.error_gradient(position, None), None


_misfit.defvjp(_misfit_forward, _misfit_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _block_product(rows: int, columns: int, hidden: Array, weight: Array) -> Array:
    """The product of a layer, whose weight gradient is computed in its upper left block alone."""
    return hidden @ weight


def _block_forward(rows: int, columns: int, hidden: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return hidden @ weight, (hidden, weight)


def _block_backward(rows: int, columns: int, residual: tuple[Array, Array], delta: Array) -> tuple[Array, Array]:
    hidden, weight = residual
    block = hidden[:, :rows].T @ delta[:, :columns]
    padding = ((0, weight.shape[0] - rows), (0, weight.shape[1] - columns))
    return delta @ weight.T, jnp.pad(block, padding)


_block_product.defvjp(_block_forward, _block_backward)


def _split(layout: ParamLayout, vector: np.ndarray) -> list[np.ndarray]:
    return [
        vector[start:end].reshape(shape)
        for (start, end), shape in zip(pairwise(layout.offsets), layout.shapes, strict=True)
    ]


def _unflatten(layout: ParamLayout, leaves: list[Array]) -> Params:
    shaped = [leaf.reshape(shape) for leaf, shape in zip(leaves, layout.shapes, strict=True)]
    return jax.tree.unflatten(layout.treedef, shaped)


def _orders(
    model: DeepONet, layout: ParamLayout, is_selected: dict[str, np.ndarray]
) -> tuple[list[np.ndarray], tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]]:
    """Order neurons so that selected weights come first; return the order of every leaf's scalars, and the blocks."""
    order_of = {"bias": np.arange(1)}
    blocks = []
    for side, network in zip(_SIDES, (model.branch, model.trunk), strict=True):
        names = [f"{side}.layers.{index}" for index in range(network.num_layers)]
        neurons = [np.arange(network.widths[0])]
        for before, after in pairwise(names):
            into, out_of = is_selected[f"{before}.weight"].any(axis=0), is_selected[f"{after}.weight"].any(axis=1)
            smaller = into if into.sum() < out_of.sum() else out_of
            neurons.append(np.lexsort((~smaller, ~(into | out_of))))
        neurons.append(np.arange(network.widths[-1]))
        sizes = []
        for name, (rows, columns) in zip(names, pairwise(neurons), strict=True):
            selected = is_selected[f"{name}.weight"][rows][:, columns]
            sizes.append((_last(selected.any(axis=1)), _last(selected.any(axis=0))))
            scalars = np.arange(selected.size).reshape(selected.shape)
            order_of[f"{name}.weight"] = scalars[rows][:, columns].ravel()
            order_of[f"{name}.bias"] = columns
        blocks.append(tuple(sizes))
    return [order_of[name] for name in layout.leaf_names], (blocks[0], blocks[1])


def _last(flags: Any) -> int:
    return int(np.max(np.flatnonzero(flags), initial=-1)) + 1


def _first_selected(network: MLP, side: str, is_selected: dict[str, np.ndarray]) -> int:
    for index in range(network.num_layers):
        leaves = (is_selected.get(f"{side}.layers.{index}.{leaf}") for leaf in ("weight", "bias"))
        if any(flags is not None and flags.any() for flags in leaves):
            return index
    return network.num_layers


def _num_chunks(trunk: MLP, right: Array) -> int:
    row_bytes = (2 * sum(trunk.widths) + right.shape[1]) * right.dtype.itemsize
    return max(1, round(len(right) * row_bytes / _CHUNK_BYTES))


def _in_chunks(array: Float[Array, "n width"], *, num_chunks: int) -> Float[Array, "chunks size width"]:
    size = -(-len(array) // num_chunks)
    padded = jnp.pad(array, ((0, num_chunks * size - len(array)), (0, 0)))
    return padded.reshape(num_chunks, size, array.shape[1])
