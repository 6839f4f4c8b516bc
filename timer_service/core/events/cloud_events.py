"""The attributes of CloudEvents 1.0 as headers of events: binary content mode. The data is the body.

A header has printable ASCII. Other characters, spaces, quotation marks and percent signs are percent-encoded.
"""

import string
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pydantic_core import from_json

from timer_service.core.values.address import Kind
from timer_service.core.values.instant import LATEST, format_instant
from timer_service.core.values.message import Message

_PAYLOAD = b',"payload":'
_UNCHANGED = string.punctuation.translate({ord('"'): None, ord("%"): None})


def describe(message: Message) -> Message:
    """Return an event with the attributes in its headers, or the message if it is no event."""
    address, headers = message.address, message.headers
    if address.kind is not Kind.EVENT:
        return message
    envelope = _read_envelope(message.body)
    at = envelope.get("timestampMs")
    attributes = {
        "ce-specversion": "1.0",
        "ce-id": quote(envelope["id"], _UNCHANGED),
        "ce-type": quote(envelope["type"], _UNCHANGED),
        "ce-source": f"timer-service/{address.tenant}",
        **({"ce-time": format_instant(at)} if isinstance(at, int) and 0 <= at <= LATEST else {}),
        "ce-datacontenttype": "application/json",
    }
    return message._replace(headers={**headers, **attributes})


def _read_envelope(body: bytes) -> Mapping[str, Any]:
    """Return the fields of an event before its payload, which comes last and may be large."""
    head, _, _ = body.partition(_PAYLOAD)  # no text in JSON has it: a quotation mark in a text has a backslash
    try:
        envelope: Mapping[str, Any] = from_json(head + b"}")
    except ValueError:  # another field has a field of this name
        envelope = from_json(body)
    return envelope
