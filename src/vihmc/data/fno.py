"""Operator learning with a Fourier neural operator, on your own functions and fields on a regular grid.

The grid is recognised from the locations, in any order. Functions are sampled at all of its points, or at those along
some of the coordinates; points along the others, such as times, are channels of the output. Standardisation is a part
of the model: one mean and std of all functions, one of all fields. Noise, predictions and everything that a run stores
are in the units of the file.
"""

from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from vihmc.data import own_data
from vihmc.data.deeponet import column_names, noise_groups
from vihmc.data.operator_data import OperatorData, OperatorNames, load_operator, read_operator_file
from vihmc.data.problem import Grid, Problem
from vihmc.data.settings import FNOConfig
from vihmc.errors import InputError
from vihmc.models.features import Scaling, check_digits
from vihmc.models.fno import FNO
from vihmc.models.regular_grid import GridOperator, RegularGrid
from vihmc.posterior.checks import Validation
from vihmc.posterior.fields import FieldPosterior
from vihmc.posterior.likelihoods import Gaussian

_LEAST_POINTS = 4
_PADDING = 0.25
"""Share of the grid that is added along coordinates on which fields are not periodic."""

_PERIODIC = 3.0
"""How much larger second differences across the ends may be than inside, in the mean square, for periodic values. They
are as large if values are periodic, and 4 to 20 times as large for values that end at zero or elsewhere."""


class OnGrid(NamedTuple):
    """The grid of the locations, and the coordinates along which the functions are sampled."""

    grid: RegularGrid
    axes: tuple[int, ...]


def build(config: FNOConfig) -> Problem:
    """Read the data, split them, and build the posterior."""
    file = read_operator_file(own_data.need_file(config), "problem.data_file")
    names = OperatorNames(config.functions, config.locations, config.fields)
    data = load_operator(file, names)
    own_data.check_num_training(len(data.functions), "functions")
    parts = own_data.split_rows(len(data.functions), config, "functions")
    training, validation, calibration = (data.rows(index) for index in parts)
    validation_file = None
    if config.validation_file is not None:
        validation_file = read_operator_file(Path(config.validation_file), "problem.validation_file")
        validation = load_operator(validation_file, names)
    columns = column_names(config, training.functions.shape[1], training.locations.shape[1])
    found = find_grid(training.locations, training.functions.shape[1], columns[1], config.function_coordinates)
    fields = (training.fields.reshape(-1, 1), training.functions.reshape(-1, 1))
    if config.noise_std is None:
        own_data.check_varies(columns[2], fields[0])
    model = _model(config, found, training)
    if not np.array_equal(validation.locations, training.locations):
        if config.noise_groups is not None:
            raise InputError("`problem.noise_groups` goes with a validation file that has the training locations.")
        model = model.with_grid("problem.validation_file", validation.locations)
    model.grid_of(validation.functions.shape[1])
    posterior = FieldPosterior.on_grid(
        model,
        *training,
        prior_std=config.prior_std,
        likelihood=Gaussian(config.noise_std, per_output=False, noise_groups=noise_groups(config, file)),
        dtype=config.model_dtype,
    )
    return _pose(config, posterior, columns, (training, validation, calibration), own_data.Files(file, validation_file))


def _pose(
    config: FNOConfig,
    posterior: FieldPosterior,
    columns: tuple[tuple[str, ...], ...],
    parts: tuple[OperatorData, OperatorData, OperatorData],
    files: own_data.Files,
) -> Problem:
    training, validation, calibration = parts
    model, dtype = posterior.model, posterior.targets.dtype
    whole = (
        (
            "functions",
            (config.functions,),
            training.functions.reshape(-1, 1),
            (model.function_mean, model.function_std),
        ),
        ("locations", columns[1], training.locations, None),
        ("fields", columns[2], training.fields.reshape(-1, 1), (model.field_mean, model.field_std)),
    )
    for _, names, values, _ in whole:
        check_digits(names, Scaling.of(values), config.model_dtype, "problem.model_dtype")
    described = {
        name: own_data.describe_columns(names, values, None if units is None else Scaling((units[0],), (units[1],)))
        for name, names, values, units in whole
    }
    is_other = len(validation.locations) != len(training.locations)
    return Problem(
        config.name,
        posterior,
        jnp.asarray(validation.functions, dtype),
        jnp.asarray(validation.fields, dtype),
        initial_params=model.init,
        grid=Grid.of(validation.locations),
        validation_locations=jnp.asarray(validation.locations, dtype) if is_other else None,
        input_names=columns[1],
        target_names=columns[2],
        notice=_periodic_notice(config, model, columns[1]),
        calibration=Validation(jnp.asarray(calibration.functions, dtype), jnp.asarray(calibration.fields, dtype))
        if len(calibration.functions)
        else None,
        data_description=own_data.describe_data(
            config,
            files,
            num_training=len(training.functions),
            num_validation=len(validation.functions),
            num_calibration=len(calibration.functions),
        )
        | {"num_sensors": training.functions.shape[1], "num_locations": len(training.locations)}
        | described,
    )


