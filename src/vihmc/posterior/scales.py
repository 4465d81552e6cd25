r"""Learnt scales: positive numbers with a half-Cauchy hyperprior, inferred as logarithms.

.. math::
    p(s) = \frac{2}{\pi A} \frac{1}{1 + s^2 / A^2}, \qquad
    \log p(u) = \log\frac{2}{\pi} + (u - \log A) - \log(1 + e^{2(u - \log A)}), \quad u = \log s

The half-Cauchy (Gelman 2006) has its median at A, is flat below it and falls like :math:`s^{-2}` above it: a scale may
be ten times larger if the data ask for it, and one near zero is not excluded. An inverse gamma on the variance would be
conjugate, but its mass near zero depends on constants that nobody knows, and where a scale has few observations so does
the answer.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

LOG_2_OVER_PI = math.log(2 / math.pi)


def log_half_cauchy(
    log_scales: Float[Array, "scales *chains"], medians: Float[Array, " scales"]
) -> Float[Array, "*chains"]:
    """Log density of logarithms of scales, summed over the scales."""
    centred = log_scales - jnp.log(medians).reshape(-1, *[1] * (log_scales.ndim - 1))
    return jnp.sum(LOG_2_OVER_PI + centred - jnp.logaddexp(0.0, 2 * centred), axis=0)


def most_probable_scale(
    sum_of_squares: Float[Array, " scales"], count: Float[Array, " scales"], medians: Float[Array, " scales"]
) -> Float[Array, " scales"]:
    r"""Scale that maximises its own density given Gaussian values of this scale.

    .. math:: \max_u\ -n u - \tfrac12 e^{-2u} Q + \log p(u)

    The derivative is a quadratic equation in the variance :math:`v = e^{2u}`:
    :math:`(n + 1) v^2 + ((n - 1) A^2 - Q) v - Q A^2 = 0`.

    Args:
        sum_of_squares: Q, of the values of each scale.
        count: n, how many values have that scale; the effective number where they were fitted.
        medians: A, of the hyperprior.
    """
    half = ((count - 1) * medians**2 - sum_of_squares) / 2
    root = jnp.sqrt(half**2 + (count + 1) * sum_of_squares * medians**2)
    # Of the two forms of the positive root, the one that does not cancel.
    variance = jnp.where(half < 0, (root - half) / (count + 1), sum_of_squares * medians**2 / (root + half))
    return jnp.sqrt(variance)
