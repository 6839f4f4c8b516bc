"""The base class of the values that the client returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, dataclass_transform

from timer_service.client.convert import adapter, describe
from timer_service.client.errors import TimerServiceError
from timer_service.core.values.duration import format_duration

if TYPE_CHECKING:
    from pydantic_core import CoreSchema


class _Open:
    """Lets a field with a fixed set of names have other texts at run time, because a newer service may add names."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> "CoreSchema":
        from pydantic_core import core_schema  # noqa: PLC0415 - see the docstring of `convert`

        return core_schema.str_schema()


_Name = TypeVar("_Name")
Open = Annotated[_Name, _Open()]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class View:
    """A value that the service returned, with aware datetimes in UTC. Fields that a newer service adds are ignored.

    Subclasses are frozen dataclasses. A field has its name in camel case on the wire, or the one in `wire`.
    """

    _wire: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, wire: Mapping[str, str] | None = None) -> None:
        cls._wire = {"tenant": "tenantId", **(wire or {})}
        cls.__pydantic_config__ = {"alias_generator": cls._wire_name, "extra": "ignore"}  # type: ignore[attr-defined]
        dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Self:
        """Return the value in an answer of the service. Raises `TimerServiceError` if the answer has another form."""
        from pydantic import ValidationError  # noqa: PLC0415 - see the docstring of `convert`

        kind: Any = cls  # mypy: a type is not known to be hashable
        try:
            found: Self = adapter(kind).validate_python(answer)
        except ValidationError as error:
            reason = f"the service sent an answer that this client cannot read: {describe(error)}"
            raise TimerServiceError(reason) from None  # the error of pydantic has the data, which may be secret
        return found

    def document(self) -> dict[str, Any]:
        """Return the value as JSON data with the field names of the messages, without fields at their default."""
        return {
            self._wire_name(each.name): _plain(value)
            for each in fields(self)  # type: ignore[arg-type]  # each subclass is a dataclass
            if (value := getattr(self, each.name)) != each.default
        }

    @classmethod
    def _wire_name(cls, name: str) -> str:
        first, *others = name.split("_")
        return cls._wire.get(name) or first + "".join(map(str.capitalize, others))


def _plain(value: Any) -> Any:
    """Return a value of a field as JSON data."""
    match value:
        case View():
            return value.document()
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case timedelta():
            return format_duration(value // timedelta(milliseconds=1))
        case Sequence() if not isinstance(value, str):
            return [_plain(each) for each in value]
        case _:
            return value
