r"""A network between data in their own units.

.. math::
    F(x) = \text{target mean} + \text{target std} \cdot f\left(\frac{x - \text{input mean}}{\text{input std}}\right)

The network f sees numbers of size one, so that a prior of width one says the same of any data; noise, targets and
predictions stay in the units that they came in.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from vihmc.models.features import Scaling
from vihmc.models.mlp import MLP
from vihmc.types import Key, Params


@dataclass(frozen=True)
class Standardised:
    """A network, and the units of what enters and leaves it; hashable like the network.

    Attributes:
        network: The network in the middle.
        inputs: What makes inputs of size one.
        targets: What makes targets of size one; None where they have no units, such as labels and counts.
        num_log_stds: How many of the last outputs are logarithms of stds of the others.
    """

    network: MLP
    inputs: Scaling
    targets: Scaling | None
    num_log_stds: int = 0

    def init(self, rng_key: Key) -> Params:
        """Draw parameters of the network."""
        return self.network.init(rng_key)

    def apply(self, params: Params, inputs: Float[Array, "n inputs"]) -> Float[Array, "n outputs"]:
        """Predict in units of the targets."""
        outputs = self.network.apply(params, self.inputs(inputs))
        if self.targets is None:
            return outputs
        if not self.num_log_stds:
            return self.targets.undo(outputs)
        means, log_stds = jnp.split(outputs, [-self.num_log_stds], axis=-1)
        units = jnp.log(jnp.asarray(self.targets.stds, outputs.dtype))
        return jnp.concatenate([self.targets.undo(means), log_stds + units], axis=-1)
