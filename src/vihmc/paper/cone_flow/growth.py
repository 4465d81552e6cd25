r"""Growth of waves along a cone, as a table over distance, frequency and azimuthal wavenumber.

.. math:: \sigma(s; f, k) = -\alpha_i(\omega, \beta, R) / l, \qquad
    \omega = 2\pi f l / U_e, \quad \beta = k l / (s \sin\theta_c), \quad R = U_e l / \nu_e

One mode is followed from neighbour to neighbour: at 225 kHz, where it is the second mode, from station to station and
from wavenumber to wavenumber; at each station from there to lower and to higher frequencies. Long waves reach far out
and need a tall grid; the damped short ones have a thin critical layer at the edge and need a dense one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from threadpoolctl import threadpool_limits

from vihmc.errors import InputError
from vihmc.paper.cone_flow.boundary_layer import ConeFlow, solve_cone_flow
from vihmc.paper.cone_flow.stability import BULK, Mode, WaveOperator, collocation, spatial_mode, wave_operator

DISTANCES = np.linspace(0.2, 0.316, 9)
"""From the place where disturbances enter to the last sensor, in metres from the tip along the surface."""
FREQUENCIES_KHZ = 25.0 * np.arange(1, 21)
WAVENUMBERS = np.array([0.0, 20.0, 40.0, 60.0])

_SEED_FREQUENCY_KHZ = 225.0
_SEED_PHASE_SPEED = 0.905
_SEED_GROWTH = 0.002
_NUM_POINTS = 97
_TALL_HEIGHT = 200.0
_DENSE_HEIGHT = 40.0
# What the mode can be; anything else belongs to another branch.
_PHASE_SPEEDS = (0.7, 1.15)
_FASTEST_CHANGE = 0.05
_FARTHEST_FROM_GUESS = 0.02
_NUM_SLOPE_POINTS = 7


@dataclass(frozen=True)
class GrowthTable:
    """Growth rates of amplitudes along the cone.

    Attributes:
        distances: from the tip along the surface, in metres.
        frequencies_khz: equidistant frequencies in kilohertz.
        wavenumbers: numbers of waves around the cone.
        rates: growth rates per metre.
        phase_speeds: over the velocity at the edge.
        replaced: where no mode was found and the value is extrapolated from neighbours in frequency.
    """

    distances: Float[np.ndarray, " distances"]
    frequencies_khz: Float[np.ndarray, " frequencies"]
    wavenumbers: Float[np.ndarray, " wavenumbers"]
    rates: Float[np.ndarray, "distances frequencies wavenumbers"]
    phase_speeds: Float[np.ndarray, "distances frequencies wavenumbers"]
    replaced: Bool[np.ndarray, "distances frequencies wavenumbers"]

    @property
    def num_replaced(self) -> int:
        """Number of extrapolated values."""
        return int(self.replaced.sum())

    def rates_to(self, frequencies_khz: Float[np.ndarray, " more"]) -> Float[np.ndarray, "distances more wavenumbers"]:
        """Return the rates at the frequencies of the table and at more of them beyond its end.

        Beyond it damping grows linearly with frequency; up to 1 MHz that is within about a tenth of converged values.
        """
        known = len(self.frequencies_khz)
        if not np.array_equal(frequencies_khz[:known], self.frequencies_khz):
            raise InputError(
                f"`frequencies_khz` must begin with those of the table, {self.frequencies_khz[0]} to "
                f"{self.frequencies_khz[-1]}, got {frequencies_khz[0]} to {frequencies_khz[:known][-1]}."
            )
        last = slice(-_NUM_SLOPE_POINTS, None)
        tail = self.rates[:, last]
        step = (tail[:, -1] - tail[:, 0]) / (self.frequencies_khz[last][-1] - self.frequencies_khz[last][0])
        beyond = (frequencies_khz[known:] - self.frequencies_khz[-1])[:, None]
        return np.concatenate([self.rates, self.rates[:, -1:] + beyond * step[:, None]], axis=1)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the fields as plain arrays by name."""
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "GrowthTable":
        """Read what `to_arrays` returned."""
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in arrays]
        if missing:
            raise InputError(f"A growth table must hold {', '.join(names)}, got none of {', '.join(missing)}.")
        return cls(**{name: np.asarray(arrays[name]) for name in names})


