r"""Waves of small amplitude in a boundary layer that is taken as locally parallel.

.. math::
    q(y)\, e^{i(\alpha x + \beta z - \omega t)}: \qquad
    L(\alpha, \omega)\, q = (A_0 + \alpha A_1 + \alpha^2 A_2 - \omega B)\, q = 0, \qquad
    q = (u, v, p, T', w)

The linearised Navier–Stokes equations with :math:`S = i(\alpha U - \omega)`,
:math:`d = i\alpha u + Dv + i\beta w`, :math:`\rho' = \gamma M^2 p / T - T'/T^2` and
:math:`\Delta = D^2 - \alpha^2 - \beta^2` are

.. math::
    & S\rho' - (T_y/T^2) v + d/T = 0 \\
    & (Su + U_y v)/T + i\alpha p = [\mu\Delta u + (\mu + \lambda) i\alpha d + \mu_y (Du + i\alpha v)
      + D(\mu_T U_y T')]/R \\
    & Sv/T + Dp = [\mu\Delta v + (\mu + \lambda) Dd + 2\mu_y Dv + \lambda_y d + i\alpha\mu_T U_y T']/R \\
    & Sw/T + i\beta p = [\mu\Delta w + (\mu + \lambda) i\beta d + \mu_y (Dw + i\beta v)]/R \\
    & (ST' + T_y v)/T - (\gamma - 1) M^2 S p = [\mu\Delta T' + 2\mu_y DT' + (\mu_T T_y)_y T']/(R\,\mathrm{Pr})
      + (\gamma - 1) M^2 [2\mu U_y (Du + i\alpha v) + \mu_T U_y^2 T']/R

with u, v, w and T' zero at the wall and far away. Chebyshev collocation under Malik's map (J. Comput. Phys. 86, 1990).
Waves that grow in time have :math:`\omega_i > 0`, waves that grow in space :math:`\alpha_i < 0`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Complex, Float
from scipy.linalg import lu_factor, lu_solve

from vihmc.paper.cone_flow.boundary_layer import BoundaryLayer
from vihmc.paper.cone_flow.inviscid import HEAT_CAPACITY_RATIO

STOKES = -2 / 3
"""λ/μ without bulk viscosity."""
BULK = 2 / 15
"""λ/μ with a bulk viscosity of 0.8 μ, as in Malik's tables."""

_MAX_ITERATIONS = 20
# The iteration is cubic: after a correction of this size what remains is far below it.
_LAST_CORRECTION = 1e-6


@dataclass(frozen=True)
class Collocation:
    """Points from the wall outwards and the matrix of the derivative on them."""

    points: Float[np.ndarray, " points"]
    derivative: Float[np.ndarray, "points points"]


def collocation(num_points: int, *, height: float, half_height: float) -> Collocation:
    """Map Gauss–Lobatto points to [0, height] such that half of them are below `half_height`."""
    order = num_points - 1
    cosines = np.cos(np.pi * np.arange(num_points) / order)
    ends = np.where(np.isin(np.arange(num_points), (0, order)), 2.0, 1.0) * (-1.0) ** np.arange(num_points)
    differences = cosines[:, None] - cosines[None, :] + np.eye(num_points)
    derivative = np.outer(ends, 1 / ends) / differences
    # The derivative of a constant is exactly zero if each row sums to zero.
    derivative -= np.diag(derivative.sum(axis=1))
    scale = height * half_height / (height - 2 * half_height)
    offset = 1 + 2 * scale / height
    points = scale * (1 + cosines) / (offset - cosines)
    slope = (offset - cosines) ** 2 / (scale * (1 + offset))
    return Collocation(points[::-1].copy(), (slope[:, None] * derivative)[::-1, ::-1].copy())


@dataclass(frozen=True)
class WaveOperator:
    """The matrices of L(α, ω) = A₀ + α A₁ + α² A₂ − ω B."""

    constant: Complex[np.ndarray, "n n"]
    linear: Complex[np.ndarray, "n n"]
    quadratic: Complex[np.ndarray, "n n"]
    mass: Complex[np.ndarray, "n n"]


@dataclass(frozen=True)
class Mode:
    """An eigenvalue with its vectors, to start the search for its neighbours.

    Attributes:
        eigenvalue: ω of a temporal, α of a spatial problem.
        right: the mode itself.
        left: its adjoint.
        converged: whether the iteration came to rest.
    """

    eigenvalue: complex
    right: Complex[np.ndarray, " n"]
    left: Complex[np.ndarray, " n"]
    converged: bool


