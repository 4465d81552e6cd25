r"""Fourier neural operator: from fields to fields on a regular grid of any resolution (Li et al. 2021).

.. math:: h_{l+1} = a\big(\mathcal F^{-1}(R_l\, \mathcal F h_l) + h_l W_l + b_l\big)

Each layer multiplies the lowest Fourier modes of its channels by complex matrices R and adds a pointwise linear map.
Pointwise networks lift the inputs, and the coordinates of the grid, to the channels, and project them to the outputs.
Fourier coefficients are means over the grid, so the same weights mean the same operator on a finer grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, Int

from vihmc.errors import InputError, nearest
from vihmc.models.mlp import ACTIVATIONS
from vihmc.types import Key, Params


@dataclass(frozen=True)
class FNO:
    """An operator on fields of shape (functions, one axis per dimension, channels); hashable, like an MLP.

    Attributes:
        modes: Wave numbers that each layer keeps, along each dimension: 0 to this number less one, and along all but
            the last dimension as many negative ones.
        width: Channels inside.
        num_layers: Fourier layers.
        num_inputs: Channels of the inputs.
        num_outputs: Channels of the outputs.
        activation: Name of the nonlinearity.
        padding: Share of the grid that is added at the end of every axis, with zeros, inside: fields need not be
            periodic then. One for all axes, or one for each.
        cell_centred: Whether values belong to the centres of the cells of the grid, not to their first corners. It says
            what coordinates the points have, which matters when the resolution changes.
    """

    modes: tuple[int, ...]
    width: int = 32
    num_layers: int = 4
    num_inputs: int = 1
    num_outputs: int = 1
    activation: str = "gelu"
    padding: float | tuple[float, ...] = 0.0
    cell_centred: bool = False

    def __post_init__(self) -> None:
        """Check the sizes."""
        if not self.modes or any(count < 1 for count in self.modes):
            raise InputError(f"`modes` must be a positive integer for each dimension, got {self.modes}.")
        for name in ("width", "num_layers", "num_inputs", "num_outputs"):
            if getattr(self, name) < 1:
                raise InputError(f"`{name}` must be a positive integer, got {getattr(self, name)}.")
        if self.activation not in ACTIVATIONS:
            raise InputError(
                f"`activation` must be one of {', '.join(ACTIVATIONS)}, got '{self.activation}'."
                + nearest(self.activation, ACTIVATIONS)
            )
        if len(self.paddings) != self.num_dimensions or not all(0 <= share <= 1 for share in self.paddings):
            raise InputError(
                f"`padding` must be a share from 0 to 1, or one for each of {self.num_dimensions} dimensions, "
                f"got {self.padding}."
            )

    @property
    def num_dimensions(self) -> int:
        """Dimensions of the grid."""
        return len(self.modes)

    @property
    def paddings(self) -> tuple[float, ...]:
        """Share of the grid that is added along each dimension."""
        return self.padding if isinstance(self.padding, tuple) else (self.padding,) * self.num_dimensions

    def padded(self, grid: Sequence[int]) -> list[int]:
        """Number of points along each axis of a grid, with those that are added inside."""
        return [length + round(share * length) for length, share in zip(grid, self.paddings, strict=True)]

    def init(self, rng_key: Key) -> Params:
        """Draw Glorot-normal weights, complex ones with the same variance in all, and zero biases."""
        keys = iter(jax.random.split(rng_key, 2 * self.num_layers + 3))
        kept = (*(2 * count for count in self.modes[:-1]), self.modes[-1])
        layers = []
        for _ in range(self.num_layers):
            parts = jax.random.normal(next(keys), (2, *kept, self.width, self.width)) / (2 * self.width) ** 0.5
            layers.append({"spectral": jax.lax.complex(*parts), **_linear(next(keys), self.width, self.width)})
        return {
            "lift": _linear(next(keys), self.num_inputs + self.num_dimensions, self.width),
            "layers": layers,
            "project": [
                _linear(next(keys), self.width, 2 * self.width),
                _linear(next(keys), 2 * self.width, self.num_outputs),
            ],
        }

    def apply(self, params: Params, inputs: Float[Array, "n *grid_inputs"]) -> Float[Array, "n *grid_outputs"]:
        """Run the operator on fields at any resolution that has the modes."""
        grid, shift = inputs.shape[1:-1], 0.5 if self.cell_centred else 0.0
        self.check_grid(grid)
        coordinates = [(np.arange(length) + shift) / length for length in grid]
        return self.apply_on(params, inputs, coordinates, self.padded(grid))

    def apply_on(
        self,
        params: Params,
        inputs: Float[Array, "n *grid_inputs"],
        coordinates: Sequence[np.ndarray],
        padded: Sequence[int],
    ) -> Float[Array, "n *grid_outputs"]:
        """Run the operator on a grid that is described point by point; arguments are those of :meth:`hidden`."""
        return self.project(params, self.hidden(params, inputs, coordinates, padded))

    def hidden(
        self,
        params: Params,
        inputs: Float[Array, "n *grid_inputs"],
        coordinates: Sequence[np.ndarray],
        padded: Sequence[int],
    ) -> Float[Array, "n *grid_features"]:
        """What the output layer multiplies.

        Args:
            params: The weights.
            inputs: Fields, channels last.
            coordinates: Of the points along each axis, in units of the length of the training grid.
            padded: Number of points along each axis, with those that are added inside: a period of the waves.
        """
        grid = inputs.shape[1:-1]
        activate = ACTIVATIONS[self.activation]
        axes = np.stack(np.meshgrid(*coordinates, indexing="ij"), axis=-1)
        where = jnp.broadcast_to(jnp.asarray(axes, inputs.dtype), (*inputs.shape[:-1], len(grid)))
        hidden = _apply_linear(params["lift"], jnp.concatenate([inputs, where], axis=-1))
        added = [(0, total - length) for total, length in zip(padded, grid, strict=True)]
        hidden = jnp.pad(hidden, [(0, 0), *added, (0, 0)])
        for index, layer in enumerate(params["layers"]):
            hidden = self._convolve(layer["spectral"], hidden) + _apply_linear(layer, hidden)
            hidden = activate(hidden) if index < self.num_layers - 1 else hidden
        hidden = hidden[:, *(slice(length) for length in grid)]
        return activate(_apply_linear(params["project"][0], hidden))

    def project(self, params: Params, hidden: Float[Array, "n *grid_features"]) -> Float[Array, "n *grid_outputs"]:
        """The output layer."""
        return _apply_linear(params["project"][1], hidden)

    def _convolve(self, weight: Complex[Array, "*modes width width"], hidden: Float[Array, "n *grid width"]) -> Array:
        """Multiply the kept Fourier coefficients of all channels by matrices.

        They are few, so sums with their waves are faster than a fast Fourier transform of everything. All products are
        real, with real and imaginary parts side by side, and the waves lead: that is how matrix products are fast.
        """
        waves = [_waves(numbers, length) for numbers, length in zip(self._kept(), hidden.shape[1:-1], strict=True)]
        parts: tuple[Array, ...] = (jnp.moveaxis(hidden, 0, -2),)
        for axis, wave in reversed(list(enumerate(waves))):
            parts = _along(axis, np.conj(wave).T / wave.shape[0], parts)
        re, im = jnp.real(weight), jnp.imag(weight)
        rows = [jnp.concatenate(row, axis=-1) for row in ((re, im), (-im, re))]
        both = jnp.concatenate(parts, axis=-1) @ jnp.concatenate(rows, axis=-2)
        parts = tuple(jnp.split(both, 2, axis=-1))
        for axis, wave in enumerate(waves[:-1]):
            parts = _along(axis, wave, parts)
        # A real field: waves of negative number along the last axis are conjugates, that of number zero is its own.
        last = waves[-1] * np.where(self._kept()[-1] == 0, 1, 2)
        (field,) = _along(len(waves) - 1, last, parts, num_parts=1)
        return jnp.moveaxis(field, -2, 0)

    def _kept(self) -> list[np.ndarray]:
        """Kept wave numbers along each dimension."""
        both = [np.concatenate([np.arange(count), np.arange(-count, 0)]) for count in self.modes[:-1]]
        return [*both, np.arange(self.modes[-1])]

    def check_grid(self, grid: tuple[int, ...]) -> None:
        """Refuse a grid that lacks the modes."""
        if len(grid) != self.num_dimensions or any(
            length < 2 * count for length, count in zip(grid, self.modes, strict=True)
        ):
            raise InputError(
                f"`inputs` must have {self.num_dimensions} axes between functions and channels, each of at least twice "
                f"the `modes` {self.modes}, got a grid {grid}."
            )


def _linear(rng_key: Key, num_inputs: int, num_outputs: int) -> dict[str, Array]:
    std = (2 / (num_inputs + num_outputs)) ** 0.5
    return {"weight": std * jax.random.normal(rng_key, (num_inputs, num_outputs)), "bias": jnp.zeros(num_outputs)}


def _apply_linear(layer: Params, hidden: Array) -> Array:
    return hidden @ layer["weight"] + layer["bias"]


def _waves(numbers: Int[np.ndarray, " numbers"], length: int) -> Complex[np.ndarray, "length numbers"]:
    """Waves of the given numbers on a grid."""
    # Whole turns are taken off before anything is rounded.
    return np.exp(2j * np.pi * ((np.outer(np.arange(length), numbers) % length) / length))


def _along(
    axis: int, matrix: Complex[np.ndarray, "new old"], parts: tuple[Array, ...], *, num_parts: int = 2
) -> tuple[Array, ...]:
    """Multiply one axis of a field by a complex matrix, in one real product.

    Args:
        axis: Which.
        matrix: What it is multiplied by.
        parts: The field: its real part, and its imaginary part if it has one.
        num_parts: Parts of the product: the real one alone, or both.
    """
    cos, sin = matrix.real, matrix.imag
    blocks = [[cos, -sin], [sin, cos]]
    table = np.block([row[: len(parts)] for row in blocks[:num_parts]])
    values = jnp.concatenate(parts, axis=axis)
    product = jnp.moveaxis(jnp.tensordot(jnp.asarray(table, values.dtype), values, axes=(1, axis)), 0, axis)
    return tuple(jnp.split(product, num_parts, axis=axis))
