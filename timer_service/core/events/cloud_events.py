"""The attributes of CloudEvents 1.0 as headers of events: binary content mode. The data is the body.

A header has printable ASCII. Other characters, spaces, quotation marks and percent signs are percent-encoded.
"""

import re
import string
from typing import Any
from urllib.parse import quote

from pydantic_core import from_json

from timer_service.core.values.address import Address, Kind, kebab
from timer_service.core.values.instant import LATEST, format_instant
from timer_service.core.values.message import Message

_USUAL = re.compile(rb'\{"id":"([\w.:/-]+)","type":"([\w.]+)",.*?"timestampMs":([0-9]{1,14}),"payload":', re.DOTALL)
"""How the body of an event begins, as `encode_event` writes it. No text in JSON has such a `"timestampMs":`, because it
has no quotation marks without a backslash."""
_UNCHANGED = string.punctuation.translate({ord('"'): None, ord("%"): None})


def describe(message: Message) -> Message:
    """Return an event with the attributes in its headers, or the message if it is no event."""
    address, headers = message.address, message.headers
    if address.kind is not Kind.EVENT:
        return message
    event_id, message_type, at = _read(address, message.body)
    attributes = {
        "ce-specversion": "1.0",
        "ce-id": event_id,
        "ce-type": message_type,
        "ce-source": f"timer-service/{address.tenant}",
        **({"ce-time": format_instant(at)} if isinstance(at, int) and 0 <= at <= LATEST else {}),
        "ce-datacontenttype": "application/json",
    }
    return message._replace(headers={**headers, **attributes})


def _read(address: Address, body: bytes) -> tuple[str, str, object]:
    """Return the id and the type of an event, as a header has them, and its `timestampMs`."""
    usual = _USUAL.match(body)
    if usual is not None and kebab(message_type := usual[2].decode()) == address.message:
        return usual[1].decode(), message_type, int(usual[3])
    # Its id has other characters, or the body is that of an event of another address.
    envelope: dict[str, Any] = from_json(body)
    return quote(envelope["id"], _UNCHANGED), quote(envelope["type"], _UNCHANGED), envelope.get("timestampMs")
