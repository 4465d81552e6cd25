"""Regression with a dense network, on your own data.

Standardisation is a part of the model (:mod:`vihmc.models.standardised`), with the means and stds of the training rows:
noise, predictions and everything that a run stores are in the units of the file.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vihmc.data import own_data
from vihmc.data.columns import Columns, Regression, choose_names, load_regression
from vihmc.data.data_file import DataFile, read_data_file
from vihmc.data.problem import Problem
from vihmc.data.settings import MLPConfig
from vihmc.errors import InputError
from vihmc.models.features import Scaling, check_digits
from vihmc.models.mlp import MLP
from vihmc.posterior.checks import Validation
from vihmc.posterior.density import Posterior
from vihmc.posterior.likelihoods import LIKELIHOODS, Gaussian, Likelihood


def build(config: MLPConfig) -> Problem:
    """Read the data, split them, and build the posterior."""
    file = read_data_file(own_data.need_file(config), "problem.data_file")
    names = choose_names(file, config.inputs, config.targets)
    data = load_regression(file, names)
    own_data.check_num_training(data.num_rows, "rows")
    validation_file = None
    split = own_data.split_rows(data.num_rows, config, "rows")
    training, validation, calibration = (data.rows(index) for index in split)
    if config.validation_file is not None:
        validation_file = read_data_file(Path(config.validation_file), "problem.validation_file")
        validation = _check_validation(load_regression(validation_file, names), data, validation_file)
    if validation.inputs.values.shape[1] == 1:
        # In ascending order, so that a plot of them is a curve.
        validation = validation.rows(np.argsort(validation.inputs.values[:, 0], kind="stable"))
    return pose(config, training, validation, own_data.Files(file, validation_file), calibration=calibration)


def pose(
    config: MLPConfig,
    training: Regression,
    validation: Regression,
    files: own_data.Files,
    *,
    calibration: Regression | None = None,
) -> Problem:
    """Build the posterior of the training rows, and the problem."""
    inputs, targets = training
    likelihood = find_likelihood(config, targets)
    widths = (inputs.values.shape[1], *config.hidden, num_outputs(config, targets.values))
    network = MLP(widths, config.activation)
    if config.standardise:
        for part in (inputs,) if likelihood.is_discrete else training:
            check_digits(part.names, Scaling.of(part.values), jnp.result_type(float), "precision")
    observed, expected = (_as_observed(config, part.targets.values) for part in (training, validation))
    posterior = Posterior.of(
        network,
        jax.eval_shape(network.init, jax.random.key(0)),
        inputs.values,
        observed,
        prior_std=config.prior_std,
        likelihood=likelihood,
        standardise=config.standardise,
    )
    model = posterior.model
    scalings = (model.inputs, model.targets) if config.standardise else (None, None)
    if likelihood.is_discrete:
        # Labels out of range and negative counts can be scored no more than learnt from.
        likelihood.bind(jnp.asarray(expected), _outputs_like(posterior, len(expected)))
    described = [
        own_data.describe_columns(part.names, part.values, scaling)
        for part, scaling in zip(training, scalings, strict=True)
    ]
    dtype = posterior.targets.dtype
    return Problem(
        config.name,
        posterior,
        jnp.asarray(validation.inputs.values, dtype),
        jnp.asarray(expected, dtype),
        initial_params=model.init,
        notice=own_data.constant_notice(*described) if config.standardise else None,
        input_names=inputs.names,
        target_names=targets.names,
        calibration=_as_calibration(config, calibration, dtype),
        data_description=own_data.describe_data(
            config,
            files,
            num_training=training.num_rows,
            num_validation=validation.num_rows,
            num_calibration=0 if calibration is None else calibration.num_rows,
        )
        | {"inputs": described[0], "targets": described[1]},
    )


def find_likelihood(config: MLPConfig, targets: Columns) -> Likelihood:
    """The likelihood that the settings name."""
    noise_std = own_data.check_noise(config.noise_std, targets.values.shape[1])
    if config.likelihood == "gaussian":
        if noise_std is None:
            own_data.check_varies(targets.names, targets.values)
        return Gaussian(noise_std)
    if noise_std is not None:
        raise InputError(
            f"`problem.noise_std` must be left out with likelihood '{config.likelihood}', got {config.noise_std}."
        )
    if config.likelihood == "categorical" and targets.values.shape[1] != 1:
        raise InputError(
            f"`problem.targets` must be one column of class numbers with likelihood 'categorical', got "
            f"{', '.join(targets.names)}."
        )
    return LIKELIHOODS[config.likelihood]()


def num_outputs(config: MLPConfig, targets: np.ndarray) -> int:
    """Outputs of the network: one per target, two where the noise is predicted too, or one per class."""
    if config.likelihood == "categorical":
        return max(2, int(targets.max()) + 1)
    return targets.shape[1] * (2 if config.likelihood == "gaussian_with_scale" else 1)


def _as_calibration(config: MLPConfig, rows: Regression | None, dtype: Any) -> Validation | None:
    if rows is None or not rows.num_rows:
        return None
    targets = _as_observed(config, rows.targets.values)
    return Validation(jnp.asarray(rows.inputs.values, dtype), jnp.asarray(targets, dtype))


def _as_observed(config: MLPConfig, targets: np.ndarray) -> np.ndarray:
    return targets[:, 0] if config.likelihood == "categorical" else targets


def _outputs_like(posterior: Posterior, num_rows: int) -> jax.ShapeDtypeStruct:
    outputs = jax.eval_shape(posterior.predict, jnp.zeros(posterior.dim), posterior.inputs)
    return jax.ShapeDtypeStruct((num_rows, *outputs.shape[1:]), outputs.dtype)


def _check_validation(validation: Regression, data: Regression, file: DataFile) -> Regression:
    for part, like in zip(validation, data, strict=True):
        _check_same_columns(part, like, file)
    if validation.num_rows == 0:
        raise InputError(f"`problem.validation_file` must hold at least one row, got {file.path} with none.")
    return validation


def _check_same_columns(part: Columns, like: Columns, file: DataFile) -> None:
    if part.names != like.names:
        raise InputError(
            f"`problem.validation_file` must have the columns of `problem.data_file`, {', '.join(like.names)}, "
            f"got {file.path} with {', '.join(part.names)}."
        )
