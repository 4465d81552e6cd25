"""Wall-pressure spectra on a cone at Mach 6, learnt by a DeepONet (the paper's fourth experiment).

The operator maps the inflow, 11 latent variables, to the logarithm of the pressure amplitude at a sensor and a
frequency. Few inputs and points are distinct, so the 5168 records are a table of 68 × 76 values with multiplicities.
Each pair is weighted by its multiplicity, which is exactly the likelihood of the records.
"""

from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from vihmc.data.networks import build_operator
from vihmc.data.problem import Axis, Problem, Units
from vihmc.data.registry import Resolved
from vihmc.errors import InputError
from vihmc.paper import cone_flow
from vihmc.paper.cache import cached
from vihmc.paper.cone_data import VARIABLE, Spectra, find_directory, load_directory, tabulate
from vihmc.paper.cone_reports import fold, is_among, splits
from vihmc.paper.settings import ConeConfig
from vihmc.posterior.operator import OperatorPosterior

PUBLISHED = {
    "mse": {"HMC": 3.7e-3, "VI-HMC": 2.7e-3},
    "step_size": 1e-5,
    "acceptance": {"HMC": 0.55, "VI-HMC": 0.91},
    "seconds_per_draw": {"HMC": 0.63, "VI-HMC": 0.25},
    "step_at_80_percent": {"HMC": 4.2e-11, "VI-HMC": 1.6e-5},
    "num_params": 16_321,
    "num_selected": 840,
}
"""The paper's numbers on the published validation records: a step size of 1e-5, on a GPU."""

STAND_IN = (
    "These are spectra of the synthetic stand-in: a problem of the same kind as the published data, whose figures do "
    "not compare with the paper's."
)
NO_FILES = (
    f"The published data files were not given (--data or {VARIABLE}). The synthetic stand-in is used instead; its "
    "growth rates are computed once, in about half a minute."
)
TABLE_FILE = "cone-growth-1.npz"
"""Cached table of growth rates; the number in its name changes with the physics or its settings."""
_NUM_PROBED = 4


class Range(NamedTuple):
    """Smallest and largest value of a quantity; the published runs map it to [-1, 0]."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """The unit of the mapped quantity."""
        return self.high - self.low

    def normalise(self, values: np.ndarray) -> np.ndarray:
        """Map the range to [-1, 0]."""
        return (values - self.high) / self.width

    @classmethod
    def of(cls, values: np.ndarray) -> "Range":
        """The range of some values."""
        return cls(float(np.min(values)), float(np.max(values)))


def resolve(config: ConeConfig) -> Resolved:
    """Say where the data come from: the folder with the files, by its full name, or the stand-in if there is none."""
    if config.name == "cone_synthetic":
        if config.data_dir is not None:
            raise InputError(f"`problem.data_dir` must be left out for cone_synthetic, got {config.data_dir}.")
        return Resolved(config)
    directory = find_directory(config.data_dir)
    if directory is None:
        return Resolved(config.model_copy(update={"name": "cone_synthetic"}), NO_FILES)
    return Resolved(config.model_copy(update={"data_dir": str(directory.absolute())}))


def build(config: ConeConfig) -> Problem:
    """Load or generate the spectra, and build the posterior."""
    config = resolve(config).settings
    if config.data_dir is None:
        return pose(config, *synthetic(config))
    records = load_directory(Path(config.data_dir))
    training = tabulate(records[0])
    return pose(config, training, tabulate(records[1], training.points))


def synthetic(config: ConeConfig) -> tuple[Spectra, Spectra]:
    """Spectra of the stand-in: every point of every input once; training and validation inputs are distinct."""
    arrays = cached(TABLE_FILE, lambda: cone_flow.growth_table().to_arrays())
    inputs, points, values = cone_flow.generate(
        config.num_training + config.num_validation,
        seed=config.data_seed,
        table=cone_flow.GrowthTable.from_arrays(arrays),
    )
    parts = (slice(0, config.num_training), slice(config.num_training, None))
    training, validation = (Spectra(inputs[part], points, values[part], np.ones_like(values[part])) for part in parts)
    return training, validation


def pose(config: ConeConfig, training: Spectra, validation: Spectra) -> Problem:
    """Normalise the spectra, and build the posterior and the reports."""
    is_published = config.name == "cone"
    of_inputs, of_values = Range.of(training.inputs), Range.of(training.values[training.counts > 0])
    locations = np.stack([Range.of(column).normalise(column) for column in training.points.T], axis=1)
    posterior = OperatorPosterior.on_pairs(
        build_operator(config, num_sensors=training.inputs.shape[1], num_coordinates=training.points.shape[1]),
        of_inputs.normalise(training.inputs),
        locations,
        of_values.normalise(training.values),
        weights=training.counts,
        prior_std=config.prior_std,
        noise_std=config.noise_std,
    )
    dtype = posterior.targets.dtype
    sensors, frequencies = (np.unique(column) for column in training.points.T)
    known = validation.counts > 0
    unseen = ~is_among(validation.inputs, training.inputs)
    candidates = np.flatnonzero(unseen)
    return Problem(
        config.name,
        posterior,
        jnp.asarray(of_inputs.normalise(validation.inputs), dtype),
        jnp.asarray(np.where(known, of_values.normalise(validation.values), 0.0), dtype),
        validation_weights=validation.counts,
        initial_params=posterior.model.init,
        splits=splits(training, validation, unseen, scale=of_values.width),
        units=Units("log10 |p|", offset=of_values.high, scale=of_values.width),
        curves=(Axis("sensor x", "m", sensors), Axis("Frequency", "kHz", frequencies)),
        probes=(
            candidates[np.linspace(0, len(candidates) - 1, min(_NUM_PROBED, len(candidates))).round().astype(int)],
            np.arange(len(locations)),
        ),
        fold=partial(fold, training, scale=of_values.width),
        published=PUBLISHED if is_published else {},
        result_table=_result_table if is_published else None,
        notice=None if is_published else STAND_IN,
    )


def _result_table(summary: dict[str, Any]) -> Any:
    return resolve_name("vihmc.paper.tables:operator_table")(summary)  # tables are for the terminal alone
