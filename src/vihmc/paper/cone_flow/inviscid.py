r"""Supersonic flow past a sharp cone without viscosity: the state at the edge of its boundary layer.

.. math::
    v_r' = v_\theta, \qquad
    v_\theta' = \frac{v_r v_\theta^2 - a (2 v_r + v_\theta \cot\theta)}{a - v_\theta^2}, \qquad
    a = \tfrac{\gamma - 1}{2} (1 - v_r^2 - v_\theta^2)

Between shock and surface the flow depends on the polar angle θ only (Taylor and Maccoll 1933; velocities in units of
the greatest possible one). The oblique shock gives the start; the angle of the shock is the one for which
:math:`v_\theta` vanishes on the cone.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import root_scalar

from vihmc.errors import InputError

HEAT_CAPACITY_RATIO = 1.4
"""Of air."""

_STEEPEST_SHOCK_DEGREES = 80.0
_NUM_TRIED_SHOCKS = 30


@dataclass(frozen=True)
class ConeEdge:
    """State on the surface of the cone; ratios are to the free stream."""

    shock_angle_degrees: float
    mach: float
    pressure_ratio: float
    temperature_ratio: float


class _Surface(NamedTuple):
    angle: float
    speed: float


def cone_edge(mach: float, half_angle_degrees: float) -> ConeEdge:
    """Solve for the state on a sharp cone at zero incidence.

    Args:
        mach: Mach number of the free stream.
        half_angle_degrees: angle between the axis and the surface.
    """
    if mach <= 1:
        raise InputError(f"`mach` must be greater than one, got {mach}. The shock needs a supersonic stream.")
    cone_angle = np.radians(half_angle_degrees)

    def excess(shock_angle: float) -> float:
        return _surface(mach, shock_angle).angle - cone_angle

    # Of the two shocks that turn the flow enough the weak one is seen: the first as the angle increases.
    tried = np.linspace((1 + 1e-6) * np.arcsin(1 / mach), np.radians(_STEEPEST_SHOCK_DEGREES), _NUM_TRIED_SHOCKS)
    first = next((index for index, angle in enumerate(tried) if excess(angle) > 0), 0)
    if first == 0:
        raise InputError(f"`half_angle_degrees` must allow an attached shock at Mach {mach}, got {half_angle_degrees}.")
    shock_angle = float(root_scalar(excess, bracket=(tried[first - 1], tried[first]), xtol=1e-12).root)
    speed = _surface(mach, shock_angle).speed
    edge_mach = np.sqrt(2 / ((HEAT_CAPACITY_RATIO - 1) * (speed**-2 - 1)))
    temperature_ratio = stagnation_ratio(mach) / stagnation_ratio(edge_mach)
    isentropic = temperature_ratio ** (HEAT_CAPACITY_RATIO / (HEAT_CAPACITY_RATIO - 1))
    return ConeEdge(
        shock_angle_degrees=float(np.degrees(shock_angle)),
        mach=float(edge_mach),
        pressure_ratio=float(_stagnation_pressure_ratio(mach * np.sin(shock_angle)) * isentropic),
        temperature_ratio=float(temperature_ratio),
    )


def stagnation_ratio(mach: float) -> float:
    """Return stagnation over static temperature."""
    return 1 + 0.5 * (HEAT_CAPACITY_RATIO - 1) * mach**2


def _stagnation_pressure_ratio(normal_mach: float) -> float:
    """Loss of stagnation pressure across a shock, from the Mach number normal to it."""
    gamma, square = HEAT_CAPACITY_RATIO, normal_mach**2
    pressure = 1 + 2 * gamma / (gamma + 1) * (square - 1)
    density = (gamma + 1) * square / ((gamma - 1) * square + 2)
    return pressure ** (-1 / (gamma - 1)) * density ** (gamma / (gamma - 1))


def _surface(mach: float, shock_angle: float) -> _Surface:
    """Angle and speed where the flow behind a given shock is purely radial."""
    half = 0.5 * (HEAT_CAPACITY_RATIO - 1)

    def slope(angle: float, velocity: np.ndarray) -> list[float]:
        radial, polar = velocity
        sound = half * (1 - radial**2 - polar**2)
        return [polar, (radial * polar**2 - sound * (2 * radial + polar / np.tan(angle))) / (sound - polar**2)]

    def polar_velocity(_angle: float, velocity: np.ndarray) -> float:
        return velocity[1]

    # An event of solve_ivp carries its options as attributes of the function.
    polar_velocity.terminal = True  # type: ignore[attr-defined]
    polar_velocity.direction = 1.0  # type: ignore[attr-defined]
    behind = _behind_shock(mach, shock_angle)
    path = solve_ivp(slope, (shock_angle, 1e-4), behind, events=polar_velocity, rtol=1e-11, atol=1e-13)
    return _Surface(angle=float(path.t[-1]), speed=float(path.y[0, -1]))


def _behind_shock(mach: float, shock_angle: float) -> np.ndarray:
    """Radial and polar velocity behind an oblique shock."""
    gamma, normal_square = HEAT_CAPACITY_RATIO, (mach * np.sin(shock_angle)) ** 2
    tangent = 2 / np.tan(shock_angle) * (normal_square - 1) / (mach**2 * (gamma + np.cos(2 * shock_angle)) + 2)
    to_shock = shock_angle - np.arctan(tangent)
    normal_behind = np.sqrt((1 + 0.5 * (gamma - 1) * normal_square) / (gamma * normal_square - 0.5 * (gamma - 1)))
    mach_behind = normal_behind / np.sin(to_shock)
    speed = (2 / ((gamma - 1) * mach_behind**2) + 1) ** -0.5
    return speed * np.array([np.cos(to_shock), -np.sin(to_shock)])
