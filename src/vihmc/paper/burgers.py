r"""The solution operator of the Burgers equation, learnt by a DeepONet (the paper's third experiment).

Initial conditions are random periodic fields, the operator maps each to its evolution on a grid of times and positions.
The trunk sees :math:`(t, \sin 2\pi x, \sin 4\pi x, \cos 2\pi x, \cos 4\pi x)`, so predictions are periodic.
"""

import hashlib
from pathlib import Path

import jax
import numpy as np

from vihmc.data.networks import build_operator
from vihmc.data.operator_data import OperatorData, OperatorNames, load_operator, read_operator_file
from vihmc.data.problem import Grid, Problem
from vihmc.errors import InputError
from vihmc.models.features import PeriodicFeatures
from vihmc.paper.burgers_solver import SPECTRA, interpolate, random_fields, solve
from vihmc.paper.cache import cached
from vihmc.paper.settings import BurgersConfig
from vihmc.posterior.operator import OperatorPosterior

PUBLISHED = {
    "relative_l2": {"VI": 0.038, "VI-HMC": 0.0752},
    "mse": {"VI-HMC": 2.9e-4},
    "step_size": 2e-4,
    "acceptance": {"HMC": 0.10, "VI-HMC": 0.87},
    "seconds_per_draw": {"HMC": 13.9, "VI-HMC": 6.27},
    "step_at_80_percent": {"HMC": 1.0e-4, "VI-HMC": 5.0e-4},
    "num_params": 172_401,
    "num_selected": 28_214,
}
"""What the paper reports; on other data of the same kind, with a step of 2e-4 and on a GPU."""


def build(config: BurgersConfig) -> Problem:
    """Make or load the data, and build the posterior."""
    data = load_file(Path(config.data_file)) if config.data_file else load_generated(config)
    num_functions, wanted = len(data.functions), config.num_training + config.num_validation
    if num_functions < wanted:
        raise InputError(
            f"`problem.num_training` and `problem.num_validation` must not exceed the {num_functions} functions of "
            f"the data together, got {config.num_training} and {config.num_validation}."
        )
    num_sensors, num_coordinates = data.functions.shape[1], data.locations.shape[1]
    periodic = PeriodicFeatures(num_coordinates - 1, num_waves=2)
    model = build_operator(config, num_sensors=num_sensors, num_coordinates=num_coordinates, trunk_features=periodic)
    training, validation = slice(0, config.num_training), slice(config.num_training, wanted)
    posterior = OperatorPosterior.on_pairs(
        model,
        data.functions[training],
        data.locations,
        data.fields[training],
        prior_std=config.prior_std,
        noise_std=config.noise_std,
    )
    dtype = posterior.targets.dtype
    return Problem(
        config.name,
        posterior,
        jax.numpy.asarray(data.functions[validation], dtype),
        jax.numpy.asarray(data.fields[validation], dtype),
        initial_params=model.init,
        grid=Grid.of(data.locations),
        published={} if config.data_file else PUBLISHED,
    )


def _time_step(config: BurgersConfig) -> float:
    """Largest time step of the solver: finer with more modes."""
    return 0.64 / config.num_modes


def generate(config: BurgersConfig) -> OperatorData:
    """Draw initial conditions and solve for their evolution."""
    rng = np.random.default_rng(config.data_seed)
    num_fields = config.num_training + config.num_validation
    initial = random_fields(rng, num_fields, SPECTRA[config.field], num_modes=config.num_modes)
    times, positions = np.linspace(0, 1, config.num_times), np.linspace(0, 1, config.num_positions)
    evolution = solve(
        initial, viscosity=config.viscosity, num_outputs=config.num_times - 1, time_step=_time_step(config)
    )
    # A part at a time: all fields on the solver's own grid are several times larger than on ours.
    fields = np.concatenate([interpolate(part, positions).astype(np.float32) for part in np.array_split(evolution, 20)])
    grid = np.stack(np.meshgrid(times, positions, indexing="ij"), axis=-1).reshape(-1, 2)
    return OperatorData(fields[:, 0], grid.astype(np.float32), fields.reshape(num_fields, -1))


def load_generated(config: BurgersConfig) -> OperatorData:
    """Return the data of a configuration, from disk if they were made before; the file's name tells its settings."""

    def make() -> dict[str, np.ndarray]:
        data = generate(config)
        return {"branch_in": data.functions, "trunk_in": data.locations, "solution": data.fields}

    arrays = cached(cache_name(config), make)
    return OperatorData(arrays["branch_in"], arrays["trunk_in"], arrays["solution"])


def cache_name(config: BurgersConfig) -> str:
    """Name of the cached file: whatever changes the data changes it."""
    readable = (
        f"{config.field}-n{config.num_training + config.num_validation}-grid{config.num_times}x{config.num_positions}"
        f"-seed{config.data_seed}"
    )
    spectrum = SPECTRA[config.field]
    exact = repr((readable, config.viscosity, config.num_modes, _time_step(config), tuple(spectrum)))
    return f"burgers-{readable}-{hashlib.sha256(exact.encode()).hexdigest()[:8]}.npz"


def load_file(path: Path) -> OperatorData:
    """Read ``branch_in``, ``trunk_in`` and ``solution`` from a ``.npz`` or ``.mat`` file."""
    return load_operator(read_operator_file(path, "problem.data_file"), OperatorNames())
