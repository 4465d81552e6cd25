r"""Random fields and their evolution by the viscous Burgers equation on a periodic interval of length one.

.. math::
    u_t + u u_x = \nu u_{xx}, \qquad
    u(x, 0) = \sum_k a_k \cos 2\pi k x + b_k \sin 2\pi k x, \quad
    a_k, b_k \sim N\big(0,\, 2 s^2 ((2\pi k)^2 + \tau^2)^{-\gamma}\big)

Pseudo-spectral in space, dealiased by the 2/3 rule; in time the fourth-order exponential scheme (ETDRK4) of Cox and
Matthews (2002), with coefficients by contour integrals (Kassam and Trefethen 2005).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from vihmc.errors import InputError

_CONTOUR_POINTS = 32
_BATCH = 200


class FieldSpectrum(NamedTuple):
    """Parameters of the initial field: scale s, inverse length τ, smoothness γ."""

    scale: float
    inverse_length: float
    smoothness: float


SPECTRA = {
    "pi_deeponet": FieldSpectrum(scale=625.0, inverse_length=5.0, smoothness=4.0),
    "fno": FieldSpectrum(scale=25.0, inverse_length=5.0, smoothness=2.0),
}
"""Named after the public codes that generate them; standard deviations of the field are 0.214 and 0.594."""


def random_fields(
    rng: np.random.Generator, num_fields: int, spectrum: FieldSpectrum, *, num_modes: int
) -> Float[np.ndarray, "fields points"]:
    """Draw periodic fields of mean zero on `num_modes` equidistant points."""
    wavenumber = np.arange(1, num_modes // 2)
    decay = ((2 * np.pi * wavenumber) ** 2 + spectrum.inverse_length**2) ** (-spectrum.smoothness / 2)
    cosines, sines = np.sqrt(2) * spectrum.scale * decay * rng.standard_normal((2, num_fields, wavenumber.size))
    coefficients = np.zeros((num_fields, num_modes // 2 + 1), dtype=complex)
    coefficients[:, 1:-1] = 0.5 * num_modes * (cosines - 1j * sines)
    return np.fft.irfft(coefficients, num_modes, axis=1)


def solve(
    initial: Float[np.ndarray, "fields points"],
    *,
    viscosity: float,
    end_time: float = 1.0,
    num_outputs: int = 100,
    time_step: float = 2.5e-3,
) -> Float[np.ndarray, "fields times points"]:
    """Integrate fields to `end_time`; return them at time zero and at `num_outputs` equidistant later times."""
    parts = [
        _solve_batch(initial[start : start + _BATCH], viscosity, end_time, num_outputs, time_step)
        for start in range(0, len(initial), _BATCH)
    ]
    fields = np.concatenate(parts)
    if not np.all(np.isfinite(fields)):
        raise InputError(f"`time_step` must be small enough for a finite solution, got {time_step}.")
    return fields


def _solve_batch(
    initial: np.ndarray, viscosity: float, end_time: float, num_outputs: int, time_step: float
) -> np.ndarray:
    num_points = initial.shape[1]
    steps_per_output = max(1, int(np.ceil(end_time / num_outputs / time_step - 1e-9)))
    step = end_time / (num_outputs * steps_per_output)
    wavenumber = 2 * np.pi * np.arange(num_points // 2 + 1)
    decay = -viscosity * wavenumber**2 * step
    whole, half = np.exp(decay), np.exp(decay / 2)
    mid, first, middle, last = _coefficients(decay, step)
    # The derivative of −u²/2, without the modes whose products would be aliased.
    derivative = -0.5j * wavenumber * (np.arange(num_points // 2 + 1) < num_points // 3)

    def advection(modes: np.ndarray) -> np.ndarray:
        return derivative * np.fft.rfft(np.fft.irfft(modes, num_points, axis=1) ** 2, axis=1)

    modes = np.fft.rfft(initial, axis=1)
    outputs = [initial]
    for _ in range(num_outputs):
        for _ in range(steps_per_output):
            n_start = advection(modes)
            stage_a = half * modes + mid * n_start
            n_a = advection(stage_a)
            n_b = advection(half * modes + mid * n_a)
            n_c = advection(half * stage_a + mid * (2 * n_b - n_start))
            modes = whole * modes + first * n_start + 2 * middle * (n_a + n_b) + last * n_c
        outputs.append(np.fft.irfft(modes, num_points, axis=1))
    return np.stack(outputs, axis=1)


def _coefficients(decay: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Weights of the four stages: means over a circle, since the plain formulas cancel near zero."""
    angles = np.pi * (np.arange(_CONTOUR_POINTS) + 0.5) / _CONTOUR_POINTS
    z = decay[:, None] + np.exp(1j * angles)
    formulas = (
        (np.exp(z / 2) - 1) / z,
        (-4 - z + np.exp(z) * (4 - 3 * z + z**2)) / z**3,
        (2 + z + np.exp(z) * (z - 2)) / z**3,
        (-4 - 3 * z - z**2 + np.exp(z) * (4 - z)) / z**3,
    )
    mid, first, middle, last = (step * formula.mean(axis=1).real for formula in formulas)
    return mid, first, middle, last


def interpolate(
    fields: Float[np.ndarray, "*batch points"], positions: Float[np.ndarray, " positions"]
) -> Float[np.ndarray, "*batch positions"]:
    """Evaluate periodic fields anywhere by their trigonometric polynomial, exact for resolved modes."""
    num_points = fields.shape[-1]
    modes = np.fft.rfft(fields, axis=-1) / num_points
    weights = np.full(num_points // 2 + 1, 2.0)
    weights[0] = weights[-1] = 1.0
    angles = 2 * np.pi * np.outer(np.arange(num_points // 2 + 1), positions)
    weighted = modes * weights
    return weighted.real @ np.cos(angles) - weighted.imag @ np.sin(angles)
