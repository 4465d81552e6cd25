"""What every branch of the settings is: frozen, checked, and refused in one sentence."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from vihmc.config.presets import known_problems
from vihmc.errors import InputError, nearest

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Activation = Literal["tanh", "sin", "relu", "gelu", "silu"]
Names = Annotated[
    tuple[str, ...],
    Field(min_length=1),
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
]
"""One name, or a list of them."""


class Settings(BaseModel):
    """A frozen branch of the tree; unknown keys are errors that name the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    def __init__(self, **values: Any) -> None:
        """Check the values; a broken rule is an :class:`InputError` in one sentence."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InputError(_sentence(type(self), error)) from None


def _sentence(model: type[BaseModel], error: ValidationError) -> str:
    """Say the first problem of a failed validation in one sentence."""
    first = error.errors()[0]
    # Pydantic also names the kind of problem and the alternative of a union that it tried; a person did not write them.
    not_written = {*known_problems(), "float"}
    path = [str(part) for part in first["loc"] if str(part).isidentifier() and part not in not_written]
    name = ".".join(path) or model.__name__
    if first["type"] == "extra_forbidden":
        return f"`{name}` is not a known setting.{nearest(name, model.model_fields)}"
    if first["type"] == "value_error":
        cause = first["ctx"]["error"]
        # A branch has already said its sentence; what is missing is where in the tree the branch is.
        return f"`{name}.{str(cause)[1:]}" if isinstance(cause, InputError) else f"{cause}."
    if first["type"] == "union_tag_invalid":
        tag = first["ctx"]["tag"]
        names = known_problems()
        return f"`{name}.name` must be one of {', '.join(names)}, got '{tag}'.{nearest(tag, names)}"
    rule = first["msg"].removeprefix("Input should be ").replace("a valid ", "a ").replace("a integer", "an integer")
    return f"`{name}` must be {rule[0].lower() + rule[1:]}, got {_short(first['input'])}."


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
