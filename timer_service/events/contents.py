"""What lists show of a stored event, without its whole body."""

from collections.abc import Mapping
from typing import NamedTuple

from pydantic_core import from_json

HEAD = 4000
"""How many characters of a stored event are read for a list."""
_MAX_TEXT = 200


class Contents(NamedTuple):
    """The type of an event, and the short texts at the start of its payload."""

    event_type: str
    about: Mapping[str, str]


def read_contents(head: str) -> Contents:
    """Return what is shown of the beginning of a stored event; nothing if it cannot be read."""
    try:
        event = from_json(head, allow_partial=True)
        event_type, payload = event["type"], event["payload"].items()
    except (ValueError, LookupError, TypeError, AttributeError):
        return Contents("", {})
    texts = {name: value for name, value in payload if isinstance(value, str)}
    about = {name: text for name, text in texts.items() if name != "tenantId" and len(text) <= _MAX_TEXT}
    return Contents(event_type, about)
