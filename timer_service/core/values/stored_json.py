"""Stored JSON text in messages. It is copied: a parsed text needs up to 24 times its size, and time for each value."""

import re
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring
from typing import Any

from pydantic_core import SchemaSerializer, core_schema, from_json, to_json

from timer_service.core.values.errors import DamagedDataError

quote = encode_basestring
"""Returns a text as a JSON string, as `to_json` writes it."""

_ENDS = frozenset(["{}", "[]"])
_SCALAR = re.compile(r'".*"|-?[0-9][0-9.eE+-]*|true|false|null', re.DOTALL)


class RawJson:
    """A JSON text that becomes part of a message as it is. `to_json` can write it too, but parses it first."""

    __slots__ = ("text",)
    __pydantic_serializer__ = SchemaSerializer(
        core_schema.any_schema(
            serialization=core_schema.plain_serializer_function_ser_schema(lambda raw: from_json(raw.text))
        )
    )

    def __init__(self, text: str) -> None:
        self.text = text

    def encode(self) -> bytes:
        """Return the text as UTF-8."""
        return self.text.encode()


def check_stored(text: str) -> str:
    """Return a text that `dump_data` wrote, for use in a message. Raises `DamagedDataError` if it is visibly damaged.

    Only the ends of the text are compared with each other. This finds a truncated text, at a cost that does not depend
    on its length. Other damage is not found: the text was valid when it was stored.
    """
    if text[:1] + text[-1:] in _ENDS or _SCALAR.fullmatch(text):
        return text
    raise DamagedDataError(f"the stored JSON is damaged; it has {len(text)} characters")


def read_stored(text: str | None) -> RawJson | None:
    """Return a stored text for use in a message, or None for None. Raises as `check_stored`."""
    return None if text is None else RawJson(check_stored(text))


def write_view(fields: Mapping[str, Any], stored: Mapping[str, str | None]) -> RawJson:
    """Return the JSON object with `fields`, and then those of the `stored` texts that are not None.

    Raises as `check_stored`.
    """
    return write_object(fields, {name: read_stored(text) for name, text in stored.items()})


def write_object(fields: Mapping[str, Any], raw: Mapping[str, RawJson | None]) -> RawJson:
    """Return the JSON object with `fields` and then the fields of `raw` that are not None."""
    parts = [f"{quote(name)}:{each.text}" for name, each in raw.items() if each is not None]
    if fields:
        parts.insert(0, to_json(fields).decode()[1:-1])  # without the braces
    return RawJson("{" + ",".join(parts) + "}")


def write_list(items: Iterable[RawJson]) -> RawJson:
    """Return the JSON list of `items`."""
    return RawJson(f"[{','.join([each.text for each in items])}]")


def write(value: Mapping[str, Any] | RawJson) -> RawJson:
    """Return the JSON of an object that may be written already."""
    return value if isinstance(value, RawJson) else RawJson(to_json(value).decode())


def omit_none(**fields: Any) -> Mapping[str, Any]:
    """Return the fields that are not None. A message omits a field whose value is not known."""
    return {name: value for name, value in fields.items() if value is not None}
