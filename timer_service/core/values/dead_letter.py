"""The dead letter of a rejected command. A broker can store it whatever the subject, headers and size are."""

import json
import re
from collections.abc import Mapping

from timer_service.core.values.address import BODY_OMITTED, TENANT_PATTERN, UNREADABLE, Address, Kind
from timer_service.core.values.errors import Rejection
from timer_service.core.values.message import Message
from timer_service.core.values.raw_command import Headers, RawCommand

ORIGINAL_HEADERS = "Timer-Original-Headers"
HEADERS_OMITTED = "Timer-Headers-Omitted"

_MAX_TEXT = 1000
_MAX_ORIGINAL = 60_000  # JetStream refuses 64 KiB of headers
_ADDED_HEADERS = 1000
_MESSAGE = re.compile(r"[a-z0-9-]{1,64}")
_UNPRINTABLE = re.compile(r"[^ -~]")


def dead_letter(raw: RawCommand, rejection: Rejection, max_bytes: int) -> Message:
    """Return the whole command with the rejection in its headers. Omit headers or body if they do not fit.

    A body that was left in the log is not read for this. What is omitted stays in the command stream until it expires,
    and the dead letter has its sequence there.
    """
    headers = {
        "Timer-Error-Code": str(rejection.code),
        "Timer-Error-Message": _one_line(rejection.message),
        "Timer-Source-Subject": printable(raw.source).strip(),
        "Timer-Source-Sequence": str(raw.position.sequence),
        **_original_headers(raw.headers),
    }
    if raw.left_bytes or len(raw.body) + _size(headers) > max_bytes:
        return _message(raw, b"", {**headers, BODY_OMITTED: "true"})
    return _message(raw, raw.body, headers)


def printable(text: str, longest: int = _MAX_TEXT) -> str:
    """Return text as printable ASCII of at most `longest` characters. Others become escapes as in Python."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text[:longest])[:longest]


def _message(raw: RawCommand, body: bytes, headers: Mapping[str, str]) -> Message:
    """Return a dead letter. Names that cannot be part of an address are replaced in it."""
    tenant, message = raw.address.tenant, raw.address.message
    address = Address(
        Kind.DEAD_LETTER,
        tenant if re.fullmatch(TENANT_PATTERN, tenant) else UNREADABLE,
        message if _MESSAGE.fullmatch(message) else UNREADABLE,
    )
    return Message(address, f"dlq-{raw.position.epoch}-{raw.position.sequence}", body, headers)


def _original_headers(headers: Headers) -> dict[str, str]:
    """Return the command's headers in one header: a JSON object in ASCII with the array of the values of each name.

    Without headers, nothing. If they are too long for one header, only a header that says so.
    """
    values: dict[str, list[str]] = {}
    for name, value in headers.items():
        values.setdefault(name, []).append(value)
    if not values:
        return {}
    text = json.dumps(values, separators=(",", ":"))
    return {ORIGINAL_HEADERS: text} if len(text) <= _MAX_ORIGINAL else {HEADERS_OMITTED: "true"}


def _size(headers: Mapping[str, str]) -> int:
    """Return the bytes of headers on the wire, with room for headers that a broker adapter adds."""
    lines = (f"{name}: {value}\r\n".encode(errors="replace") for name, value in headers.items())
    return _ADDED_HEADERS + sum(map(len, lines))


def _one_line(text: str) -> str:
    """Return the beginning of a text, with spaces for characters that would end a header. It may quote the sender."""
    return "".join(each if each.isprintable() else " " for each in text[:_MAX_TEXT]).strip()
