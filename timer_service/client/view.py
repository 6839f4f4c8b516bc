"""The base class of the values that the client returns, and the types of their fields."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic_core import core_schema

from timer_service.client.convert import describe
from timer_service.client.errors import TimerServiceError
from timer_service.core.values.duration import format_duration


def _to_utc(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("must be between 0001-01-01 and 9999-12-31 (UTC)") from error


def _write_instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write_duration(duration: timedelta) -> str:
    return format_duration(duration // timedelta(milliseconds=1))


class _Open:
    """Lets a field with a fixed set of names have other texts at run time, because a newer service may add names."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        return core_schema.str_schema()


_Name = TypeVar("_Name")
Open = Annotated[_Name, _Open()]
Instant = Annotated[AwareDatetime, AfterValidator(_to_utc), PlainSerializer(_write_instant, when_used="json")]
Duration = Annotated[timedelta, PlainSerializer(_write_duration, when_used="json")]
TenantId = Annotated[str, Field(alias="tenantId")]


class View(BaseModel):
    """A value that the service returned. Fields that a newer service adds are ignored."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,  # a program may log the error, and the input has its data
    )

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Self:
        """Return the value in an answer of the service. Raises `TimerServiceError` if the answer has another form."""
        try:
            return cls.model_validate(answer)
        except ValidationError as error:
            reason = describe(error)
            raise TimerServiceError(f"the service sent an answer that this client cannot read: {reason}") from error

    def document(self) -> dict[str, Any]:
        """Return the value as JSON data with the field names of the messages, without fields at their default."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