def growth_table(
    flow: ConeFlow | None = None,
    *,
    distances: Float[np.ndarray, " distances"] = DISTANCES,
    frequencies_khz: Float[np.ndarray, " frequencies"] = FREQUENCIES_KHZ,
    wavenumbers: Float[np.ndarray, " wavenumbers"] = WAVENUMBERS,
    num_points: int = _NUM_POINTS,
    viscosity_ratio: float = BULK,
) -> GrowthTable:
    """Compute the growth rates of the waves on a cone.

    Args:
        flow: the cone; None is the one of `ConeConditions`.
        distances: stations from the tip along the surface, in metres.
        frequencies_khz: equidistant frequencies, 225 kHz among them.
        wavenumbers: numbers of waves around the cone, from small to large.
        num_points: collocation points across the layer.
        viscosity_ratio: second viscosity over viscosity.
    """
    flow = flow or solve_cone_flow()
    seeds = np.flatnonzero(frequencies_khz == _SEED_FREQUENCY_KHZ)
    if not seeds.size:
        raise InputError(f"`frequencies_khz` must hold {_SEED_FREQUENCY_KHZ}, where the mode is found first.")
    indices, seed = np.arange(len(frequencies_khz)), int(seeds[0])
    omegas = np.array(
        [[flow.angular_frequency(s, frequency_khz=f) for f in frequencies_khz.tolist()] for s in distances.tolist()]
    )
    alphas = np.zeros((len(distances), len(frequencies_khz), len(wavenumbers)), dtype=complex)
    replaced = np.zeros(alphas.shape, dtype=bool)
    # Matrices of a few hundred rows are too small to gain from threads.
    with threadpool_limits(limits=1, user_api="blas"):
        for height, path in ((_TALL_HEIGHT, indices[seed::-1]), (_DENSE_HEIGHT, indices[seed:])):
            grid = collocation(num_points, height=height, half_height=flow.layer.displacement_thickness)
            first_station = None
            for k, wavenumber in enumerate(wavenumbers.tolist()):
                neighbour = first_station
                for i, distance in enumerate(distances.tolist()):
                    operator = wave_operator(
                        flow.layer,
                        grid,
                        reynolds=flow.reynolds(distance),
                        spanwise_wavenumber=flow.spanwise_wavenumber(distance, azimuthal_wavenumber=wavenumber),
                        viscosity_ratio=viscosity_ratio,
                    )
                    trace = _follow(operator, omegas[i, path].tolist(), neighbour)
                    alphas[i, path, k], replaced[i, path, k] = trace.alphas, trace.replaced
                    neighbour = trace.seed
                    if i == 0:
                        first_station = neighbour
    return GrowthTable(
        distances=distances,
        frequencies_khz=frequencies_khz,
        wavenumbers=wavenumbers,
        rates=-alphas.imag / flow.length_scale(distances)[:, None, None],
        phase_speeds=omegas[:, :, None] / alphas.real,
        replaced=replaced,
    )


class _Seed(NamedTuple):
    """The mode at the first frequency of a path, for the next station or wavenumber."""

    mode: Mode
    omega: float


class _Trace(NamedTuple):
    alphas: list[complex]
    replaced: list[bool]
    seed: _Seed


def _follow(operator: WaveOperator, omegas: list[float], neighbour: _Seed | None) -> _Trace:
    """Follow the mode along equidistant frequencies, from a neighbour of the first of them."""
    mode = _first_mode(operator, omegas[0], neighbour)
    seed = _Seed(mode, omegas[0])
    alphas, replaced = [mode.eigenvalue], [False]
    for index in range(1, len(omegas)):
        guess = _extrapolate(alphas, omegas)
        found = spatial_mode(operator, omega=omegas[index], guess=guess, start=mode)
        is_same = _is_same_branch(found, omegas[index], guess)
        mode = found if is_same else mode
        alphas.append(found.eigenvalue if is_same else guess)
        replaced.append(not is_same)
    return _Trace(alphas, replaced, seed)


def _first_mode(operator: WaveOperator, omega: float, neighbour: _Seed | None) -> Mode:
    start, guess = None, omega / _SEED_PHASE_SPEED - _SEED_GROWTH * 1j
    if neighbour is not None:
        guess = neighbour.mode.eigenvalue * omega / neighbour.omega
        # Waves that vary around the cone have one velocity more: vectors of the other kind do not fit.
        start = neighbour.mode if len(neighbour.mode.right) == len(operator.mass) else None
    mode = spatial_mode(operator, omega=omega, guess=guess, start=start)
    if not _is_same_branch(mode, omega, guess):
        raise InputError(
            f"`flow` must have a second mode at {_SEED_FREQUENCY_KHZ:g} kHz, got a wavenumber of {mode.eigenvalue:.4f}"
            f" at frequency {omega:.4f}."
        )
    return mode


def _extrapolate(alphas: list[complex], omegas: list[float]) -> complex:
    """Next wavenumber: by constant phase speed from one known frequency, a line from two, a parabola from three."""
    if len(alphas) == 1:
        return alphas[0] * omegas[1] / omegas[0]
    if len(alphas) == 2:
        return 2 * alphas[1] - alphas[0]
    return 3 * alphas[-1] - 3 * alphas[-2] + alphas[-3]


def _is_same_branch(mode: Mode, omega: float, guess: complex) -> bool:
    slow, fast = _PHASE_SPEEDS
    return (
        mode.converged
        and slow < omega / mode.eigenvalue.real < fast
        and abs(mode.eigenvalue.imag) < _FASTEST_CHANGE
        and abs(mode.eigenvalue - guess) < _FARTHEST_FROM_GUESS
    )
