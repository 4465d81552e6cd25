"""The settings of runs on data of one's own, with their defaults."""

from typing import Literal

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
    """What runs on data of one's own have in common: where the data are, how they are split, and the noise."""

    data_file: str | None = Field(None, description="The file with the data; a run needs one.")
    validation_file: str | None = Field(
        None, description="A file of the same form to validate on; if not given, a part of `data_file` is put aside."
    )
    validation_share: Probability = Field(
        0.2, description="Share of `data_file`, drawn at random, to validate on, where there is no `validation_file`."
    )
    data_seed: Count = Field(0, description="Seed of that draw; `seed` does not change the data.")
    standardise: bool = Field(
        True, description="Whether the network sees the data with mean 0 and std 1; results are in their own units."
    )
    noise_share: PositiveFloat = Field(
        0.1, description="Std of the noise as a share of the std of the targets, where `noise_std` is not given."
    )


class MLPConfig(OwnDataConfig):
    """Any regression: a dense network on columns of one's own."""

    name: Literal["mlp"] = Field("mlp", description="The kind of model: a dense network.")
    data_file: str | None = Field(None, description="A .csv, .npz or .mat file with a row per observation.")
    inputs: Names | None = Field(
        None, description="Columns of a .csv, or arrays, that enter; if not given all other columns, or the array X."
    )
    targets: Names | None = Field(
        None, description="Columns or arrays to predict; if not given the last column, or the array y."
    )
    hidden: Widths = Field((32, 32), description="Neurons of each hidden layer.")
    activation: Activation = Field("tanh", description="Nonlinearity.")
    noise_std: PositiveFloat | tuple[PositiveFloat, ...] | None = Field(
        None, description="Std of the noise in units of the targets, one number or one per target; see `noise_share`."
    )
    prior_std: PositiveFloat = Field(0.5, description="Prior std of every weight and bias.")


class DeepONetConfig(OwnDataConfig):
    """Any operator: a DeepONet on functions, locations and fields of one's own."""

    name: Literal["deeponet"] = Field("deeponet", description="The kind of model: an operator.")
    data_file: str | None = Field(None, description="A .npz or .mat file with functions, locations and fields.")
    functions: str = Field("branch_in", description="The array of functions at their sensors, (functions, sensors).")
    locations: str = Field("trunk_in", description="The array of locations, (locations, coordinates).")
    fields: str = Field("solution", description="The array of fields, (functions, locations).")
    coordinates: Names | None = Field(None, description="Names of the columns of `locations`, for figures and reports.")
    branch_hidden: Widths = Field((40, 40), description="Neurons of each hidden layer of the branch.")
    trunk_hidden: Widths = Field((40, 40), description="Neurons of each hidden layer of the trunk.")
    latent_size: PositiveInt = Field(20, description="Outputs of branch and trunk.")
    activation: Activation = Field("tanh", description="Nonlinearity.")
    num_waves: Count = Field(
        0, description="Harmonics of the last coordinate that the trunk sees instead of it; 0 if it is not periodic."
    )
    period: PositiveFloat = Field(1.0, description="Period of the last coordinate, in its own units.")
    noise_std: PositiveFloat | None = Field(
        None, description="Std of the noise, or of the error that is tolerable, in units of the fields."
    )
    prior_std: PositiveFloat = Field(0.3, description="Prior std of every weight and bias.")
    model_dtype: Literal["float32", "float64"] = Field(
        "float32", description="Precision of the networks; energies are float64 in any case."
    )
