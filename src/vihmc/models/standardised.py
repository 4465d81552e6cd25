r"""A network between data in their own units.

.. math::
    F(x) = \text{target mean} + \text{target std} \cdot f\left(\frac{x - \text{input mean}}{\text{input std}}\right)

The network f sees numbers of size one, so that a prior of width one says the same of any data; noise, targets and
predictions stay in the units that they came in.
"""

from dataclasses import dataclass

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
        targets: What makes targets of size one.
    """

    network: MLP
    inputs: Scaling
    targets: Scaling

    def init(self, rng_key: Key) -> Params:
        """Draw parameters of the network."""
        return self.network.init(rng_key)

    def apply(self, params: Params, inputs: Float[Array, "n inputs"]) -> Float[Array, "n outputs"]:
        """Predict in units of the targets."""
        return self.targets.undo(self.network.apply(params, self.inputs(inputs)))