class _Assembly:
    """Adds the terms of the equations to the matrices, block by block."""

    def __init__(self, grid: Collocation, velocity: np.ndarray, *, unknowns: str) -> None:
        self.num_points = len(grid.points)
        self.derivatives = (np.eye(self.num_points), grid.derivative, grid.derivative @ grid.derivative)
        self.velocity = velocity
        self.unknowns = unknowns
        size = self.num_points * len(unknowns)
        self.powers = np.zeros((3, size, size), dtype=complex)
        self.mass = np.zeros((size, size), dtype=complex)

    def _block(self, equation: str, unknown: str) -> tuple[slice, slice] | None:
        if equation not in self.unknowns or unknown not in self.unknowns:
            return None
        row, column = (self.unknowns.index(name) * self.num_points for name in (equation, unknown))
        return slice(row, row + self.num_points), slice(column, column + self.num_points)

    def add(
        self,
        equation: str,
        unknown: str,
        coefficient: float | complex | np.ndarray,
        *,
        derivative: int = 0,
        alpha: int = 0,
    ) -> None:
        """Add coefficient · α^alpha · D^derivative."""
        block = self._block(equation, unknown)
        if block is not None:
            column = np.broadcast_to(coefficient, self.num_points)[:, None]
            self.powers[alpha][block] += column * self.derivatives[derivative]

    def add_convection(self, equation: str, unknown: str, coefficient: float | np.ndarray) -> None:
        """Add coefficient · i(αU − ω)."""
        self.add(equation, unknown, 1j * coefficient * self.velocity, alpha=1)
        block = self._block(equation, unknown)
        if block is not None:
            self.mass[block] += 1j * np.diag(np.broadcast_to(coefficient, self.num_points))

    def finish(self) -> WaveOperator:
        """Impose the boundary conditions; pressure has none, its equation stays."""
        starts = [index * self.num_points for index, name in enumerate(self.unknowns) if name != "p"]
        rows = [row for start in starts for row in (start, start + self.num_points - 1)]
        self.powers[:, rows] = 0
        self.mass[rows] = 0
        self.powers[0, rows, rows] = 1
        return WaveOperator(*self.powers, mass=self.mass)


def wave_operator(
    layer: BoundaryLayer,
    grid: Collocation,
    *,
    reynolds: float,
    spanwise_wavenumber: float = 0.0,
    viscosity_ratio: float = STOKES,
) -> WaveOperator:
    """Discretise the equations; lengths are in units of l.

    Args:
        layer: the flow.
        grid: points across it.
        reynolds: U l / ν at the edge.
        spanwise_wavenumber: β.
        viscosity_ratio: second viscosity over viscosity, λ/μ.
    """
    base, beta = layer.profile(grid.points), spanwise_wavenumber
    velocity, velocity_y, velocity_yy, temperature, temperature_y, temperature_yy = base
    slope, curvature = layer.viscosity.slope(temperature), layer.viscosity.curvature(temperature)
    # All viscous coefficients carry 1/R, and stand on the left side.
    mu = layer.viscosity.value(temperature) / reynolds
    mu_y = slope * temperature_y / reynolds
    dilation, lambda_y = (1 + viscosity_ratio) * mu, viscosity_ratio * mu_y
    mach_square = layer.mach**2
    density = 1 / temperature
    equations = _Assembly(grid, velocity, unknowns="uvpTw" if beta else "uvpT")
    add, convect = equations.add, equations.add_convection

    def add_laplacian(name: str, coefficient: np.ndarray) -> None:
        add(name, name, -coefficient, derivative=2)
        add(name, name, coefficient * beta**2)
        add(name, name, coefficient, alpha=2)

    # Continuity, in the rows of the pressure.
    convect("p", "p", HEAT_CAPACITY_RATIO * mach_square * density)
    convect("p", "T", -(density**2))
    add("p", "v", -temperature_y * density**2)
    add("p", "u", 1j * density, alpha=1)
    add("p", "v", density, derivative=1)
    add("p", "w", 1j * beta * density)
    # Momentum along x.
    convect("u", "u", density)
    add("u", "v", velocity_y * density)
    add("u", "p", 1j, alpha=1)
    add_laplacian("u", mu)
    add("u", "u", dilation, alpha=2)
    add("u", "v", -1j * dilation, derivative=1, alpha=1)
    add("u", "w", beta * dilation, alpha=1)
    add("u", "u", -mu_y, derivative=1)
    add("u", "v", -1j * mu_y, alpha=1)
    add("u", "T", -slope * velocity_y / reynolds, derivative=1)
    add("u", "T", -(curvature * temperature_y * velocity_y + slope * velocity_yy) / reynolds)
    # Momentum along y.
    convect("v", "v", density)
    add("v", "p", 1.0, derivative=1)
    add_laplacian("v", mu)
    add("v", "u", -1j * dilation, derivative=1, alpha=1)
    add("v", "v", -dilation, derivative=2)
    add("v", "w", -1j * beta * dilation, derivative=1)
    add("v", "u", -1j * lambda_y, alpha=1)
    add("v", "v", -2 * mu_y - lambda_y, derivative=1)
    add("v", "w", -1j * beta * lambda_y)
    add("v", "T", -1j * slope * velocity_y / reynolds, alpha=1)
    # Momentum along z.
    convect("w", "w", density)
    add("w", "p", 1j * beta)
    add_laplacian("w", mu)
    add("w", "u", beta * dilation, alpha=1)
    add("w", "v", -1j * beta * dilation, derivative=1)
    add("w", "w", beta**2 * dilation)
    add("w", "w", -mu_y, derivative=1)
    add("w", "v", -1j * beta * mu_y)
    # Energy.
    heating = (HEAT_CAPACITY_RATIO - 1) * mach_square
    convect("T", "T", density)
    add("T", "v", temperature_y * density)
    convect("T", "p", -heating)
    add_laplacian("T", mu / layer.prandtl)
    add("T", "T", -2 * mu_y / layer.prandtl, derivative=1)
    add("T", "T", -(curvature * temperature_y**2 + slope * temperature_yy) / (reynolds * layer.prandtl))
    add("T", "u", -2 * heating * mu * velocity_y, derivative=1)
    add("T", "v", -2j * heating * mu * velocity_y, alpha=1)
    add("T", "T", -heating * slope * velocity_y**2 / reynolds)
    return equations.finish()


