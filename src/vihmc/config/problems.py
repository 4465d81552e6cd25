"""The settings of every problem, with their defaults."""

from typing import Annotated, Literal

from pydantic import Field

from vihmc.config.settings import Activation, Count, Names, PositiveFloat, PositiveInt, Probability, Settings


class SineConfig(Settings):
    """A sum of two sines, learnt by a small network from points with a gap in the middle."""

    name: Literal["sine_small", "sine_large"] = Field("sine_small", description="Which of the two problems.")
    num_points: Annotated[int, Field(ge=2)] = Field(20, description="Training points, half on either side of the gap.")
    num_validation: Annotated[int, Field(ge=2)] = Field(300, description="Points of the validation grid.")
    noise_std: PositiveFloat = Field(1e-3, description="Std of the noise, in the data and in the likelihood.")
    prior_std: PositiveFloat = Field(1.0, description="Prior std of every weight and bias.")
    data_seed: Count = Field(0, description="Seed of the noise in the data; `seed` does not change the data.")


class BurgersConfig(Settings):
    """The solution operator of the Burgers equation, learnt by a DeepONet; or any operator, from a file."""

    name: Literal["burgers"] = Field("burgers", description="The problem.")
    field: Literal["pi_deeponet", "fno"] = Field("pi_deeponet", description="Whose random initial conditions.")
    viscosity: PositiveFloat = Field(0.01, description="Viscosity ν.")
    num_training: PositiveInt = Field(1000, description="Initial conditions to learn from.")
    num_validation: PositiveInt = Field(1000, description="Initial conditions to validate on.")
    num_times: Annotated[int, Field(ge=2)] = Field(101, description="Times of the grid, from 0 to 1.")
    num_positions: Annotated[int, Field(ge=2)] = Field(101, description="Positions of the grid, from 0 to 1.")
    num_modes: Annotated[int, Field(ge=16, multiple_of=2)] = Field(256, description="Modes of the solver.")
    time_step: PositiveFloat = Field(2.5e-3, description="Largest time step of the solver.")
    data_seed: Count = Field(0, description="Seed of the initial conditions; `seed` does not change the data.")
    data_file: str | None = Field(
        None, description="A .npz or .mat file with branch_in, trunk_in and solution, instead of generated data."
    )
    branch_width: PositiveInt = Field(100, description="Neurons per hidden layer of the branch.")
    branch_depth: PositiveInt = Field(9, description="Linear layers of the branch.")
    trunk_width: PositiveInt = Field(100, description="Neurons per hidden layer of the trunk.")
    trunk_depth: PositiveInt = Field(9, description="Linear layers of the trunk.")
    latent_size: PositiveInt = Field(100, description="Outputs of branch and trunk.")
    activation: Activation = Field("tanh", description="Nonlinearity.")
    num_waves: Count = Field(
        2, description="Harmonics of the last coordinate that the trunk sees instead of it; 0 for the bare coordinate."
    )
    period: PositiveFloat = Field(1.0, description="Period of the last coordinate.")
    noise_std: PositiveFloat = Field(0.1, description="Std of the noise in the likelihood; the data have none.")
    prior_std: PositiveFloat = Field(0.1, description="Prior std of every weight and bias.")
    model_dtype: Literal["float32", "float64"] = Field(
        "float32", description="What the networks compute in; energies are float64 in any case."
    )


class ConeConfig(Settings):
    """Wall-pressure spectra on a hypersonic cone, learnt by a DeepONet."""

    name: Literal["cone", "cone_synthetic"] = Field("cone", description="The published data, or the stand-in.")
    data_dir: str | None = Field(
        None, description="Folder with the published files; else that of VIHMC_CONE_DATA; else the stand-in is used."
    )
    num_training: PositiveInt = Field(68, description="Inputs of the stand-in to learn from.")
    num_validation: PositiveInt = Field(13, description="Inputs of the stand-in to validate on.")
    data_seed: Count = Field(0, description="Seed of the stand-in's inputs; `seed` does not change the data.")
    branch_width: PositiveInt = Field(44, description="Neurons per hidden layer of the branch.")
    branch_depth: PositiveInt = Field(6, description="Linear layers of the branch.")
    trunk_width: PositiveInt = Field(44, description="Neurons per hidden layer of the trunk.")
    trunk_depth: PositiveInt = Field(5, description="Linear layers of the trunk.")
    latent_size: PositiveInt = Field(20, description="Outputs of branch and trunk.")
    activation: Activation = Field("tanh", description="Nonlinearity.")
    noise_std: PositiveFloat = Field(5e-3, description="Std of the noise in the likelihood, in normalised units.")
    prior_std: PositiveFloat = Field(0.01, description="Prior std of every weight and bias.")
    model_dtype: Literal["float32", "float64"] = Field(
        "float32", description="What the networks compute in; energies are float64 in any case."
    )


class OwnDataConfig(Settings):
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
    hidden: tuple[PositiveInt, ...] = Field((32, 32), description="Neurons of each hidden layer.")
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
    branch_width: PositiveInt = Field(40, description="Neurons per hidden layer of the branch.")
    branch_depth: PositiveInt = Field(3, description="Linear layers of the branch.")
    trunk_width: PositiveInt = Field(40, description="Neurons per hidden layer of the trunk.")
    trunk_depth: PositiveInt = Field(3, description="Linear layers of the trunk.")
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
        "float32", description="What the networks compute in; energies are float64 in any case."
    )


ProblemConfig = SineConfig | BurgersConfig | ConeConfig | MLPConfig | DeepONetConfig
