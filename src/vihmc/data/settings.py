"""The settings of runs on your own data, with their defaults."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from vihmc.config.settings import (
    Activation,
    Count,
    Names,
    PositiveFloat,
    PositiveInt,
    Probability,
    ProblemSettings,
    Widths,
)


class OwnDataConfig(ProblemSettings):
    """Settings that all runs on your own data share: the data files, their split, and the noise."""

    data_file: str | None = Field(None, description="The file with the data; required.")
    validation_file: str | None = Field(
        None,
        description="A file of the same form with validation data; if not given, a share of `data_file` is held out.",
    )
    validation_share: Probability | None = Field(
        None,
        description="Share of `data_file` held out at random for validation, if there is no `validation_file`; if not "
        "given, a fifth, but of an operator's functions at most 100.",
    )
    calibration_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Share of `data_file` kept out at random to calibrate the bands on, apart from validation; 0 for "
        "none.",
    )
    data_seed: Count = Field(0, description="Seed of the random split; `seed` does not change it.")
    standardise: bool = Field(
        True,
        description="Whether the model standardises the data to mean 0, std 1; results are in the units of the file.",
    )
    most_validation: ClassVar[float] = math.inf
    """Most rows that are held out if no share is given: a function has many values to score."""


class MLPConfig(OwnDataConfig):
    """Regression with a dense network, on your own data."""

    name: Literal["mlp"] = Field("mlp", description="The kind of model: a dense network for regression.")
    data_file: str | None = Field(
        None, description="A .csv, .parquet, .npy, .npz or .mat file with one row per observation."
    )
    inputs: Names | None = Field(
        None,
        description="Columns or arrays that are inputs; if not given, all columns but the targets, or the array X.",
    )
    targets: Names | None = Field(
        None, description="Columns or arrays to predict; if not given, the last column, or the array y."
    )
    hidden: Widths = Field((32, 32), description="Neurons of each hidden layer.")
    activation: Activation = Field("tanh", description="Activation function: tanh, sin, relu, gelu or silu.")
    likelihood: Literal["gaussian", "gaussian_with_scale", "student_t", "bernoulli", "categorical", "poisson"] = Field(
        "gaussian",
        description="Distribution of the targets around the prediction: 'gaussian'; 'gaussian_with_scale', whose noise "
        "depends on the inputs; 'student_t', for outliers; 'bernoulli' for labels 0 and 1; 'categorical' for classes "
        "0, 1, 2, …; 'poisson' for counts.",
    )
    noise_std: PositiveFloat | tuple[PositiveFloat, ...] | None = Field(
        None,
        description="Known std of the observation noise in units of the targets, one or one per target; learnt if not "
        "given.",
    )
    prior_std: PositiveFloat | None = Field(
        None, description="Known prior std of every weight and bias; learnt if not given."
    )


class OperatorConfig(OwnDataConfig):
    """Settings that all operators on your own data share: the arrays of the file, noise and prior."""

    most_validation: ClassVar[float] = 100

    data_file: str | None = Field(None, description="A .npz or .mat file with functions, locations and fields.")
    functions: str = Field("branch_in", description="The array of functions at their sensors, (functions, sensors).")
    locations: str = Field("trunk_in", description="The array of locations, (locations, coordinates).")
    fields: str = Field("solution", description="The array of fields, (functions, locations).")
    coordinates: Names | None = Field(None, description="Names of the columns of `locations`, for figures and reports.")
    noise_std: PositiveFloat | None = Field(
        None,
        description="Known std of the noise, or of the tolerated error, in units of the fields; learnt if not given.",
    )
    noise_groups: str | None = Field(
        None,
        description="The array with the number of a group, 0, 1, …, for each location: every group has a learnt noise "
        "of its own. One noise for all locations if not given.",
    )
    prior_std: PositiveFloat | None = Field(
        None, description="Known prior std of every weight and bias; learnt if not given."
    )
    model_dtype: Literal["float32", "float64"] = Field(
        "float32", description="Precision of the networks; energies are always float64."
    )


class DeepONetConfig(OperatorConfig):
    """Operator learning with a DeepONet, on your own functions, locations and fields."""

    name: Literal["deeponet"] = Field("deeponet", description="The kind of model: a DeepONet for an operator.")
    branch_hidden: Widths = Field((40, 40), description="Neurons of each hidden layer of the branch.")
    trunk_hidden: Widths = Field((40, 40), description="Neurons of each hidden layer of the trunk.")
    latent_size: PositiveInt = Field(20, description="Outputs of branch and trunk.")
    activation: Activation = Field("tanh", description="Activation function: tanh, sin, relu, gelu or silu.")
    num_waves: Count = Field(
        0, description="Harmonics that replace the last coordinate as inputs of the trunk; 0 if it is not periodic."
    )
    period: PositiveFloat = Field(1.0, description="Period of the last coordinate, in its own units.")


class FNOConfig(OperatorConfig):
    """Operator learning with a Fourier neural operator, on your own functions and fields on a regular grid."""

    name: Literal["fno"] = Field("fno", description="The kind of model: a Fourier neural operator, on a regular grid.")
    function_coordinates: Names | None = Field(
        None,
        description="Coordinates along which the functions are sampled, by their names; found from the number of "
        "sensors if not given.",
    )
    width: PositiveInt = Field(16, description="Channels of the hidden layers.")
    num_layers: PositiveInt = Field(4, description="Fourier layers.")
    modes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = Field(
        None,
        description="Wave numbers kept along each coordinate of the functions; half its points, at most "
        "`most_modes`, if not given.",
    )
    most_modes: PositiveInt = Field(6, description="Most wave numbers along a coordinate, where `modes` is not given.")
    padding: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="Share of the grid that is added with zeros inside. If not given: none along coordinates on which "
        "functions and fields are periodic, a quarter along all others.",
    )
    prior_std: PositiveFloat | None = Field(
        1.0,
        description="Known prior std of every weight and bias. Learnt where it is 'none', which takes many passes "
        "through all fields.",
    )
    activation: Activation = Field("gelu", description="Activation function: tanh, sin, relu, gelu or silu.")


class PythonConfig(ProblemSettings):
    """A posterior that was made in Python, and saved with its result."""

    name: Literal["python"] = Field("python", description="The kind of model: any, as it was saved from Python.")
    data_file: str | None = Field(
        None, description="The file posterior.npz of a saved result; a relative path is relative to the run directory."
    )
