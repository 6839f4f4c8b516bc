"""Fields of messages that are durations."""

from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from timer_service.core.values.duration import LONGEST_MS, format_duration, parse_duration

_SCHEMA_PATTERN = (
    r"^P(?=[0-9]|T[0-9])([0-9]{1,12}W)?([0-9]{1,12}D)?"
    r"(T(?=[0-9])([0-9]{1,12}H)?([0-9]{1,12}M)?([0-9]{1,12}(\.[0-9]{1,3})?S)?)?$"
)


def parse_between(least: int, most: int, for_months: str = "") -> BeforeValidator:
    """Return the validator of a field that is a duration from `least` to `most` milliseconds.

    `for_months` ends the error of another text: what to write for months and years, which have no fixed length.
    """

    def parse(value: object) -> int:
        try:
            found = parse_duration(value)
        except ValueError as error:
            raise PydanticCustomError("duration", "{reason}", {"reason": f"{error}{for_months}"}) from error
        if not least <= found <= most:
            bounds = {"least": format_duration(least), "most": format_duration(most)}
            raise PydanticCustomError("duration", "must be from {least} to {most}", bounds)
        return found

    return BeforeValidator(parse)


def schema_between(least: int, most: int) -> WithJsonSchema:
    """Return the JSON schema of a field that is a duration from `least` to `most` milliseconds."""
    integer = {"type": "integer", "minimum": least, "maximum": most}
    return WithJsonSchema({"anyOf": [{"type": "string", "pattern": _SCHEMA_PATTERN}, integer]})


WRITE_DURATION = PlainSerializer(format_duration)
Duration = Annotated[int, parse_between(0, LONGEST_MS), WRITE_DURATION, schema_between(0, LONGEST_MS)]
"""A field that is a duration of at most 366 days."""
