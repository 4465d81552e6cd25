r"""The output layer, integrated out (the marginalised last layer).

A network is linear in its last layer, so given everything below it the posterior of that layer is Gaussian, and its
integral is known. With the features :math:`\Phi` that enter it (and a column of ones for the bias), its selected
entries :math:`w = \text{prior\_std}\, v`, and the contribution of the frozen entries subtracted from the targets, in
units of the noise

.. math::
    r = \frac{y - \Phi_{frozen} w_{frozen}}{\text{noise\_std}}, \qquad
    P = \frac{\Phi\, \text{prior\_std}}{\text{noise\_std}}, \qquad A = I + P^\top P

.. math::
    v \mid \text{below}, y \sim N(\bar v,\; A^{-1}), \qquad \bar v = A^{-1} P^\top r, \qquad
    \log p(y \mid \text{below}) = -\tfrac12 |r - P \bar v|^2 - \tfrac12 |\bar v|^2 - \tfrac12 \log |A|
    - \tfrac{n}{2} \log (2\pi\, \text{noise\_std}^2)

The chains move through what is below alone, where the posterior is less steep (it is the last layer that the data know
best), and every draw gets a last layer of its own from the Gaussian: the same posterior, exactly, in fewer dimensions.
In a trial on `sine_large`, median ESS per gradient was seven times that of chains on everything.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Shaped

from vihmc.models import vectorised
from vihmc.posterior.density import Posterior
from vihmc.posterior.normal import LOG_2PI, log_normal_of_chains
from vihmc.posterior.subspace import Subspace
from vihmc.posterior.vectorised import BarePosterior, suits_vectorised_chains, without_units
from vihmc.types import Key, LogDensity, register_pytree

_DRAWS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class MarginalLastLayer:
    """The posterior of the selected parameters below the last layer. Build it with :meth:`of`.

    Attributes:
        bare: The whole posterior; its model is a narrow network, without units.
        selected: All selected parameters.
        below: Those of them that are not in the last layer: what the chains move through.
        is_integrated: For every parameter, whether it is in the last layer and selected.
    """

    bare: BarePosterior
    selected: Subspace
    below: Subspace
    is_integrated: Bool[Array, " params"]

    @classmethod
    def of(cls, posterior: Posterior, selected: Subspace) -> "MarginalLastLayer | None":
        """Integrate the selected part of the output layer out; None where that cannot be done or leaves nothing."""
        bare = without_units(posterior)
        if not suits_vectorised_chains(bare.posterior) or np.any(np.asarray(posterior.prior.mean)):
            return None
        in_layer = np.ravel(_output_layer(bare.posterior, jnp.arange(posterior.dim)))
        indices = np.asarray(selected.selected)
        below = indices[~np.isin(indices, in_layer)]
        if below.size in (0, indices.size):
            return None
        integrated = np.isin(np.arange(posterior.num_params), np.setdiff1d(indices, below))
        return cls(bare, selected, Subspace.of(below, selected.center), jnp.asarray(integrated))

    @property
    def posterior(self) -> Posterior:
        """The posterior of the network."""
        return self.bare.posterior

    def log_density(self) -> LogDensity:
        """The log density of the selected parameters below the output layer, normalised like that of the posterior."""
        return self.below.restrict_vectorised(Partial(_log_density, self))

    def complete(
        self, positions: Float[np.ndarray, "chains draws below"], rng_key: Key, *, start: int = 0
    ) -> np.ndarray:
        """Draw an output layer for every draw of the layers below it; the first draw is number `start`."""
        num_chains, num_draws = positions.shape[:2]
        # A key per chain and draw, so that more draws leave those before them as they are.
        chains, draws = (numbers.ravel() for numbers in np.indices((num_chains, num_draws)))
        flat = jnp.asarray(positions.reshape(num_chains * num_draws, -1))
        completed = _complete(self, rng_key, jnp.asarray(chains), jnp.asarray(start + draws), flat)
        return np.asarray(completed).reshape(num_chains, num_draws, -1)


register_pytree(MarginalLastLayer, data_fields=["bare", "selected", "below", "is_integrated"], meta_fields=[])


def _output_layer(posterior: Posterior, values: Array) -> Shaped[Array, "rows outputs *chains"]:
    """What of a vector belongs to the output layer, its bias as the last row."""
    return posterior.model.output_layer(posterior.layout.unravel(values))


def _problems(
    marginal: MarginalLastLayer, theta: Float[Array, "dim chains"]
) -> list[tuple[Float[Array, "n rows chains"], Float[Array, "n chains"]]]:
    """P and r of every output."""
    posterior, is_integrated = marginal.posterior, marginal.is_integrated[:, None]
    features = posterior.model.features_vectorised(posterior.layout.unravel(theta), posterior.inputs)
    scale = _output_layer(posterior, jnp.where(is_integrated, marginal.bare.prior_std(theta), 0))
    frozen = _output_layer(posterior, jnp.where(is_integrated, 0, theta[: posterior.num_params]))
    residual = posterior.targets[..., None] - vectorised.multiply(features, frozen)
    noise_std = marginal.bare.noise_std(theta)
    return [
        (features * (scale[:, output] / noise_std[output]), residual[:, output] / noise_std[output])
        for output in range(scale.shape[1])
    ]


def _log_density(marginal: MarginalLastLayer, theta: Float[Array, "dim chains"]) -> Float[Array, " chains"]:
    posterior, bare, is_integrated = marginal.posterior, marginal.bare, marginal.is_integrated[:, None]
    # The integrated ones have had their prior in the integral: at zero, and of this width, they add nothing.
    sampled = jnp.where(is_integrated, 0, theta[: posterior.num_params])
    width = jnp.where(is_integrated, jnp.exp(-0.5 * LOG_2PI), bare.prior_std(theta))
    total = log_normal_of_chains(sampled, std=width) + bare.log_hyperprior(theta) + bare.log_units
    for design, residual in _problems(marginal, theta):
        total = total + _log_evidence(design, residual)
    log_noise = posterior.num_observations * jnp.sum(jnp.log(bare.noise_std(theta)), axis=0)
    return total - log_noise - 0.5 * posterior.targets.size * LOG_2PI


@jax.custom_vjp
def _log_evidence(design: Float[Array, "n rows chains"], residual: Float[Array, "n chains"]) -> Float[Array, " chains"]:
    return _log_evidence_forward(design, residual)[0]


def _log_evidence_forward(design: Array, residual: Array) -> tuple[Array, tuple[Array, ...]]:
    rows = design.shape[1]
    swept, log_determinant = _sweep(_gram(jnp.concatenate([design, residual[:, None]], axis=1)), count=rows)
    inverse, mean = swept[:rows, :rows], swept[:rows, rows]

    def take_off(mean: Array) -> Array:
        return residual - vectorised.sum_of_products(design, mean[None], axis=1)

    # In float32 the inverse is good to a per cent. One step of refinement mends the mean, and |rest|² + |mean|², which
    # is least there, forgives what is left. A reduction ends a loop of XLA's, which would else compute the inner sums
    # once per term of the outer ones.
    excess = jnp.sum(design * take_off(mean)[:, None], axis=0) - mean
    mean = mean + vectorised.sum_of_products(inverse, excess[None], axis=1)
    rest = take_off(mean)
    value = -0.5 * (jnp.sum(rest**2, axis=0) + jnp.sum(mean**2, axis=0) + log_determinant)
    return value, (design, inverse, mean, rest)


def _log_evidence_backward(saved: tuple[Array, ...], cotangent: Array) -> tuple[Array, Array]:
    design, inverse, mean, rest = saved
    to_design = rest[:, None] * mean[None] - vectorised.multiply(design, inverse)
    return cotangent * to_design, -cotangent * rest


_log_evidence.defvjp(_log_evidence_forward, _log_evidence_backward)


def _gram(design: Float[Array, "n rows chains"]) -> Float[Array, "rows rows chains"]:
    """The matrix A, and further rows and columns for what is appended to the design."""
    eye = jnp.eye(design.shape[1], dtype=design.dtype)
    return vectorised.sum_of_products(design[:, :, None], design[:, None], axis=0) + eye[..., None]


def _sweep(
    matrix: Float[Array, "rows rows chains"], *, count: int
) -> tuple[Float[Array, "rows rows chains"], Float[Array, " chains"]]:
    """Sweep the first rows of symmetric matrices, one after the other.

    What was A is then its inverse, and what was b in a column beside it is A⁻¹b. Also gives the log determinant of A.
    """
    number = jnp.arange(matrix.shape[0])[:, None]

    def sweep(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        matrix, log_determinant = carry
        row, column = (jax.lax.dynamic_index_in_dim(matrix, index, axis, keepdims=False) for axis in (0, 1))
        pivot = jax.lax.dynamic_index_in_dim(row, index, 0, keepdims=False)
        is_here = number == index
        # Rows and columns of the others lose what they share with this one; its own become the inverse's.
        column = jnp.where(is_here, -1, column)
        row = jnp.where(is_here, 1, row) / pivot
        others = jnp.where(is_here[:, None] | is_here[None], 0, matrix)
        return others - column[:, None] * row[None], log_determinant + jnp.log(pivot)

    # Written out, as the sums are, this is five times slower.
    return jax.lax.fori_loop(0, count, sweep, (matrix, jnp.zeros_like(matrix[0, 0])))


@jax.jit
def _complete(marginal: MarginalLastLayer, rng_key: Key, chains: Array, draws: Array, below: Array) -> Array:
    def one(chain: Array, draw: Array, position: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(rng_key, chain), draw)
        theta = marginal.below.embed(position)
        layer = _output_layer(marginal.posterior, theta)
        scale = _output_layer(marginal.posterior, marginal.bare.prior_std(theta[:, None])[:, 0])
        is_integrated = _output_layer(marginal.posterior, marginal.is_integrated)
        # All outputs in one call: two solves in one program may run at once, and wait for the same threads for ever.
        designs, residuals = (jnp.stack(values) for values in zip(*_problems(marginal, theta[:, None]), strict=True))
        factors = jnp.linalg.cholesky(jnp.stack([_gram(design)[..., 0] for design in designs]))
        projected = jnp.einsum("onf,on->of", designs[..., 0], residuals[..., 0])[..., None]
        whitened = jax.scipy.linalg.solve_triangular(factors, projected, lower=True)
        noise = [
            jax.random.normal(jax.random.fold_in(key, output), (projected.shape[1],), projected.dtype)
            for output in range(len(designs))
        ]
        drawn = whitened + jnp.stack(noise)[..., None]
        columns = jax.scipy.linalg.solve_triangular(factors, drawn, lower=True, trans="T")[..., 0]
        layer = jnp.where(is_integrated, scale * columns.T, layer)
        params = marginal.posterior.model.with_output_layer(marginal.posterior.layout.unravel(theta), layer)
        completed = jnp.concatenate([marginal.posterior.layout.ravel(params), theta[marginal.posterior.num_params :]])
        return marginal.selected.extract(completed)

    batch = partial(jax.lax.map, batch_size=min(_DRAWS_AT_ONCE, len(below)))
    return batch(lambda one_draw: one(*one_draw), (chains, draws, below))
