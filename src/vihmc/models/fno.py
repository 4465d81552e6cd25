r"""Fourier neural operator: from fields to fields on a regular grid of any resolution (Li et al. 2021).

.. math:: h_{l+1} = a\big(\mathcal F^{-1}(R_l\, \mathcal F h_l) + h_l W_l + b_l\big)

Each layer multiplies the lowest Fourier modes of its channels by complex matrices R and adds a pointwise linear map.
Pointwise networks lift the inputs, and the coordinates of the grid, to the channels, and project them to the outputs.
Fourier coefficients are means over the grid, so the same weights mean the same operator on a finer grid.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

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
            periodic then.
        cell_centred: Whether values belong to the centres of the cells of the grid, not to their first corners. It says
            what coordinates the points have, which matters when the resolution changes.
    """

    modes: tuple[int, ...]
    width: int = 32
    num_layers: int = 4
    num_inputs: int = 1
    num_outputs: int = 1
    activation: str = "gelu"
    padding: float = 0.0
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
        if not 0 <= self.padding <= 1:
            raise InputError(f"`padding` must be a share from 0 to 1, got {self.padding}.")

    @property
    def num_dimensions(self) -> int:
        """Dimensions of the grid."""
        return len(self.modes)

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
        grid = inputs.shape[1:-1]
        self._check_grid(grid)
        activate = ACTIVATIONS[self.activation]
        hidden = _apply_linear(params["lift"], jnp.concatenate([inputs, self._coordinates(inputs)], axis=-1))
        added = [(0, round(self.padding * length)) for length in grid]
        hidden = jnp.pad(hidden, [(0, 0), *added, (0, 0)])
        for index, layer in enumerate(params["layers"]):
            hidden = self._convolve(layer["spectral"], hidden) + _apply_linear(layer, hidden)
            hidden = activate(hidden) if index < self.num_layers - 1 else hidden
        hidden = hidden[:, *(slice(length) for length in grid)]
        return _apply_linear(params["project"][1], activate(_apply_linear(params["project"][0], hidden)))

    def _convolve(self, weight: Complex[Array, "*modes width width"], hidden: Float[Array, "n *grid width"]) -> Array:
        """Multiply the kept Fourier coefficients of all channels by matrices.

        They are few, so sums with their waves are faster than a fast Fourier transform of everything.
        """
        waves = [_waves(numbers, length) for numbers, length in zip(self._kept(), hidden.shape[1:-1], strict=True)]
        spectrum = hidden
        for axis, wave in reversed(list(enumerate(waves, start=1))):
            spectrum = _along(axis, jnp.conj(wave).T / wave.shape[0], spectrum)
        product = jnp.einsum("n...i,...io->n...o", spectrum, weight)
        for axis, wave in enumerate(waves[:-1], start=1):
            product = _along(axis, wave, product)
        # A real field: waves of negative number along the last axis are conjugates, that of number zero is its own.
        twice = jnp.where(self._kept()[-1] == 0, 1, 2).astype(hidden.dtype)
        return _along(len(waves), waves[-1] * twice, product, real=True)

    def _kept(self) -> list[Array]:
        """Kept wave numbers along each dimension."""
        both = [jnp.concatenate([jnp.arange(count), jnp.arange(-count, 0)]) for count in self.modes[:-1]]
        return [*both, jnp.arange(self.modes[-1])]

    def _coordinates(self, inputs: Array) -> Array:
        """Coordinates of the points of the grid, in units of its length, as further channels."""
        grid, shift = inputs.shape[1:-1], 0.5 if self.cell_centred else 0.0
        along = ((jnp.arange(length, dtype=inputs.dtype) + shift) / length for length in grid)
        axes = jnp.meshgrid(*along, indexing="ij")
        return jnp.broadcast_to(jnp.stack(axes, axis=-1), (*inputs.shape[:-1], len(grid)))

    def _check_grid(self, grid: tuple[int, ...]) -> None:
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


def _waves(numbers: Array, length: int) -> Complex[Array, "length numbers"]:
    """Waves of the given numbers on a grid."""
    # Whole turns are taken off before anything is rounded.
    turns = (jnp.outer(jnp.arange(length), numbers) % length) / length
    return jnp.exp(2j * jnp.pi * turns)


def _along(axis: int, matrix: Array, values: Array, *, real: bool = False) -> Array:
    """Multiply one axis of real or complex values by a complex matrix; in real products, which are faster."""
    multiply = lambda part, other: jnp.moveaxis(jnp.tensordot(part, other, axes=(1, axis)), 0, axis)
    precision = values.real.dtype
    cos, sin = jnp.real(matrix).astype(precision), jnp.imag(matrix).astype(precision)
    if not jnp.iscomplexobj(values):
        return jax.lax.complex(multiply(cos, values), multiply(sin, values))
    re, im = jnp.real(values), jnp.imag(values)
    real_part = multiply(cos, re) - multiply(sin, im)
    return real_part if real else jax.lax.complex(real_part, multiply(cos, im) + multiply(sin, re))
