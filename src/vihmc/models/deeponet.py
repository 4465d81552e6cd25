r"""DeepONet: an operator from functions to fields, as a product of two networks (Lu et al. 2021).

.. math:: F_\theta(u, x) = \sum_k b_k(u)\, t_k(x) + \text{bias}

The branch sees a function through its values at fixed sensors, the trunk sees a location.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.errors import InputError
from vihmc.models.mlp import MLP
from vihmc.types import Key, Params


class Factors(NamedTuple):
    """The two sides of the product, on all functions and on all locations."""

    branch: Float[Array, "functions latent"]
    trunk: Float[Array, "locations latent"]
    bias: Float[Array, ""]


@dataclass(frozen=True)
class DeepONet:
    """A branch and a trunk network with the same number of outputs; hashable like its networks.

    Attributes:
        branch: Network of the function's values.
        trunk: Network of the location.
        output_bias: Whether a single bias is added to the product.
        branch_features: A fixed map before the branch.
        trunk_features: A fixed map before the trunk, such as :class:`vihmc.models.features.PeriodicFeatures`.
        output_offset: What is added to the product to give a field in its own units.
        output_scale: What the product is multiplied by before that.
    """

    branch: MLP
    trunk: MLP
    output_bias: bool = True
    branch_features: Callable[[Array], Array] | None = None
    trunk_features: Callable[[Array], Array] | None = None
    output_offset: float = 0.0
    output_scale: float = 1.0

    def __post_init__(self) -> None:
        """Check that the networks fit together."""
        if self.branch.widths[-1] != self.trunk.widths[-1]:
            raise InputError(
                f"`branch` and `trunk` must have the same number of outputs, "
                f"got {self.branch.widths[-1]} and {self.trunk.widths[-1]}."
            )
        if not self.output_scale > 0:
            raise InputError(f"`output_scale` must be positive, got {self.output_scale}. It is the unit of the fields.")

    @classmethod
    def of_size(
        cls,
        *,
        num_sensors: int,
        num_coordinates: int,
        branch_hidden: Sequence[int],
        trunk_hidden: Sequence[int],
        latent_size: int,
        activation: str = "tanh",
        output_bias: bool = True,
        branch_features: Callable[[Array], Array] | None = None,
        trunk_features: Callable[[Array], Array] | None = None,
        output_offset: float = 0.0,
        output_scale: float = 1.0,
    ) -> "DeepONet":
        """Build it from the widths of its hidden layers.

        `num_sensors` and `num_coordinates` are what enters, before any feature map.
        """
        sizes = []
        for features, size in ((branch_features, num_sensors), (trunk_features, num_coordinates)):
            example = jax.ShapeDtypeStruct((1, size), jnp.float32)
            sizes.append(size if features is None else jax.eval_shape(features, example).shape[1])
        return cls(
            branch=MLP((sizes[0], *branch_hidden, latent_size), activation),
            trunk=MLP((sizes[1], *trunk_hidden, latent_size), activation),
            output_bias=output_bias,
            branch_features=branch_features,
            trunk_features=trunk_features,
            output_offset=output_offset,
            output_scale=output_scale,
        )

    def init(self, rng_key: Key) -> Params:
        """Draw Glorot-normal weights and zero biases."""
        key_branch, key_trunk = jax.random.split(rng_key)
        params = {"branch": self.branch.init(key_branch), "trunk": self.trunk.init(key_trunk)}
        return {**params, "bias": jnp.zeros(())} if self.output_bias else params

    def apply(
        self, params: Params, inputs: tuple[Float[Array, "n sensors"], Float[Array, "n coordinates"]]
    ) -> Float[Array, " n"]:
        """Run the operator on aligned records: function `n` at location `n`."""
        branch, trunk, bias = self.factors(params, *inputs)
        return self.in_units(jnp.sum(branch * trunk, axis=1) + bias)

    def apply_pairs(
        self, params: Params, functions: Float[Array, "functions sensors"], locations: Float[Array, "locations dims"]
    ) -> Float[Array, "functions locations"]:
        """Run the operator on every function at every location."""
        branch, trunk, bias = self.factors(params, functions, locations)
        return self.in_units(branch @ trunk.T + bias)

    def in_units(self, product: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Give the product of the factors the units of the fields."""
        return self.output_offset + self.output_scale * product

    def factors(
        self, params: Params, functions: Float[Array, "functions sensors"], locations: Float[Array, "locations dims"]
    ) -> Factors:
        """Run the two networks; their product is the field without its units."""
        functions, locations = self.features(functions, locations)
        bias = params["bias"] if self.output_bias else jnp.zeros((), functions.dtype)
        return Factors(
            self.branch.apply(params["branch"], functions), self.trunk.apply(params["trunk"], locations), bias
        )

    def features(self, functions: Array, locations: Array) -> tuple[Array, Array]:
        """Apply the feature maps."""
        return (
            functions if self.branch_features is None else self.branch_features(functions),
            locations if self.trunk_features is None else self.trunk_features(locations),
        )

    def sum_squared_gradients(
        self,
        params: Params,
        functions: Float[Array, "functions sensors"],
        locations: Float[Array, "locations dims"],
        weights: Float[Array, "functions locations"] | None = None,
    ) -> Params:
        r"""Exact :math:`\sum_{u,x} w_{ux} (\partial F(u, x)/\partial\theta_i)^2`, no pair of which is formed.

        For a weight of the branch :math:`\partial F/\partial\theta = t(x) \cdot \partial b(u)/\partial\theta`, whose
        squares over all x sum to :math:`\sum_m \lambda_m (e_m \cdot \partial b/\partial\theta)^2` with the eigenpairs
        of :math:`T^\top T`: one backward pass of the branch per eigenvector, and the same the other way round.
        With weights every function has eigenpairs of its own, of :math:`T^\top \mathrm{diag}(w_u)\, T`.
        """
        branch, trunk, _ = self.factors(params, functions, locations)
        functions, locations = self.features(functions, locations)
        of_trunk, of_branch = _roots(_gram(trunk, weights), _gram(branch, None if weights is None else weights.T))
        sums = {
            "branch": self.branch.sum_squared_gradients(params["branch"], functions, of_trunk),
            "trunk": self.trunk.sum_squared_gradients(params["trunk"], locations, of_branch),
        }
        if self.output_bias:
            total = branch.shape[0] * trunk.shape[0] if weights is None else jnp.sum(weights)
            sums["bias"] = jnp.asarray(total, branch.dtype)
        return jax.tree.map(lambda leaf: self.output_scale**2 * leaf, sums)


