r"""Learnt scales integrated out: chains move through the weights alone, and scales are drawn afterwards, exactly.

N Gaussian values of one scale s with the sum of squares Q have the likelihood :math:`s^{-N} e^{-Q / 2 s^2}`. A
half-Cauchy of median A is a mixture of inverse gammas (Wand et al. 2011),

.. math::
    s^2 \mid a \sim \mathrm{IG}(\tfrac12, 1/a), \quad a \sim \mathrm{IG}(\tfrac12, 1/A^2)
    \quad\Rightarrow\quad
    \log p(\text{values}, \log a) = -\tfrac{N+1}{2} \log(1/a + Q/2) - \log a - \tfrac{1}{A^2 a} + \mathrm{const}

so log a takes the place of log s in the position, and :math:`s^{-2} \mid a, Q \sim \Gamma(\tfrac{N+1}{2}, 1/a + Q/2)`
is drawn when a draw is finished. Why: log s has to drag the length of N weights along, and has little energy to do it
with, however long the trajectory. log a does not know how many weights there are.

Sums of squares of weights are computed. That of the residuals is read off the log density at reference scales, which is
linear in it; so every way to write the density (cached layers, say) can be used as it is.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from vihmc.posterior.density import Posterior
from vihmc.posterior.normal import LOG_2PI
from vihmc.posterior.subspace import Subspace
from vihmc.types import Key, LogDensity, Vector, as_pytree_function, register_pytree

LOG_A_VAR = np.pi**2 / 6
"""Variance of log a, given a scale: that of the logarithm of an exponential variable."""


@dataclass(frozen=True, eq=False)
class IntegratedScales:
    """The density of selected weights, with scales integrated out. Build it with :meth:`of`.

    Attributes:
        posterior: Of weights and scales.
        subspace: The selected parameters; all scales are among them, last.
        reference: A full vector whose scales are those at which sums of squares are read off.
        integrates_noise: Whether the noise is integrated out too, or only the scales of the prior.
    """

    posterior: Posterior
    subspace: Subspace
    reference: Vector
    integrates_noise: bool

    @classmethod
    def of(cls, posterior: Posterior, subspace: Subspace, reference: Vector) -> "IntegratedScales | None":
        """Integrate out what can be: scales of the prior, and one Gaussian noise. None if there is nothing."""
        integrates_noise = posterior.likelihood.noise_median is not None
        if not (posterior.prior.num_scales or integrates_noise):
            return None
        return cls(posterior, subspace, reference, integrates_noise)

    @property
    def num_integrated(self) -> int:
        """Number of scales that are integrated out: the last of a position."""
        return self.posterior.prior.num_scales + self.integrates_noise

    @property
    def counts(self) -> Float[Array, " scales"]:
        """N of each scale, that of the noise first."""
        of_prior = self.posterior.prior.sums(jnp.ones(self.posterior.num_params))
        return (
            jnp.concatenate([jnp.full(1, self.posterior.num_values), of_prior]) if self.integrates_noise else of_prior
        )

    @property
    def medians(self) -> Float[Array, " scales"]:
        """A of each scale."""
        of_prior, of_noise = self.posterior.prior.medians, self.posterior.likelihood.noise_median
        return of_prior if of_noise is None else jnp.concatenate([jnp.reshape(of_noise, 1), of_prior])

    def start(self, positions: Float[Array, "chains dim"]) -> Float[Array, "chains dim"]:
        """Positions with log a where log s was: the one that s suggests."""
        weights, log_scales = self._split(positions)
        log_a = jnp.logaddexp(-2 * log_scales, -2 * jnp.log(self.medians)).astype(positions.dtype)
        return jnp.concatenate([weights, log_a], axis=-1)

    def initial_var(self, var: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """First guess of variances: log a varies by about one, whatever the data."""
        return var.at[var.size - self.num_integrated :].set(LOG_A_VAR)

    def log_density(self, joint: LogDensity) -> LogDensity:
        """The density of weights and log a, from the `joint` one of weights and log scales."""
        return Partial(_log_density, self, as_pytree_function(joint))

    def typical(self, joint: LogDensity, position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The same weights with typical scales: those of the mean precision."""
        shape, rate = self._precisions(joint, position)
        return jnp.concatenate([self._split(position)[0], 0.5 * jnp.log(rate / shape).astype(position.dtype)])

    def complete(
        self, joint: LogDensity, positions: Float[np.ndarray, "chains draws dim"], rng_key: Key, *, start: int
    ) -> Float[np.ndarray, "chains draws dim"]:
        """Draw the scales of finished draws, the first of which has the number `start`."""
        completed = _complete(self, as_pytree_function(joint), jnp.asarray(positions), rng_key, jnp.asarray(start))
        return np.asarray(completed)

    def _split(self, position: Float[Array, "*batch dim"]) -> tuple[Array, Array]:
        cut = position.shape[-1] - self.num_integrated
        return position[..., :cut], position[..., cut:]

    def _at_reference(self, position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return jnp.concatenate([self._split(position)[0], self._split(self.reference)[1].astype(position.dtype)])

    def _sums_of_squares(self, joint: LogDensity, position: Float[Array, " dim"]) -> Float[Array, " scales"]:
        """Q of each scale, that of the noise first."""
        posterior, prior, at_reference = self.posterior, self.posterior.prior, self._at_reference(position)
        theta = self.subspace.embed(at_reference)
        of_prior = prior.sums(((theta[: posterior.num_params] - prior.mean) / prior.unit_std) ** 2)
        if not self.integrates_noise:
            return of_prior
        scales = posterior.scales(theta)
        log_noise = scales.likelihood[0]
        # What is left of the log density without the prior is -N log s - Q / 2s² - N/2 log 2π.
        of_data = joint(at_reference) - posterior.log_prior(theta)
        of_noise = -2 * jnp.exp(2 * log_noise) * (of_data + posterior.num_values * (log_noise + LOG_2PI / 2))
        return jnp.concatenate([jnp.maximum(of_noise, 0).reshape(1), of_prior])

    def _precisions(self, joint: LogDensity, position: Float[Array, " dim"]) -> tuple[Array, Array]:
        """Shape and rate of the gamma distribution of each precision."""
        log_a = self._split(position)[1]
        return (self.counts + 1) / 2, jnp.exp(-log_a) + self._sums_of_squares(joint, position) / 2


register_pytree(IntegratedScales, data_fields=["posterior", "subspace", "reference"], meta_fields=["integrates_noise"])


def _log_density(integrated: IntegratedScales, joint: LogDensity, position: Float[Array, " dim"]) -> Array:
    log_a, posterior = integrated._split(position)[1], integrated.posterior
    shape, rate = integrated._precisions(joint, position)
    total = jnp.sum(-shape * jnp.log(rate) - log_a - jnp.exp(-log_a) / integrated.medians**2)
    if integrated.integrates_noise and posterior.prior.num_scales:
        return total
    # What is not integrated stays as it is: a known prior, or a likelihood and its own scales.
    at_reference = integrated._at_reference(position)
    theta = integrated.subspace.embed(at_reference)
    of_prior = posterior.log_prior(theta)
    if integrated.integrates_noise:
        return total + of_prior
    hyperprior = posterior.likelihood.log_hyperprior(posterior.scales(theta).likelihood)
    return total + joint(at_reference) - of_prior + hyperprior


@jax.jit
def _complete(integrated: IntegratedScales, joint: LogDensity, positions: Array, rng_key: Key, start: Array) -> Array:
    num_chains, num_draws, dim = positions.shape

    def one(number: Array, position: Array) -> Array:
        chain, draw = jnp.divmod(number, num_draws)
        key = jax.random.fold_in(jax.random.fold_in(rng_key, chain), start + draw)
        shape, rate = integrated._precisions(joint, position)
        precision = jax.random.gamma(key, shape.astype(position.dtype)) / rate
        return jnp.concatenate([integrated._split(position)[0], (-0.5 * jnp.log(precision)).astype(position.dtype)])

    numbered = (jnp.arange(num_draws * num_chains), positions.reshape(-1, dim))
    return jax.lax.map(lambda each: one(*each), numbered).reshape(positions.shape)
