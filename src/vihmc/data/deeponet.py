"""Operator learning with a DeepONet, on your own functions, locations and fields.

Standardisation is a part of the model: functions and locations by maps before the networks, one mean and std per sensor
and coordinate; fields by one offset and one scale for all of them, since one noise belongs to all. Noise, predictions
and everything that a run stores are in the units of the file.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from vihmc.data import own_data
from vihmc.data.data_file import DataFile
from vihmc.data.networks import build_operator
from vihmc.data.operator_data import OperatorData, OperatorNames, load_operator, read_operator_file
from vihmc.data.problem import Grid, Problem
from vihmc.data.settings import DeepONetConfig, OperatorConfig
from vihmc.errors import InputError
from vihmc.models.features import PeriodicFeatures, check_digits
from vihmc.models.standardised import OperatorScalings
from vihmc.posterior.checks import Validation
from vihmc.posterior.likelihoods import Gaussian
from vihmc.posterior.operator import OperatorPosterior


def build(config: DeepONetConfig) -> Problem:
    """Read the data, split them, and build the posterior."""
    file = read_operator_file(own_data.need_file(config), "problem.data_file")
    names = OperatorNames(config.functions, config.locations, config.fields)
    data = load_operator(file, names)
    own_data.check_num_training(len(data.functions), "functions")
    validation_file = None
    split = own_data.split_rows(len(data.functions), config, "functions")
    training, validation, calibration = (data.rows(index) for index in split)
    if config.validation_file is not None:
        validation_file = read_operator_file(Path(config.validation_file), "problem.validation_file")
        validation = _check_validation(load_operator(validation_file, names), data, validation_file)
    return pose(config, training, validation, own_data.Files(file, validation_file), calibration=calibration)


def pose(
    config: DeepONetConfig,
    training: OperatorData,
    validation: OperatorData,
    files: own_data.Files,
    *,
    calibration: OperatorData | None = None,
) -> Problem:
    """Build the posterior of the training functions, and the problem."""
    num_sensors, num_coordinates = training.functions.shape[1], training.locations.shape[1]
    names = column_names(config, num_sensors, num_coordinates)
    columns = (training.functions, training.locations, training.fields.reshape(-1, 1))
    if config.noise_std is None:
        own_data.check_varies(names[2], columns[2])
    waves = None
    if config.num_waves:
        waves = PeriodicFeatures(num_coordinates - 1, num_waves=config.num_waves, period=config.period)
    model = build_operator(
        config,
        num_sensors=num_sensors,
        num_coordinates=num_coordinates,
        activation=config.activation,
        trunk_features=waves,
    )
    scalings = OperatorScalings.of(model, *training) if config.standardise else None
    if scalings is not None:
        for part, scaling in zip(names, scalings, strict=True):
            check_digits(part, scaling, config.model_dtype, "problem.model_dtype")
        model = scalings.around(model)
    posterior = OperatorPosterior.on_pairs(
        model,
        *training,
        prior_std=config.prior_std,
        likelihood=Gaussian(own_data.check_noise(config.noise_std, 1), noise_groups=noise_groups(config, files.data)),
        dtype=config.model_dtype,
    )
    described = [
        own_data.describe_columns(part, values, scaling)
        for part, values, scaling in zip(names, columns, scalings or (None,) * 3, strict=True)
    ]
    dtype = posterior.targets.dtype
    return Problem(
        config.name,
        posterior,
        jnp.asarray(validation.functions, dtype),
        jnp.asarray(validation.fields, dtype),
        initial_params=model.init,
        grid=Grid.of(training.locations),
        notice=own_data.constant_notice(*described) if config.standardise else None,
        input_names=names[1],
        target_names=names[2],
        calibration=None
        if calibration is None or not len(calibration.functions)
        else Validation(jnp.asarray(calibration.functions, dtype), jnp.asarray(calibration.fields, dtype)),
        data_description=own_data.describe_data(
            config,
            files,
            num_training=len(training.functions),
            num_validation=len(validation.functions),
            num_calibration=0 if calibration is None else len(calibration.functions),
        )
        | {"num_sensors": training.functions.shape[1], "num_locations": len(training.locations)}
        | dict(zip(("functions", "locations", "fields"), described, strict=True)),
    )


def noise_groups(config: OperatorConfig, file: DataFile) -> np.ndarray | None:
    """The group of each location, as whole numbers."""
    if config.noise_groups is None:
        return None
    if config.noise_groups not in file.arrays:
        raise InputError(f"`problem.noise_groups` must name an array of {file.path}, got '{config.noise_groups}'.")
    values = file.get(config.noise_groups, "problem.noise_groups").ravel()
    bad = values[values != np.round(values)]
    if len(bad):
        raise InputError(f"`problem.noise_groups` must hold whole numbers, got {bad[0]:g}.")
    return values.astype(int)


def column_names(config: OperatorConfig, num_sensors: int, num_coordinates: int) -> tuple[tuple[str, ...], ...]:
    """Names of sensors, of coordinates, and of the field."""
    numbered = tuple(f"{config.locations}[{index}]" for index in range(num_coordinates))
    coordinates = config.coordinates or (numbered if num_coordinates > 1 else (config.locations,))
    if len(coordinates) != num_coordinates:
        raise InputError(
            f"`problem.coordinates` must name every column of {config.locations}, which are {num_coordinates}, "
            f"got {len(coordinates)}."
        )
    sensors = tuple(f"{config.functions}[{index}]" for index in range(num_sensors))
    return sensors, coordinates, (config.fields,)


def _check_validation(validation: OperatorData, data: OperatorData, file: DataFile) -> OperatorData:
    if validation.functions.shape[1] != data.functions.shape[1]:
        raise InputError(
            f"`problem.validation_file` must have functions with {data.functions.shape[1]} sensors, as in "
            f"`problem.data_file`, got {file.path} with {validation.functions.shape[1]}."
        )
    if not np.array_equal(validation.locations, data.locations):
        raise InputError(
            f"`problem.validation_file` must have the locations of `problem.data_file`, got {file.path} with others."
        )
    return validation
