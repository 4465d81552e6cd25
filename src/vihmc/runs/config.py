"""The settings of a whole run: the method, the problem, and the runs for comparison."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from vihmc.config.files import merge, parse_override, with_unset
from vihmc.config.method import DerivedSampler, MethodConfig, PredictionConfig, SamplerConfig
from vihmc.config.settings import Count, PositiveInt, ProblemSettings
from vihmc.data.registry import kind_of, preset_settings
from vihmc.errors import InputError


class ReferenceConfig(DerivedSampler):
    """HMC on all parameters, for comparison. Settings that are not given are those of `hmc`."""

    enabled: bool = Field(False, description="Whether to run HMC on all parameters.")


class LeaveOutConfig(DerivedSampler):
    """Leave-out runs: predict training inputs from a run without them. Settings not given are those of `hmc`."""

    num_folds: Count = Field(
        0, description="Groups of training inputs that are left out in turn; 0 for no leave-out runs."
    )


def _problem_settings(value: Any) -> ProblemSettings:
    """Turn a table into the settings of the problem it names."""
    if isinstance(value, ProblemSettings):
        return value
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise InputError(f"`name` must be given, got {value!r}. It is the problem to run.")
    return kind_of(value["name"]).settings(**value)


class RunConfig(MethodConfig):
    """A whole run."""

    reference: ReferenceConfig = ReferenceConfig()
    leave_out: LeaveOutConfig = LeaveOutConfig()
    prediction: PredictionConfig = PredictionConfig()
    preset: str = Field("default", description="The preset that the settings are based on; set by the command.")
    precision: Literal["float32", "float64"] = Field("float64", description="Floating-point format.")
    num_cores: PositiveInt | None = Field(None, description="Cores to distribute chains over; all if not given.")
    problem: Annotated[SerializeAsAny[ProblemSettings], BeforeValidator(_problem_settings)]

    @property
    def reference_sampler(self) -> SamplerConfig:
        """Settings of HMC on all parameters."""
        return self.reference.derived_from(self.hmc)

    @property
    def leave_out_sampler(self) -> SamplerConfig:
        """Settings of the chains of a fold."""
        return self.leave_out.derived_from(self.hmc)


def build_config(*layers: Mapping[str, Any], overrides: Iterable[str] = ()) -> RunConfig:
    """Merge nested dicts from left to right, then ``section.key=value`` overrides, and validate the whole."""
    return RunConfig(**with_unset(merge(*layers, *map(parse_override, overrides))))


def load_preset(problem: str, preset: str = "default") -> dict[str, Any]:
    """The settings of a preset of a problem, as a nested dict."""
    return preset_settings(problem, preset)
