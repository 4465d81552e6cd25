"""The base class of all settings: frozen, validated, and refused in one sentence."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from vihmc.errors import InputError, nearest

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Seconds = Annotated[PositiveFloat, BeforeValidator(lambda value: parse_seconds(value))]
"""A time in seconds, or in words such as '90s', '10m' or '1h30m'."""
Activation = Literal["tanh", "sin", "relu", "gelu", "silu"]
Widths = tuple[PositiveInt, ...]
"""Neurons of each hidden layer; none for a linear map."""
Names = Annotated[
    tuple[str, ...],
    Field(min_length=1),
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
]
"""One name, or a list of them."""


def parse_seconds(value: Any) -> Any:
    """Turn '1h30m' into 5400.0; whatever is no such word stays as it is."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", value) if isinstance(value, str) and value else None
    if found is None:
        return value
    return sum(float(number or 0) * unit for number, unit in zip(found.groups(), (3600, 60, 1), strict=True))


Section = TypeVar("Section", bound="Settings")


class Settings(BaseModel):
    """One section of the settings. Unknown keys are errors that name the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    def __init__(self, **values: Any) -> None:
        """Validate the values; a broken rule is an :class:`InputError` in one sentence."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InputError(_sentence(type(self), error)) from None

    def __repr__(self) -> str:
        """Those that differ from their defaults."""
        changed = [
            f"{name}={getattr(self, name)!r}"
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != field.get_default()
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __str__(self) -> str:
        """The same."""
        return repr(self)

    def model_copy(self: Section, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Section:
        """Return the same settings with some values changed; unlike pydantic's own, it validates the result."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**given | dict(update or {}))


class ProblemSettings(Settings):
    """Settings of a problem, which say by their name which one it is."""

    name: str


def _sentence(model: type[BaseModel], error: ValidationError) -> str:
    """Say the first problem of a failed validation in one sentence."""
    first = error.errors()[0]
    # Pydantic also names the alternative of a union that it tried, which nobody wrote.
    path = [str(part) for part in first["loc"] if str(part).isidentifier() and part != "float"]
    name = ".".join(path) or model.__name__
    if first["type"] == "extra_forbidden":
        *section, unknown = map(str, first["loc"])  # whatever was written, which may be no identifier
        name = ".".join([*section, unknown])
        return f"`{name}` is not a known setting.{nearest(unknown, _fields_at(model, section))}"
    if first["type"] == "value_error":
        cause = first["ctx"]["error"]
        # A section has already said its sentence; what is missing is where in the tree the section is.
        return f"`{name}.{str(cause)[1:]}" if isinstance(cause, InputError) else f"{cause}."
    rule = first["msg"].removeprefix("Input should be ").replace("a valid ", "a ").replace("a integer", "an integer")
    return f"`{name}` must be {rule[0].lower() + rule[1:]}, got {_short(first['input'])}."


def _fields_at(model: type[BaseModel], path: list[str]) -> Mapping[str, Any]:
    for part in path:
        model = model.model_fields[part].annotation  # pyrefly: ignore[bad-assignment]
    return model.model_fields


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
