r"""Laminar compressible boundary layer without pressure gradient, on a flat plate and on a sharp cone.

.. math::
    (C f'')' + f f'' = 0, \qquad
    (C g' / \mathrm{Pr})' + f g' + (\gamma - 1) M^2 C f''^2 = 0, \qquad
    C = \mu / T, \quad U = f', \quad T = g

Levy and Lees' similarity variable η stretches the distance from the wall, :math:`y = \sqrt 2 \int T\, d\eta` in units
of :math:`l = \sqrt{\nu_e x / U_e}`; velocity, temperature and viscosity are in units of those at the edge, the last
by Sutherland's law. Mangler's transformation makes the layer of a cone that of a plate at a third of the distance from
its tip, :math:`l = \sqrt{\nu_e s / 3 U_e}`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_bvp

from vihmc.errors import InputError
from vihmc.paper.cone_flow.inviscid import HEAT_CAPACITY_RATIO, ConeEdge, cone_edge, stagnation_ratio

_GAS_CONSTANT = 287.05  # J/(kg K), air
_AIR_SUTHERLAND_TEMPERATURE = 110.4  # K
_AIR_VISCOSITY_FACTOR = 1.458e-6  # kg/(m s √K)
_MANGLER_FACTOR = 3.0

# Where f'' has fallen to about 1e-10 of its value at the wall.
_ETA_MAX = 8.0
_NUM_ETA = 4001
_NUM_COOLING_STEPS = 6
_TOLERANCE = 1e-9
_ROUGH_TOLERANCE = 1e-5
_MAX_NODES = 60_000


@dataclass(frozen=True)
class Sutherland:
    """Viscosity over that at the edge, as a function of temperature over that at the edge.

    Attributes:
        constant: Sutherland's temperature over that at the edge.
    """

    constant: float

    def value(self, temperature: np.ndarray) -> np.ndarray:
        """Return μ(T)."""
        return temperature**1.5 * (1 + self.constant) / (temperature + self.constant)

    def slope(self, temperature: np.ndarray) -> np.ndarray:
        """Return dμ/dT."""
        return self.value(temperature) * (1.5 / temperature - 1 / (temperature + self.constant))

    def curvature(self, temperature: np.ndarray) -> np.ndarray:
        """Return d²μ/dT²."""
        rate = 1.5 / temperature - 1 / (temperature + self.constant)
        rate_slope = -1.5 / temperature**2 + 1 / (temperature + self.constant) ** 2
        return self.value(temperature) * (rate**2 + rate_slope)


class Profile(NamedTuple):
    """Velocity and temperature with their first and second derivatives in the distance from the wall."""

    velocity: np.ndarray
    velocity_y: np.ndarray
    velocity_yy: np.ndarray
    temperature: np.ndarray
    temperature_y: np.ndarray
    temperature_yy: np.ndarray


class _Similarity(NamedTuple):
    """Unknowns of the boundary-value problem: stream function, velocity, shear C f'', T, heat C g'/Pr, distance y."""

    stream: np.ndarray
    velocity: np.ndarray
    shear: np.ndarray
    temperature: np.ndarray
    heat: np.ndarray
    distance: np.ndarray


