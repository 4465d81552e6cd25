"""Data sets of the cone: random inflows and the spectra that they lead to at the sensors."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from vihmc.errors import InputError
from vihmc.paper.cone_flow.growth import GrowthTable
from vihmc.paper.cone_flow.three_wave import NUM_LATENTS, OBSERVED_KHZ, SENSORS, ThreeWaveSettings, log_spectra

_LATENT_RANGE = (-3.4, 3.1)
_BATCH = 200


class ConeSpectra(NamedTuple):
    """Inputs, where their outputs are, and the outputs.

    Attributes:
        inputs: latent numbers of the inflow.
        locations: distance of the sensor in metres and frequency in kilohertz; the sensor varies slowest.
        spectra: log10 of the amplitude.
    """

    inputs: Float[np.ndarray, "inputs latents"]
    locations: Float[np.ndarray, "locations 2"]
    spectra: Float[np.ndarray, "inputs locations"]


def generate(
    num_inputs: int, *, seed: int, table: GrowthTable, settings: ThreeWaveSettings | None = None
) -> ConeSpectra:
    """Draw inflows and march them along the cone.

    Args:
        num_inputs: number of inflows; the first ones are the same however many are asked for.
        seed: of the random numbers.
        table: growth rates.
        settings: sizes of the disturbances and of their exchange.
    """
    if num_inputs < 1:
        raise InputError(f"`num_inputs` must be at least 1, got {num_inputs}.")
    inputs = np.random.default_rng(seed).standard_normal((num_inputs, NUM_LATENTS)).clip(*_LATENT_RANGE)
    parts = [log_spectra(inputs[start : start + _BATCH], table, settings) for start in range(0, num_inputs, _BATCH)]
    distance, frequency = np.meshgrid(SENSORS, OBSERVED_KHZ, indexing="ij")
    locations = np.column_stack([distance.ravel(), frequency.ravel()])
    return ConeSpectra(inputs, locations, np.concatenate(parts).reshape(num_inputs, -1))
