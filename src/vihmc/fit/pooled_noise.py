r"""The noise of several fits that are pooled: what the spread between them leaves to be explained.

The noise of a fit alone is its whole error at observations that it left out. Of K fits that are pooled with equal
weights, the spread between them describes a part of that error, so bands with both are too wide. All fits leave out the
same observations, and those are most probable under the pooled prediction where the learnt scales are

.. math:: u = \arg\max_u \sum_j \log \frac1K \sum_k p(y_j \mid f_k(x_j), u)
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize

from vihmc.devices import as_in_first_process
from vihmc.fit.evidence import hold_out
from vihmc.posterior.density import Posterior
from vihmc.types import Vector


def with_pooled_noise(posterior: Posterior, modes: Sequence[Vector]) -> tuple[Vector, ...]:
    """Give all fits the learnt noise of their pooled prediction.

    Nothing changes for one fit, where nothing was left out, or where the chains find the noise by themselves.
    """
    held_out = hold_out(posterior).held_out
    if len(modes) == 1 or not posterior.scales_are_cut or held_out is None or not posterior.likelihood.num_scales:
        return tuple(modes)
    outputs = jnp.stack([held_out.predict(mode, held_out.inputs) for mode in modes])
    start = np.mean([np.asarray(posterior.scales(mode).likelihood, np.float64) for mode in modes], axis=0)

    def loss(log_scales: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _negative_log_density(jnp.asarray(log_scales), held_out, outputs)
        return float(value), np.asarray(gradient, np.float64)

    found = as_in_first_process(*minimize(loss, start, jac=True, method="L-BFGS-B").x.tolist())
    begin = posterior.num_params
    return tuple(mode.at[begin : begin + len(found)].set(jnp.asarray(found, mode.dtype)) for mode in modes)


@jax.jit
@jax.value_and_grad
def _negative_log_density(log_scales: Array, posterior: Posterior, outputs: Float[Array, "fits *outputs"]) -> Array:
    wide = jnp.result_type(float)
    targets, scales = posterior.targets.astype(wide), log_scales.astype(wide)
    of_fits = jax.vmap(lambda one: posterior.likelihood.log_prob(targets, one.astype(wide), scales))(outputs)
    return -jnp.average(jax.scipy.special.logsumexp(of_fits, axis=0), weights=posterior.weights)