@dataclass(frozen=True)
class BoundaryLayer:
    """A solved layer.

    Attributes:
        mach: Mach number at the edge.
        prandtl: Prandtl number.
        viscosity: Sutherland's law.
        solution: the unknowns as a function of η.
    """

    mach: float
    prandtl: float
    viscosity: Sutherland
    solution: Callable[[np.ndarray], np.ndarray]

    def similar(self, eta: np.ndarray) -> _Similarity:
        """Return the unknowns at values of η."""
        return _Similarity(*self.solution(eta))

    @cached_property
    def _nodes(self) -> tuple[np.ndarray, _Similarity]:
        eta = np.linspace(0, _ETA_MAX, _NUM_ETA)
        return eta, self.similar(eta)

    @property
    def wall_temperature_ratio(self) -> float:
        """Temperature of the wall over that at the edge."""
        _, nodes = self._nodes
        return float(nodes.temperature[0])

    @property
    def wall_curvature(self) -> float:
        """The number f''(0), 0.469600 in Blasius' layer."""
        _, nodes = self._nodes
        return float((nodes.shear * nodes.temperature / self.viscosity.value(nodes.temperature))[0])

    @property
    def height(self) -> float:
        """Distance from the wall at which the solution ends, in units of l."""
        _, nodes = self._nodes
        return float(nodes.distance[-1])

    @property
    def thickness(self) -> float:
        """Distance from the wall at which the velocity is 99 % of that at the edge, in units of l."""
        _, nodes = self._nodes
        return float(np.interp(0.99, nodes.velocity, nodes.distance))

    @property
    def displacement_thickness(self) -> float:
        """Displacement thickness in units of l, the integral of 1 − ρu."""
        eta, nodes = self._nodes
        return float(np.sqrt(2) * np.trapezoid(nodes.temperature - nodes.velocity, eta))

    def profile(self, y: Float[np.ndarray, " points"]) -> Profile:
        """Evaluate the layer at distances from the wall in units of l; beyond its end it is the outer flow."""
        inside = y <= self.height
        inner = self._profile_at(self._eta(np.minimum(y, self.height)))
        outer = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
        return Profile(*(np.where(inside, values, limit) for values, limit in zip(inner, outer, strict=True)))

    def _eta(self, y: np.ndarray) -> np.ndarray:
        """Invert y(η) by Newton's method; its slope is √2 T."""
        eta_nodes, nodes = self._nodes
        eta = np.interp(y, nodes.distance, eta_nodes)
        for _ in range(3):
            here = self.similar(eta)
            eta = np.clip(eta - (here.distance - y) / (np.sqrt(2) * here.temperature), 0, _ETA_MAX)
        return eta

    def _profile_at(self, eta: np.ndarray) -> Profile:
        """Second derivatives come from the equations, not from differences."""
        stream, velocity, shear, temperature, heat, _ = self.similar(eta)
        mu = self.viscosity.value(temperature)
        ratio = mu / temperature
        curvature, warming = shear / ratio, self.prandtl * heat / ratio
        ratio_eta = (self.viscosity.slope(temperature) - ratio) / temperature * warming
        curvature_eta = (-stream * curvature - ratio_eta * curvature) / ratio
        heat_eta = -stream * warming - _dissipation(self.mach) * shear * curvature
        warming_eta = (self.prandtl * heat_eta - ratio_eta * warming) / ratio
        stretch = np.sqrt(2) * temperature
        return Profile(
            velocity,
            curvature / stretch,
            (curvature_eta - curvature * warming / temperature) / stretch**2,
            temperature,
            warming / stretch,
            (warming_eta - warming**2 / temperature) / stretch**2,
        )


def solve_boundary_layer(
    *,
    mach: float,
    edge_temperature: float,
    prandtl: float = 0.72,
    wall_temperature_ratio: float | None = None,
    sutherland_temperature: float = _AIR_SUTHERLAND_TEMPERATURE,
) -> BoundaryLayer:
    """Solve the similarity equations.

    Args:
        mach: Mach number at the edge.
        edge_temperature: in kelvin.
        prandtl: Prandtl number.
        wall_temperature_ratio: temperature of the wall over that at the edge; None is an adiabatic wall.
        sutherland_temperature: constant of the viscosity law in kelvin.
    """
    if wall_temperature_ratio is not None and wall_temperature_ratio <= 0:
        raise InputError(
            f"`wall_temperature_ratio` must be positive, got {wall_temperature_ratio}. None is an adiabatic wall."
        )
    viscosity = Sutherland(sutherland_temperature / edge_temperature)

    def slope(_eta: np.ndarray, unknowns: np.ndarray) -> np.ndarray:
        stream, velocity, shear, temperature, heat, _ = unknowns
        ratio = viscosity.value(temperature) / temperature
        curvature, warming = shear / ratio, prandtl * heat / ratio
        heating = -stream * warming - _dissipation(mach) * shear * curvature
        return np.array([velocity, curvature, -stream * curvature, warming, heating, np.sqrt(2) * temperature])

    recovery = 1 + 0.5 * _dissipation(mach) * np.sqrt(prandtl)
    mesh, unknowns = _first_guess(recovery)
    if wall_temperature_ratio is not None:
        # The adiabatic wall is easy from anywhere; a cold one is reached from it in steps.
        for wall in (None, *np.linspace(recovery, wall_temperature_ratio, _NUM_COOLING_STEPS)):
            rough = solve_bvp(slope, _boundary(wall), mesh, unknowns, tol=_ROUGH_TOLERANCE, max_nodes=_MAX_NODES)
            mesh, unknowns = rough.x, rough.y
    conditions = _boundary(wall_temperature_ratio)
    result = solve_bvp(slope, conditions, mesh, unknowns, tol=_TOLERANCE, max_nodes=_MAX_NODES)
    if not result.success:
        raise InputError(
            f"`mach` and `wall_temperature_ratio` must have a boundary layer, got {mach} and {wall_temperature_ratio}:"
            f" {result.message}"
        )
    return BoundaryLayer(mach, prandtl, viscosity, result.sol)


def _dissipation(mach: float) -> float:
    return (HEAT_CAPACITY_RATIO - 1) * mach**2


