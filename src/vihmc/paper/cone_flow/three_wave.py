r"""Random disturbances that enter the boundary layer of a cone, grow, and exchange energy in triads.

.. math::
    n_j' = 2\sigma_j n_j + \tfrac12 \sum_{p+q=j} V_{pqj} N_{pqj} - \sum_{p+j=q} V_{pjq} N_{pjq}, \qquad
    V_{pqj} = C f_p f_q f_j, \quad N_{pqj} = n_p n_q - n_j (n_p + n_q)

Kinetic equation of waves with random phases, j = (frequency, signed azimuthal wavenumber), marched along the cone. The
exchange conserves the energy :math:`\sum f n`; it makes harmonics and saturates growth. In terms of :math:`x = f n`
the sums are convolutions ⋆ and correlations ⊛, so that three Fourier transforms do for all triads:

.. math::
    x' = 2\sigma x + C f \big\{ f [\tfrac12\, x \star x + x \circledast x]
         + x [x \circledast f - f \circledast x - x \star f] \big\}, \qquad
    (a \circledast b)_p = \sum_q a_{p+q} b_q

The inflow has 52 lognormal amplitudes, thirteen frequencies times four wavenumbers, that depend on eleven latent
numbers. It is a problem of the same kind as a measured one, not a model of a particular tunnel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float
from scipy.fft import irfft2, rfft2

from vihmc.errors import InputError
from vihmc.paper.cone_flow.growth import GrowthTable

SENSORS = np.array([0.241, 0.266, 0.291, 0.316])
"""Distances of the sensors in metres."""
OBSERVED_KHZ = 25.0 * np.arange(2, 21)
"""Frequencies at which spectra are observed."""
NUM_LATENTS = 11

_BIN_KHZ = 25.0
# To twice the highest observed frequency: a range that ends earlier would hold energy back.
_NUM_HARMONICS = 40
_REFERENCE_KHZ = 225.0
_INFLOW_BINS = slice(2, 15)
_NUM_WAVENUMBERS = 4
# Seven signed wavenumbers 0, 1, 2, 3, −3, −2, −1 in the order of Fourier transforms, and three empty places. With 10
# places and twice the harmonics no sum that is read is folded onto another: x vanishes at frequency zero.
_SIGNED = (0, 1, 2, 3, -3, -2, -1)
_PLACES = 10
_PADDED = (_PLACES, 2 * _NUM_HARMONICS)

_FIRST_STEP = 1e-3
_MAX_TRIALS = 20_000


@dataclass(frozen=True)
class ThreeWaveSettings:
    """Sizes of the disturbances and of their exchange.

    The defaults make spectra of the size of measured ones: a hump at 225 kHz, a harmonic at 450 kHz that appears
    downstream, and a standard deviation over inputs of about 0.2.

    Attributes:
        amplitude: factor on the amplitudes of the inflow.
        log_amplitude_std: root-mean-square standard deviation of their logarithms.
        coupling: C.
        noise_amplitude: the sensors' own, added to the spectra as energy.
        relative_tolerance: of the energies, per step.
    """

    amplitude: float = 3.5
    log_amplitude_std: float = 0.45
    coupling: float = 6e-4
    noise_amplitude: float = 0.2
    relative_tolerance: float = 1e-4


def inflow_amplitudes(
    latents: Float[np.ndarray, "inputs latents"], settings: ThreeWaveSettings
) -> Float[np.ndarray, "inputs frequencies wavenumbers"]:
    """Map latents to lognormal amplitudes at 50, 75 … 350 kHz and 0, 20, 40, 60 waves around the cone."""
    if latents.shape[1] != NUM_LATENTS:
        raise InputError(f"`latents` must have {NUM_LATENTS} columns, got {latents.shape[1]}.")
    patterns = _patterns()
    patterns *= settings.log_amplitude_std / np.sqrt(np.mean(np.sum(patterns**2, axis=0)))
    return settings.amplitude * np.exp(_mean_log_amplitudes() + np.tensordot(latents, patterns, axes=1))


def _mean_log_amplitudes() -> Float[np.ndarray, "frequencies wavenumbers"]:
    """Noise that falls with frequency and a hump of waves that have already grown; both fall with the wavenumber."""
    frequency = _BIN_KHZ * np.arange(_INFLOW_BINS.start, _INFLOW_BINS.stop)[:, None]
    wavenumber = 20.0 * np.arange(_NUM_WAVENUMBERS)
    noise = 1 + np.exp(-(frequency - 50) / 30)
    hump = 2 * np.exp(-(((frequency - 215) / 30) ** 2))
    return np.log(noise + hump) - (wavenumber / 40) ** 2


def _patterns() -> Float[np.ndarray, "latents frequencies wavenumbers"]:
    """Products of cosines over the grid of amplitudes, with weights that fall with their order."""
    num_frequencies = _INFLOW_BINS.stop - _INFLOW_BINS.start
    along = np.cos(np.pi * np.outer(np.arange(NUM_LATENTS // 2 + 1), np.linspace(0, 1, num_frequencies)))
    around = np.cos(np.pi * np.outer(np.arange(2), np.linspace(0, 1, _NUM_WAVENUMBERS)))
    products = np.einsum("af,bk->abfk", along, around).reshape(-1, num_frequencies, _NUM_WAVENUMBERS)
    return products[:NUM_LATENTS] / (1 + 0.5 * np.arange(NUM_LATENTS))[:, None, None]


def inflow_energies(
    latents: Float[np.ndarray, "inputs latents"], settings: ThreeWaveSettings
) -> Float[np.ndarray, "inputs places harmonics"]:
    """Energies of the inflow on the grid of the march; left- and right-going waves share them equally."""
    energies = np.zeros((len(latents), _PLACES, _NUM_HARMONICS + 1))
    shares = np.moveaxis(inflow_amplitudes(latents, settings) ** 2, 2, 1)
    for place in _SIGNED:
        share = 1.0 if place == 0 else 0.5
        energies[:, place, _INFLOW_BINS] = share * shares[:, abs(place)]
    return energies


@cache
def _frequencies() -> tuple[Float[np.ndarray, "places harmonics"], np.ndarray]:
    """Frequency over 225 kHz at each place, zero at the empty ones, and its transform."""
    frequencies = np.zeros((_PLACES, _NUM_HARMONICS + 1))
    frequencies[list(_SIGNED)] = _BIN_KHZ / _REFERENCE_KHZ * np.arange(_NUM_HARMONICS + 1)
    return frequencies, rfft2(frequencies, s=_PADDED)


def exchange(
    energies: Float[np.ndarray, "inputs places harmonics"], *, coupling: float
) -> Float[np.ndarray, "inputs places harmonics"]:
    """Rate of change of the energies by triads; its sum over all waves is zero."""
    frequencies, f = _frequencies()
    x = rfft2(energies, s=_PADDED)
    pairs = irfft2(0.5 * x**2 + x * x.conj(), s=_PADDED)[..., : _NUM_HARMONICS + 1]
    singles = irfft2(x * f.conj() - f * x.conj() - x * f, s=_PADDED)[..., : _NUM_HARMONICS + 1]
    return coupling * frequencies * (frequencies * pairs + energies * singles)


def march(
    energies: Float[np.ndarray, "inputs places harmonics"],
    table: GrowthTable,
    *,
    coupling: float,
    relative_tolerance: float,
    absolute_tolerance: float,
    stops: Float[np.ndarray, " stops"] = SENSORS,
) -> Float[np.ndarray, "inputs stops places harmonics"]:
    """Integrate from the first station of the table to each stop, with steps that bound the local error."""
    stations, rates = table.distances, _laid_out_rates(table)

    def slope(position: np.ndarray, energies: np.ndarray) -> np.ndarray:
        interval = np.clip(np.searchsorted(stations, position) - 1, 0, len(stations) - 2)
        weight = (position - stations[interval]) / (stations[interval + 1] - stations[interval])
        rate = rates[interval] + weight[:, None, None] * (rates[interval + 1] - rates[interval])
        return 2 * rate * energies + exchange(energies, coupling=coupling)

    start = np.full(len(energies), stations[0])
    front = _Front(start, np.full(len(energies), _FIRST_STEP), energies.copy(), slope(start, energies))
    results = []
    for stop in stops:
        for _ in range(_MAX_TRIALS):
            active = np.flatnonzero(front.position < stop)
            if not active.size:
                break
            _try_step(slope, front, active, stop, relative_tolerance, absolute_tolerance)
        else:
            raise InputError(f"`coupling` must be small enough for {_MAX_TRIALS} steps per sensor, got {coupling}.")
        results.append(front.energies.copy())
    return np.stack(results, axis=1)


def _laid_out_rates(table: GrowthTable) -> Float[np.ndarray, "stations places harmonics"]:
    """Growth rates on the grid of energies of the march; left- and right-going waves grow alike."""
    rates = np.zeros((len(table.distances), _PLACES, _NUM_HARMONICS + 1))
    known = table.rates_to(_BIN_KHZ * np.arange(1, _NUM_HARMONICS + 1))
    for place in _SIGNED:
        rates[:, place, 1:] = known[:, :, abs(place)]
    return rates


@dataclass
class _Front:
    """Progress of each input. Each has steps of its own, so results do not depend on the rest of the batch."""

    position: np.ndarray
    step: np.ndarray
    energies: np.ndarray
    slopes: np.ndarray


def _try_step(
    slope: Callable[[np.ndarray, np.ndarray], np.ndarray],
    front: _Front,
    active: np.ndarray,
    stop: float,
    relative_tolerance: float,
    absolute_tolerance: float,
) -> None:
    """Take one step of Bogacki and Shampine's third-order pair where its error allows, and adapt the steps."""
    position, old, first = front.position[active], front.energies[active], front.slopes[active]
    wanted = front.step[active]
    step = np.minimum(wanted, stop - position)
    h = step[:, None, None]
    second = slope(position + step / 2, old + h / 2 * first)
    third = slope(position + 3 / 4 * step, old + 3 / 4 * h * second)
    new = old + h * (2 / 9 * first + 1 / 3 * second + 4 / 9 * third)
    last = slope(position + step, new)
    error = h * (-5 / 72 * first + 1 / 12 * second + 1 / 9 * third - 1 / 8 * last)
    scale = absolute_tolerance + relative_tolerance * np.maximum(np.abs(new), np.abs(old))
    excess = np.nan_to_num(np.max(np.abs(error) / scale, axis=(1, 2)), nan=np.inf)
    accepted = excess <= 1
    better = step * np.clip(0.9 * np.maximum(excess, 1e-9) ** (-1 / 3), 0.2, 5.0)
    # A step cut short by a sensor says nothing against the length that was wanted.
    front.step[active] = np.where(accepted, np.maximum(better, np.where(step < wanted, wanted, 0)), better)
    moved = active[accepted]
    reached = np.where(step < wanted, stop, position + step)
    front.position[moved] = reached[accepted]
    front.energies[moved], front.slopes[moved] = new[accepted], last[accepted]


def log_spectra(
    latents: Float[np.ndarray, "inputs latents"], table: GrowthTable, settings: ThreeWaveSettings | None = None
) -> Float[np.ndarray, "inputs sensors frequencies"]:
    """Return log10 of the amplitude at each sensor and observed frequency, ½ log10(Σ_k E + noise²)."""
    settings = settings or ThreeWaveSettings()
    noise = settings.noise_amplitude**2
    energies = march(
        inflow_energies(latents, settings),
        table,
        coupling=settings.coupling,
        relative_tolerance=settings.relative_tolerance,
        absolute_tolerance=settings.relative_tolerance * noise,
    )
    observed = np.round(OBSERVED_KHZ / _BIN_KHZ).astype(int)
    return 0.5 * np.log10(energies.sum(axis=2)[..., observed] + noise)