def find_grid(
    locations: np.ndarray, num_sensors: int, names: tuple[str, ...], along: tuple[str, ...] | None = None
) -> OnGrid:
    """Recognise the grid of the locations, and along which of its coordinates the functions are sampled.

    Args:
        locations: Coordinates, a row each.
        num_sensors: Values of every function.
        names: Of the coordinates.
        along: The names of those along which functions are sampled; found from the numbers if not given.

    Raises:
        InputError: If the locations are no regular grid, or the functions are not on it.
    """
    grid = RegularGrid.of(locations)
    if grid is None:
        raise InputError(
            "`problem.locations` must be a regular grid for an FNO: all combinations of evenly spaced points along "
            f"each coordinate, got {len(locations)} other locations. Use the kind 'deeponet'."
        )
    shape = " × ".join(map(str, grid.shape))
    if along is not None:
        unknown = [name for name in along if name not in names]
        if unknown:
            raise InputError(f"`problem.function_coordinates` must be some of {', '.join(names)}, got '{unknown[0]}'.")
        candidates = [tuple(sorted(names.index(name) for name in along))]
        candidates = [axes for axes in candidates if axes in grid.axes_of(num_sensors)]
    else:
        candidates = grid.axes_of(num_sensors)
    if not candidates:
        raise InputError(
            "`problem.functions` must be sampled at the points of the grid, or at those along some of its coordinates, "
            f"for an FNO, got {num_sensors} sensors and a grid of {shape}. Use the kind 'deeponet'."
        )
    if len(candidates) > 1:
        raise InputError(
            f"`problem.function_coordinates` must name the coordinates along which the {num_sensors} sensors lie, of "
            f"{', '.join(names)}, got none: a grid of {shape} has {len(candidates)} such sets."
        )
    axes = candidates[0]
    few = [names[axis] for axis in axes if grid.shape[axis] < _LEAST_POINTS]
    if few:
        raise InputError(
            f"`problem.locations` must have at least {_LEAST_POINTS} points along '{few[0]}' for an FNO, got a grid of "
            f"{shape}. Use the kind 'deeponet'."
        )
    return OnGrid(grid, axes)


def _model(config: FNOConfig, found: OnGrid, training: OperatorData) -> GridOperator:
    """The operator of the configured size, between data in their own units."""
    grid, axes = found
    shape = tuple(grid.shape[axis] for axis in axes)
    modes = config.modes or tuple(min(config.most_modes, length // 2) for length in shape)
    if len(modes) != len(axes):
        raise InputError(
            f"`problem.modes` must have a number for each coordinate along which functions are sampled, which are "
            f"{len(axes)}, got {len(modes)}."
        )
    network = FNO(
        modes=modes,
        width=config.width,
        num_layers=config.num_layers,
        num_outputs=grid.size // int(np.prod(shape)),
        activation=config.activation,
        padding=_paddings(found, training) if config.padding is None else config.padding,
    )
    network.check_grid(shape)
    model = GridOperator(network, grid, axes)
    if not config.standardise:
        return model
    functions, fields = (Scaling.of(values.reshape(-1, 1)) for values in (training.functions, training.fields))
    return GridOperator(
        network,
        grid,
        axes,
        function_mean=functions.means[0],
        function_std=functions.stds[0],
        field_mean=fields.means[0],
        field_std=fields.stds[0],
    )


def _paddings(found: OnGrid, training: OperatorData) -> tuple[float, ...]:
    """Shares of the grid to add along the coordinates of the functions: none where all values are periodic."""
    grid, axes = found
    shape = [grid.shape[axis] for axis in axes]
    functions = training.functions[:, np.argsort(grid.order_of_sensors(axes), kind="stable")].reshape(-1, *shape)
    fields = training.fields if grid.order is None else training.fields[:, np.argsort(grid.order)]
    fields = fields.reshape(-1, *grid.shape)
    return tuple(
        0.0 if is_periodic(functions, 1 + number) and is_periodic(fields, 1 + axis) else _PADDING
        for number, axis in enumerate(axes)
    )


def _periodic_notice(config: FNOConfig, model: GridOperator, names: tuple[str, ...]) -> str | None:
    """Which coordinates were taken to be periodic."""
    pairs = zip(model.axes, model.network.paddings, strict=True)
    periodic = [names[axis] for axis, share in pairs if not share]
    if config.padding is not None or not periodic:
        return None
    return f"Functions and fields look periodic along {' and '.join(periodic)}: set `problem.padding` if they are not."


def is_periodic(values: np.ndarray, axis: int) -> bool:
    """Whether the first value along an axis follows the last one as smoothly as neighbours follow each other.

    The last point may also be the first one again.
    """
    values = np.moveaxis(values, axis, -1)
    if np.allclose(values[..., 0], values[..., -1], rtol=0, atol=1e-5 * float(np.std(values))):
        values = values[..., :-1]
    ends = np.concatenate([values[..., -2:], values[..., :2]], axis=-1)
    across, inside = (np.mean(np.diff(part, 2, axis=-1) ** 2, dtype=np.float64) for part in (ends, values))
    return bool(across <= _PERIODIC * inside)
