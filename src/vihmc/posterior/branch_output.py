r"""The Gauss–Newton matrix of a DeepONet's output layer: that of the branch, in whose weights the fields are linear.

With what enters the layer, :math:`\phi(u)`, its first entry one for the bias, and the trunk t(x), a weight
:math:`W_{ik}` changes the field by :math:`\phi_i(u)\, t_k(x)`, so

.. math:: C_{ik,jl} = \sum_u \phi_i(u)\, \phi_j(u) \sum_x w_{ux} P_x\, t_k(x)\, t_l(x)

with the precision P of the values at a location, and how often each was observed, w.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vihmc.models.deeponet import DeepONet
from vihmc.types import Params


@partial(jax.jit, static_argnums=0)
def branch_curvature(
    model: DeepONet,
    params: Params,
    functions: Float[Array, "functions sensors"],
    locations: Float[Array, "locations dims"],
    precision: Float[Array, " locations"],
    weights: Float[Array, "functions locations"] | None,
    numbers: Int[Array, " chosen"],
) -> Float[Array, "chosen chosen"]:
    """Rows and columns are weights of the layer by their numbers: biases of all channels first, then row by row."""
    functions, locations = model.features(functions, locations)
    hidden, trunk = model.branch.features(params["branch"], functions), model.trunk.apply(params["trunk"], locations)
    wide = jnp.result_type(float)
    hidden, trunk, precision = (values.astype(wide) for values in (hidden, trunk, precision))
    if model.branch.output_bias:
        hidden = jnp.concatenate([jnp.ones_like(hidden[:, :1]), hidden], axis=1)
    feature, channel = jnp.divmod(numbers, trunk.shape[1])
    precision = model.output_scale**2 * precision
    if weights is None:
        of_trunk = (precision[:, None] * trunk).T @ trunk
        return (hidden.T @ hidden)[feature][:, feature] * of_trunk[channel][:, channel]

    def add(number: Array, total: Array) -> Array:
        of_trunk = ((weights[number] * precision)[:, None] * trunk).T @ trunk
        entering = hidden[number, feature]
        return total + jnp.outer(entering, entering) * of_trunk[channel][:, channel]

    return jax.lax.fori_loop(0, len(hidden), add, jnp.zeros((numbers.size, numbers.size), wide))
