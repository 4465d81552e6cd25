r"""The mass matrix, learnt from the draws of a warm-up window.

.. math:: M^{-1}_{ii} = \mathrm{Var}(\theta_i) \qquad \text{or} \qquad M = \mathrm{E}[-\nabla^2 \log p(\theta)]

The first is the variance within chains, shrunk a little towards the previous one. The second is the curvature, averaged
over draws (with Fisher's information in place of second derivatives, or its diagonal): large wherever a direction is
stiff anywhere, so steps are long and stable. It needs few draws, and none that have crossed the posterior.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.metrics import Metric, default_metric
from jaxtyping import Array, Float

from vihmc.samplers.kernel import Tuning
from vihmc.types import Key

_PREVIOUS_DRAWS = 5
"""The previous metric counts as this many draws in the next one."""
MAX_ROWS = 1024


class Mass(NamedTuple):
    """A mass matrix M = L Lᵀ.

    Attributes:
        inverse: Its inverse, or the diagonal of it.
        root: L, where the matrix is dense.
    """

    inverse: np.ndarray
    root: np.ndarray | None = None

    @classmethod
    def of_curvature(cls, curvature: Float[np.ndarray, "*axes dim"]) -> "Mass":
        """The mass that has the curvature, a matrix or its diagonal, for its own."""
        if curvature.ndim == 1:
            return cls(1 / curvature)
        wide = np.asarray(curvature, np.float64)
        root = np.linalg.cholesky(wide)
        half = np.linalg.solve(root, np.eye(len(root)))
        return cls((half.T @ half).astype(curvature.dtype), root.astype(curvature.dtype))

    def whiten(self, vectors: Float[np.ndarray, "*batch dim"]) -> Float[np.ndarray, "*batch dim"]:
        """Vectors in units of the metric."""
        return vectors / np.sqrt(self.inverse) if self.root is None else vectors @ self.root


def pooled_variance(
    draws: Float[np.ndarray, "steps chains dim"], *, previous: Float[np.ndarray, " dim"]
) -> Float[np.ndarray, " dim"]:
    """Variance within chains, shrunk a little towards the previous metric."""
    num_draws = draws.shape[0] * draws.shape[1]
    within = draws.var(axis=0, ddof=1).mean(axis=0) if len(draws) > 1 else previous
    return ((num_draws * within + _PREVIOUS_DRAWS * previous) / (num_draws + _PREVIOUS_DRAWS)).astype(previous.dtype)


def some_rows(rows: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "some dim"]:
    """Rows at random, so that every chain is among them: their Gram matrix stays small whatever the dimension."""
    return rows[np.random.default_rng(0).permutation(len(rows))[:MAX_ROWS]]


def metric_of(tuning: Tuning) -> Metric:
    """The metric that BlackJAX's transitions use; a dense one is not factorised again with every draw."""
    plain = default_metric(tuning.inverse_mass_matrix)
    root = tuning.mass_root
    if root is None:
        return plain

    def sample_momentum(rng_key: Key, position: Any) -> Any:
        return root @ jax.random.normal(rng_key, position.shape, position.dtype)

    def kinetic_energy(momentum: Any, position: Any = None) -> Any:
        return _half_quadratic_form(tuning.inverse_mass_matrix, momentum)

    return plain._replace(sample_momentum=sample_momentum, kinetic_energy=kinetic_energy)


@jax.custom_jvp
def _half_quadratic_form(matrix: Array, vector: Array) -> Array:
    return 0.5 * jnp.dot(vector, matrix @ vector)


@_half_quadratic_form.defjvp
def _half_quadratic_form_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    # The matrix is symmetric and constant: one product gives the derivative, where JAX would take two.
    (matrix, vector), (_, change) = primals, tangents
    product = matrix @ vector
    return 0.5 * jnp.dot(vector, product), jnp.dot(product, change)
