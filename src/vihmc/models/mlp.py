r"""Multi-layer perceptron.

.. math:: h_{l+1} = a(h_l W_l + b_l), \qquad F(x) = h_L W_L (+ b_L)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from vihmc.errors import InputError, nearest
from vihmc.models import vectorised
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

    @property
    def num_layers(self) -> int:
        """Number of linear layers."""
        return len(self.widths) - 1

    def init(self, rng_key: Key) -> Params:
        """Draw Glorot-normal weights and zero biases."""
        last = self.num_layers - 1
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
        return self.apply_layers(params, inputs, start=0, stop=self.num_layers)

    def apply_layers(
        self,
        params: Params,
        hidden: Float[Array, "n width *chains"],
        *,
        start: int,
        stop: int,
        multiply: Sequence[Callable[[Array, Array], Array]] | None = None,
    ) -> Float[Array, "n next_width *next_chains"]:
        """Run layers `start` to `stop` - 1 on what enters layer `start`.

        A layer may come with a matrix product of its own, one whose derivative leaves out what nobody needs.
        """
        for index in range(start, stop):
            hidden = self._linear(params, hidden, index, jnp.matmul if multiply is None else multiply[index])
            if index < self.num_layers - 1:
                hidden = ACTIVATIONS[self.activation](hidden)
        return hidden

    def features(self, params: Params, inputs: Float[Array, "n inputs"]) -> Float[Array, "n width"]:
        """What enters the last layer, in which the network is linear."""
        return self.apply_layers(params, inputs, start=0, stop=self.num_layers - 1)

    def suits_vectorised_chains(self, num_observations: int) -> bool:
        """Whether many chains run through it best as one vectorised program."""
        return self.num_layers >= 2 and vectorised.is_narrow(self.widths, num_observations=num_observations)

    def apply_vectorised(self, params: Params, inputs: Float[Array, "n inputs"]) -> Float[Array, "n outputs chains"]:
        """Run the network with the parameters of many chains: every leaf has them along an additional last axis."""
        last = self.num_layers - 1
        return self._linear(params, self._hidden_vectorised(params, inputs), last, vectorised.multiply)

    def features_vectorised(self, params: Params, inputs: Float[Array, "n inputs"]) -> Float[Array, "n width chains"]:
        """What enters the output layer, a column of ones for its bias included."""
        hidden = self._hidden_vectorised(params, inputs)
        return jnp.concatenate([hidden, jnp.ones_like(hidden[:, :1])], axis=1) if self.output_bias else hidden

    def _hidden_vectorised(self, params: Params, inputs: Float[Array, "n inputs"]) -> Float[Array, "n width chains"]:
        multiply = [vectorised.multiply] * self.num_layers
        return self.apply_layers(params, inputs[..., None], start=0, stop=self.num_layers - 1, multiply=multiply)

    def output_layer(self, params: Params) -> Shaped[Array, "rows outputs *chains"]:
        """The weights of the output layer, its bias as the last row."""
        layer = params["layers"][-1]
        return jnp.concatenate([layer["weight"], layer["bias"][None]] if self.output_bias else [layer["weight"]])

    def with_output_layer(self, params: Params, layer: Float[Array, "rows outputs"]) -> Params:
        """The same parameters with another output layer."""
        width = self.widths[-2]
        last = {"weight": layer[:width]} | ({"bias": layer[width]} if self.output_bias else {})
        return params | {"layers": [*params["layers"][:-1], last]}

    def _linear(
        self, params: Params, hidden: Array, index: int, multiply: Callable[[Array, Array], Array] = jnp.matmul
    ) -> Array:
        layer = params["layers"][index]
        outputs = multiply(hidden, layer["weight"])
        return outputs + layer["bias"] if "bias" in layer else outputs

    def sum_squared_rows(
        self, params: Params, inputs: Float[Array, "n inputs"], weights: Float[Array, "n outputs"] | None = None
    ) -> Params:
        r"""Sums over all outputs, :math:`\sum_{n,o} w_{no} (\partial F_o(x_n) / \partial \theta_i)^2`."""
        directions = jnp.eye(self.widths[-1], dtype=inputs.dtype)
        if weights is not None:
            directions = directions[:, None, :] * jnp.sqrt(weights)
        return self.sum_squared_gradients(params, inputs, directions)

    def sum_squared_gradients(
        self,
        params: Params,
        inputs: Float[Array, "n inputs"],
        directions: Float[Array, "m outputs"] | Float[Array, "m n outputs"],
    ) -> Params:
        r"""Sums of squared derivatives, :math:`\sum_{d,n} (\partial\, (d \cdot F(x_n)) / \partial \theta_i)^2`.

        For one direction d the derivative of sample n with respect to ``weight[i, j]`` is a product
        :math:`A_{ni} \Delta_{nj}`, so its squares sum over samples as :math:`(A^2)^\top (\Delta^2)`: one matrix product
        per layer and direction instead of one gradient per sample. Directions may differ from sample to sample.
        """
        entering, slopes = [], []
        hidden = inputs
        for index in range(self.num_layers):
            entering.append(hidden)
            before = self._linear(params, hidden, index)
            if index < self.num_layers - 1:
                hidden, slope = jax.jvp(ACTIVATIONS[self.activation], (before,), (jnp.ones_like(before),))
                slopes.append(slope)
        squares_entering = [leaf**2 for leaf in entering]

        def add_direction(total: Params, direction: Array) -> tuple[Params, None]:
            delta = jnp.broadcast_to(direction, (inputs.shape[0], direction.shape[-1]))
            layers = []
            for index in reversed(range(self.num_layers)):
                square = delta**2
                layer = {"weight": squares_entering[index].T @ square}
                if "bias" in params["layers"][index]:
                    layer["bias"] = square.sum(axis=0)
                layers.append(layer)
                if index > 0:
                    delta = (delta @ params["layers"][index]["weight"].T) * slopes[index - 1]
            return jax.tree.map(jnp.add, total, {"layers": layers[::-1]}), None

        return jax.lax.scan(add_direction, jax.tree.map(jnp.zeros_like, params), directions)[0]