def temporal_mode(
    operator: WaveOperator, *, alpha: float | complex, guess: float | complex, start: Mode | None = None
) -> Mode:
    """Find ω near a guess for a given streamwise wavenumber."""
    fixed = operator.constant + alpha * operator.linear + alpha**2 * operator.quadratic
    return _nearest_mode(lambda omega: fixed - omega * operator.mass, lambda _: -operator.mass, guess, start)


def spatial_mode(operator: WaveOperator, *, omega: float, guess: float | complex, start: Mode | None = None) -> Mode:
    """Find α near a guess for a given real frequency."""
    fixed = operator.constant - omega * operator.mass

    def matrix(alpha: complex) -> np.ndarray:
        return fixed + alpha * (operator.linear + alpha * operator.quadratic)

    def slope(alpha: complex) -> np.ndarray:
        return operator.linear + 2 * alpha * operator.quadratic

    return _nearest_mode(matrix, slope, guess, start)


def _nearest_mode(
    matrix: Callable[[complex], np.ndarray],
    slope: Callable[[complex], np.ndarray],
    guess: float | complex,
    start: Mode | None,
) -> Mode:
    r"""Two-sided inverse iteration on :math:`L(\lambda) x = 0, y^* L(\lambda) = 0`.

    Without vectors to start from, three steps at the fixed guess turn any vector towards the nearest mode; moving the
    guess before that would lead anywhere.
    """
    value = complex(guess)
    if start is None:
        right = left = np.ones(len(matrix(value)), dtype=complex)
    else:
        right, left = start.right, start.left
    warmup = 3 if start is None else 0
    correction = np.inf
    for _ in range(_MAX_ITERATIONS):
        factors = lu_factor(matrix(value), check_finite=False)
        derivative = slope(value)
        for _ in range(warmup + 1):
            next_right = np.asarray(lu_solve(factors, derivative @ right, check_finite=False))
            next_left = np.asarray(lu_solve(factors, derivative.conj().T @ left, trans=2, check_finite=False))
            image = derivative @ next_right
            # y* L x and y* L' x of the new vectors: Newton's correction of the Rayleigh quotient.
            correction = np.vdot(left, image) / np.vdot(next_left, image)
            right, left = next_right / np.linalg.norm(next_right), next_left / np.linalg.norm(next_left)
        warmup = 0
        value -= correction
        if not np.isfinite(value) or abs(correction) < _LAST_CORRECTION:
            break
    return Mode(complex(value), right, left, converged=bool(abs(correction) < _LAST_CORRECTION))
