r"""A network between data in their own units.

.. math::
    F(x) = \text{target mean} + \text{target std} \cdot f\left(\frac{x - \text{input mean}}{\text{input std}}\right)

The network f sees numbers of size one, so that a prior of width one says the same of any data; noise, targets and
predictions stay in the units that they came in.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vihmc.errors import InputError
from vihmc.models.deeponet import DeepONet
from vihmc.models.features import Chained, PeriodicFeatures, Scaling, check_digits
from vihmc.models.model import SquaredGradients
from vihmc.types import Key, Params


@dataclass(frozen=True)
class Standardised:
    """A network, and the units of what enters and leaves it; hashable like the network.

    Attributes:
        network: The network in the middle, any model of rows of numbers.
        inputs: What makes inputs of size one.
        targets: What makes targets of size one; None where they have no units, such as labels and counts.
        num_log_stds: How many of the last outputs are logarithms of stds of the others.
    """

    network: Any
    inputs: Scaling
    targets: Scaling | None
    num_log_stds: int = 0

    def init(self, rng_key: Key) -> Params:
        """Draw parameters of the network, where it has an initialisation of its own."""
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

    def sum_squared_rows(
        self, params: Params, inputs: Float[Array, "n inputs"], weights: Float[Array, "n outputs"] | None = None
    ) -> Params | None:
        """Sums over rows and outputs of squared derivatives, times weights; None if the network has no fast way."""
        if not isinstance(self.network, SquaredGradients):
            return None
        outputs = jax.eval_shape(self.apply, params, inputs)
        units = _squared_units(self.targets, self.num_log_stds, outputs.shape[-1], outputs.dtype)
        weights = jnp.broadcast_to(units, outputs.shape) if weights is None else weights * units
        return self.network.sum_squared_rows(params, self.inputs(inputs), weights)


def _squared_units(targets: Scaling | None, num_log_stds: int, num_outputs: int, dtype: Any) -> Array:
    """How much larger the squared derivatives are in units of the targets; logarithms have none."""
    units = jnp.ones(num_outputs - num_log_stds) if targets is None else jnp.asarray(targets.stds) ** 2
    return jnp.concatenate([units, jnp.ones(num_log_stds)]).astype(dtype)


def standardise(model: Any, inputs: Any, targets: Any | None, *, num_outputs: int, dtype: Any) -> Standardised:
    """Put a model between data in their own units.

    Args:
        model: Has ``apply(params, inputs)``.
        inputs: Training inputs, rows of numbers.
        targets: Training targets, rows of numbers; None where they have no units, such as labels and counts.
        num_outputs: Of the model; those beyond the targets are logarithms of stds of the others.
        dtype: What the model will compute in.

    Raises:
        InputError: If they are no rows of numbers, or a column varies too little for its digits.
    """
    num_log_stds = 0 if targets is None else num_outputs - np.shape(targets)[-1]
    of_targets = None if targets is None else _scaling("targets", targets, dtype)
    return Standardised(model, _scaling("inputs", inputs, dtype), of_targets, num_log_stds=num_log_stds)


def _scaling(name: str, values: Any, dtype: Any) -> Scaling:
    shape = getattr(values, "shape", None)
    if shape is None or len(shape) != 2:
        got = "no array" if shape is None else f"shape {tuple(shape)}"
        raise InputError(
            f"`{name}` must have a row per observation and a column per number to be standardised, got {got}."
        )
    scaling = Scaling.of(np.asarray(values, dtype=np.float64))
    hint = " Call jax.config.update('jax_enable_x64', True)."
    check_digits(numbered(name, shape[1]), scaling, dtype, "precision", hint=hint)
    return scaling


class OperatorScalings(NamedTuple):
    """Scalings that standardise functions, locations and fields; the last has a single column."""

    functions: Scaling
    locations: Scaling
    fields: Scaling

    @classmethod
    def of(cls, model: DeepONet, functions: Any, locations: Any, fields: Any) -> "OperatorScalings":
        """Of every sensor and coordinate; of all fields together, since one noise belongs to all.

        A periodic coordinate stays as it is: its sines and cosines have size one.
        """
        parts = (functions, locations, np.reshape(np.asarray(fields), (-1, 1)))
        found = cls(*(Scaling.of(np.asarray(part, dtype=np.float64)) for part in parts))
        if not isinstance(model.trunk_features, PeriodicFeatures):
            return found
        means, stds, column = list(found.locations.means), list(found.locations.stds), model.trunk_features.column
        means[column], stds[column] = 0.0, 1.0
        return found._replace(locations=Scaling(tuple(means), tuple(stds)))

    def around(self, model: DeepONet) -> DeepONet:
        """The same operator between data in their own units.

        Raises:
            InputError: If it has units already.
        """
        if model.branch_features is not None or model.output_scale != 1 or model.output_offset != 0:
            raise InputError("`standardise` must be left out for an operator that has units of its own, got True.")
        trunk = () if model.trunk_features is None else (model.trunk_features,)
        return replace(
            model,
            branch_features=self.functions,
            trunk_features=Chained((self.locations, *trunk)),
            output_offset=self.fields.means[0],
            output_scale=self.fields.stds[0],
        )


def numbered(name: str, count: int) -> tuple[str, ...]:
    """Names of columns that have none."""
    return tuple(f"{name}[:, {column}]" for column in range(count))