def _gram(
    factor: Float[Array, "n latent"], weights: Float[Array, "m n"] | None
) -> Float[Array, "latent latent"] | Float[Array, "m latent latent"]:
    """The factor's Gram matrix, or that of every weighing of its rows."""
    if weights is None:
        return factor.T @ factor
    return jax.vmap(lambda weight: (weight[:, None] * factor).T @ factor)(weights)


def _roots(*grams: Float[Array, "... latent latent"]) -> list[Float[Array, "latent ... latent"]]:
    r"""Rows :math:`\sqrt{\lambda_m} e_m` with the eigenpairs of each Gram matrix.

    All in one call: two in one program may run at once, and then wait for the same two threads for ever (jaxlib
    0.10.2 on two cores, latent size 100).
    """
    size = grams[0].shape[-1]
    batches = [gram.reshape(-1, size, size) for gram in grams]
    values, vectors = jnp.linalg.eigh(jnp.concatenate(batches))
    rows = jnp.swapaxes(vectors * jnp.sqrt(jnp.maximum(values, 0))[:, None], 1, 2)
    ends = np.cumsum([len(batch) for batch in batches])[:-1]
    return [
        jnp.moveaxis(part.reshape(gram.shape), -2, 0) for part, gram in zip(jnp.split(rows, ends), grams, strict=True)
    ]
