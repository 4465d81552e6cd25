r"""Multi-layer perceptron.

.. math:: h_{l+1} = a(h_l W_l + b_l), \qquad F(x) = h_L W_L (+ b_L)
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vihmc.errors import InputError, nearest
from vihmc.types import Key, Params

ACTIVATIONS = {"tanh": jnp.tanh, "sin": jnp.sin, "relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}


@dataclass(frozen=True)
class MLP:
    """A dense network; hashable, so that its methods can be compiled against.

    Attributes:
        widths: Number of inputs, of neurons in each hidden layer, and of outputs.
        activation: Name of the nonlinearity after every layer but the last.
        output_bias: Whether the last layer has a bias.
    """

    widths: tuple[int, ...]
    activation: str = "tanh"
    output_bias: bool = True

    def __post_init__(self) -> None:
        """Check the shape of the network."""
        if len(self.widths) < 2 or any(width < 1 for width in self.widths):
            raise InputError(f"`widths` must be at least two positive integers, got {self.widths}.")
        if self.activation not in ACTIVATIONS:
            raise InputError(
                f"`activation` must be one of {', '.join(ACTIVATIONS)}, got '{self.activation}'."
                + nearest(self.activation, ACTIVATIONS)
            )

    def init(self, rng_key: Key) -> Params:
        """Draw Glorot-normal weights and zero biases."""
        last = len(self.widths) - 2
        layers = []
        for index, (fan_in, fan_out) in enumerate(zip(self.widths[:-1], self.widths[1:], strict=True)):
            std = (2 / (fan_in + fan_out)) ** 0.5
            layer = {"weight": std * jax.random.normal(jax.random.fold_in(rng_key, index), (fan_in, fan_out))}
            if index < last or self.output_bias:
                layer["bias"] = jnp.zeros(fan_out)
            layers.append(layer)
        return {"layers": layers}

    def apply(self, params: Params, inputs: Float[Array, "n inputs"]) -> Float[Array, "n outputs"]:
        """Run the network on a batch."""
        activate = ACTIVATIONS[self.activation]
        *hidden, output = params["layers"]
        for layer in hidden:
            inputs = activate(inputs @ layer["weight"] + layer["bias"])
        outputs = inputs @ output["weight"]
        return outputs + output["bias"] if self.output_bias else outputs
