"""The settings of the paper's experiments, with their defaults."""

from typing import Annotated, Literal

from pydantic import Field

from vihmc.config.settings import Count, PositiveFloat, PositiveInt, ProblemSettings, Widths


class SineConfig(ProblemSettings):
    """A sum of two sines, learnt by a small network from points with a gap in the middle."""

    name: Literal["sine_small", "sine_large"] = Field("sine_small", description="Which of the two problems.")
    num_points: Annotated[int, Field(ge=2)] = Field(20, description="Training points, half on either side of the gap.")
    num_validation: Annotated[int, Field(ge=2)] = Field(300, description="Points of the validation grid.")
    noise_std: PositiveFloat = Field(1e-3, description="Std of the noise, in the data and in the likelihood.")
    prior_std: PositiveFloat = Field(1.0, description="Prior std of every weight and bias.")
    scales: Literal["known", "learnt"] = Field(
        "known",
        description="Whether the likelihood has `noise_std` and the prior `prior_std`, as in the paper, or both are "
        "learnt.",
    )
    data_seed: Count = Field(0, description="Seed of the noise in the data; `seed` does not change the data.")


class BurgersConfig(ProblemSettings):
    """The solution operator of the Burgers equation, learnt by a DeepONet; or an operator from a file."""

    name: Literal["burgers"] = Field("burgers", description="The problem.")
    field: Literal["pi_deeponet", "fno"] = Field(
        "pi_deeponet", description="Distribution of the initial conditions, named after the code that generates it."
    )
    viscosity: PositiveFloat = Field(0.01, description="Viscosity ν.")
    num_training: PositiveInt = Field(1000, description="Initial conditions to learn from.")
    num_validation: PositiveInt = Field(1000, description="Initial conditions to validate on.")
    num_times: Annotated[int, Field(ge=2)] = Field(101, description="Times of the grid, from 0 to 1.")
    num_positions: Annotated[int, Field(ge=2)] = Field(101, description="Positions of the grid, from 0 to 1.")
    num_modes: Annotated[int, Field(ge=16, multiple_of=2)] = Field(
        256, description="Modes of the solver; its time step is 0.64 / modes."
    )
    data_seed: Count = Field(0, description="Seed of the initial conditions; `seed` does not change the data.")
    data_file: str | None = Field(
        None, description="A .npz or .mat file with branch_in, trunk_in and solution, instead of generated data."
    )
    branch_hidden: Widths = Field((100,) * 8, description="Neurons of each hidden layer of the branch.")
    trunk_hidden: Widths = Field((100,) * 8, description="Neurons of each hidden layer of the trunk.")
    latent_size: PositiveInt = Field(100, description="Outputs of branch and trunk.")
    noise_std: PositiveFloat | None = Field(
        0.1, description="Std of the noise in the likelihood; the data have none. 'none' to learn it."
    )
    prior_std: PositiveFloat | None = Field(0.1, description="Prior std of every weight and bias; 'none' to learn it.")


class ConeConfig(ProblemSettings):
    """Wall-pressure spectra on a hypersonic cone, learnt by a DeepONet."""

    name: Literal["cone", "cone_synthetic"] = Field(
        "cone", description="The published data, or the synthetic stand-in."
    )
    data_dir: str | None = Field(
        None,
        description="Folder with the published files; else that of VIHMC_CONE_DATA; else the stand-in is used.",
    )
    num_training: PositiveInt = Field(68, description="Inputs of the stand-in to learn from.")
    num_validation: PositiveInt = Field(13, description="Inputs of the stand-in to validate on.")
    data_seed: Count = Field(0, description="Seed of the stand-in's inputs; `seed` does not change the data.")
    branch_hidden: Widths = Field((44,) * 5, description="Neurons of each hidden layer of the branch.")
    trunk_hidden: Widths = Field((44,) * 4, description="Neurons of each hidden layer of the trunk.")
    latent_size: PositiveInt = Field(20, description="Outputs of branch and trunk.")
    noise_std: PositiveFloat | None = Field(
        5e-3, description="Std of the noise in the likelihood, in normalised units; 'none' to learn it."
    )
    prior_std: PositiveFloat | None = Field(0.01, description="Prior std of every weight and bias; 'none' to learn it.")
