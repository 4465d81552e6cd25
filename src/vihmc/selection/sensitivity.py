r"""Stage 2: how much each parameter moves the prediction.

.. math::
    S_i^2 = \sigma_i^2 \, \frac{1}{N} \sum_{j=1}^{N} \left(\frac{\partial F_\mu(x_j)}{\partial \theta_i}\right)^2

with the sum over all observations and all outputs (the paper's equation for :math:`S_i^2`). Where outputs differ in
precision they may have different units: each counts in proportion to it, on average once.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vihmc.posterior.density import Posterior
from vihmc.posterior.squared_gradients import MANY_OUTPUTS, estimate_squared_gradients
from vihmc.types import Inputs, Key, Vector, as_pytree_function, readable


@readable
class Scores(NamedTuple):
    """One score per parameter.

    Attributes:
        values: :math:`S_i^2`, in squared units of the prediction.
        standard_error: Monte Carlo error of each value; zero for exact scores.
    """

    values: Float[Array, " params"]
    standard_error: Float[Array, " params"]


def score(
    posterior: Posterior,
    mean: Vector,
    std: Vector,
    inputs: Inputs,
    *,
    weights: Array | None = None,
    method: Literal["exact", "random_signs"] | None = None,
    rng_key: Key | None = None,
    num_probes: int = 256,
    memory_mb: float = 256.0,
) -> Scores:
    """Score every parameter at `mean`.

    Args:
        posterior: Its model makes the predictions; observations must not influence each other.
        mean: Where gradients are taken.
        std: Standard deviation of each parameter.
        inputs: Where the prediction matters.
        weights: How much each prediction counts, of their shape; the same if not given.
        method: All gradients, or an unbiased estimate from random signs; if not given, all gradients unless there are
            very many outputs and the model has no faster way to them.
        rng_key: Needed for the estimate only.
        num_probes: Backward passes of the estimate.
        memory_mb: Memory of a chunk of gradients.
    """
    shape = jax.eval_shape(as_pytree_function(posterior.predict), mean, inputs).shape
    weights, num_predictions = _weigh_by_precision(posterior, mean, inputs, weights), math.prod(shape)
    if weights is not None:
        num_predictions = jnp.sum(weights)
    if (method or _method_for(posterior, math.prod(shape))) == "exact":
        squares = posterior.sum_squared_gradients(mean, inputs, weights=weights, memory_mb=memory_mb)
        error = jnp.zeros_like(squares)
    else:
        if rng_key is None:
            raise ValueError("`rng_key` is needed to draw random signs, got None.")
        squares, error = estimate_squared_gradients(
            posterior.predict, mean, inputs, rng_key, weights=weights, num_probes=num_probes, memory_mb=memory_mb
        )
    return Scores(std**2 * squares / num_predictions, std**2 * error / num_predictions)


def frozen_share(
    posterior: Posterior,
    mean: Vector,
    std: Vector,
    selected: Int[Array, " selected"],
    inputs: Inputs,
    *,
    weights: Array | None = None,
    method: Literal["exact", "random_signs"] | None = None,
    rng_key: Key | None = None,
) -> float:
    """Share of the first-order variance of the predictions at `inputs` that frozen parameters contribute.

    As if parameters were independent, as they are in q. It is about these inputs: where predictions are made far from
    the data, other parameters move them than those that were selected. Arguments are those of :func:`score`.
    """
    known, count = posterior.given_scales(mean), posterior.num_params
    values = score(known, mean[:count], std[:count], inputs, weights=weights, method=method, rng_key=rng_key).values
    return float(1 - values[selected[selected < count]].sum() / values.sum())


def _method_for(posterior: Posterior, num_outputs: int) -> str:
    is_long = num_outputs > MANY_OUTPUTS and not posterior.has_fast_squared_gradients
    return "random_signs" if is_long else "exact"


def _weigh_by_precision(posterior: Posterior, mean: Vector, inputs: Inputs, weights: Array | None) -> Array | None:
    """Weights of the predictions: none if they all count the same."""
    if posterior.likelihood.has_one_precision:
        return weights
    precision = posterior.precision(mean, inputs)
    relative = precision / jnp.mean(precision)
    return relative if weights is None else weights * relative