def _first_guess(recovery: float) -> tuple[np.ndarray, np.ndarray]:
    eta = np.linspace(0, _ETA_MAX, 400)
    velocity = np.tanh(0.5 * eta)
    temperature = recovery + (1 - recovery) * velocity**2
    distance = np.sqrt(2) * np.concatenate([[0], np.cumsum(temperature[1:] * np.diff(eta))])
    unknowns = [eta - 1 + np.exp(-eta), velocity, 0.47 * (1 - velocity**2), temperature, np.zeros_like(eta), distance]
    return eta, np.array(unknowns)


def _boundary(wall_temperature_ratio: float | None) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """No slip and no flow through the wall, a temperature or no heat there; the outer flow at the other end."""

    def residual(wall: np.ndarray, edge: np.ndarray) -> np.ndarray:
        at_wall, at_edge = _Similarity(*wall), _Similarity(*edge)
        thermal = at_wall.heat if wall_temperature_ratio is None else at_wall.temperature - wall_temperature_ratio
        return np.array(
            [at_wall.stream, at_wall.velocity, thermal, at_wall.distance, at_edge.velocity - 1, at_edge.temperature - 1]
        )

    return residual


@dataclass(frozen=True)
class ConeConditions:
    """A wind tunnel and a model in it.

    Attributes:
        mach: Mach number of the free stream.
        half_angle_degrees: half angle of the cone.
        stagnation_temperature: of the free stream, in kelvin.
        wall_temperature: in kelvin.
        unit_reynolds: Reynolds number of the free stream per metre.
        prandtl: Prandtl number.
    """

    mach: float = 6.0
    half_angle_degrees: float = 7.0
    stagnation_temperature: float = 500.0
    wall_temperature: float = 300.0
    unit_reynolds: float = 6e6
    prandtl: float = 0.72


@dataclass(frozen=True)
class ConeFlow:
    """Boundary layer of a cone with its scales.

    Attributes:
        edge: state outside the layer, over the free stream.
        layer: the self-similar layer.
        velocity: at the edge, in m/s.
        kinematic_viscosity: at the edge, in m²/s.
        half_angle_degrees: half angle of the cone.
        mangler_factor: three on a cone; one would be a flat plate.
    """

    edge: ConeEdge
    layer: BoundaryLayer
    velocity: float
    kinematic_viscosity: float
    half_angle_degrees: float
    mangler_factor: float = _MANGLER_FACTOR

    @overload
    def length_scale(self, distance: float) -> float: ...
    @overload
    def length_scale(self, distance: np.ndarray) -> np.ndarray: ...
    def length_scale(self, distance: float | np.ndarray) -> float | np.ndarray:
        """Return l in metres at a distance from the tip along the surface in metres."""
        return np.sqrt(self.kinematic_viscosity * distance / (self.mangler_factor * self.velocity))

    def reynolds(self, distance: float) -> float:
        """Return the Reynolds number U l / ν."""
        return self.velocity * self.length_scale(distance) / self.kinematic_viscosity

    def angular_frequency(self, distance: float, *, frequency_khz: float) -> float:
        """Return ω in units of U / l."""
        return 2e3 * np.pi * frequency_khz * self.length_scale(distance) / self.velocity

    def spanwise_wavenumber(self, distance: float, *, azimuthal_wavenumber: float) -> float:
        """Return β in units of 1 / l, from the number of waves around the cone."""
        radius = distance * np.sin(np.radians(self.half_angle_degrees))
        return azimuthal_wavenumber * self.length_scale(distance) / radius


def solve_cone_flow(conditions: ConeConditions | None = None) -> ConeFlow:
    """Solve for the flow past a cone; the default conditions put the most amplified waves near 225 kHz."""
    conditions = conditions or ConeConditions()
    edge = cone_edge(conditions.mach, conditions.half_angle_degrees)
    free_temperature = conditions.stagnation_temperature / stagnation_ratio(conditions.mach)
    edge_temperature = free_temperature * edge.temperature_ratio
    free_density = conditions.unit_reynolds * _air_viscosity(free_temperature)
    free_density /= conditions.mach * _sound_speed(free_temperature)
    edge_density = free_density * edge.pressure_ratio / edge.temperature_ratio
    return ConeFlow(
        edge=edge,
        layer=solve_boundary_layer(
            mach=edge.mach,
            edge_temperature=edge_temperature,
            prandtl=conditions.prandtl,
            wall_temperature_ratio=conditions.wall_temperature / edge_temperature,
        ),
        velocity=edge.mach * _sound_speed(edge_temperature),
        kinematic_viscosity=_air_viscosity(edge_temperature) / edge_density,
        half_angle_degrees=conditions.half_angle_degrees,
    )


def _sound_speed(temperature: float) -> float:
    return float(np.sqrt(HEAT_CAPACITY_RATIO * _GAS_CONSTANT * temperature))


def _air_viscosity(temperature: float) -> float:
    return _AIR_VISCOSITY_FACTOR * temperature**1.5 / (temperature + _AIR_SUTHERLAND_TEMPERATURE)
