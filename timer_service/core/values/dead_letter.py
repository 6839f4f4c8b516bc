"""The dead letter of a rejected command. A broker can store it whatever the subject, headers and size are."""

import json
import re
from collections.abc import Iterable, Mapping
from itertools import islice

from timer_service.core.values.errors import Rejection
from timer_service.core.values.message import TENANT_PATTERN, Address, Kind, Message, Position
from timer_service.core.values.raw_command import Headers, RawCommand
from timer_service.core.values.visible import escape_character

UNREADABLE = "~unreadable"
"""The part of an address that stands for a tenant or a message that cannot be part of one. No tenant has this name."""
ORIGINAL_HEADERS = "Timer-Original-Headers"
HEADERS_OMITTED = "Timer-Headers-Omitted"
BODY_OMITTED = "Timer-Body-Omitted"

_MAX_TEXT = 1000
_MAX_HEADERS = 60_000  # JetStream refuses 64 KiB
_MOST_HEADERS = 100
"""A tiny header takes as much time and memory as one of 100 bytes, and 64 KiB have room for 10,000 of them."""
_ADDED_HEADERS = 1000
_MESSAGE = re.compile(r"[a-z0-9-]{1,64}")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}")
_VALUE = re.compile(r"([!-~]([ -~]*[!-~])?)?")  # the driver removes spaces at both ends
_UNPRINTABLE = re.compile(r"[^ -~]")
_OWN = ("timer-error-", "timer-source-", "timer-original-", "timer-headers-omitted", "timer-body-omitted")
_STATUS = {"status", "description"}
"""In a message without a body, these headers look like a status of the broker."""


def dead_letter(raw: RawCommand, rejection: Rejection, max_bytes: int) -> Message:
    """Return the whole command with the rejection in its headers. Omit headers or body if they do not fit.

    The omitted part stays in the command stream until it expires. The dead letter has its sequence in the stream.
    """
    reasons = _reasons(raw, rejection)
    originals = _original_headers(raw.headers)
    headers = {HEADERS_OMITTED: "true", **reasons} if originals is None else {**originals, **reasons}
    if raw.left_bytes or len(raw.body) + _size(headers.items()) > max_bytes:
        return _message(raw, b"", {**headers, BODY_OMITTED: "true"})
    return _message(raw, raw.body, headers)


def letter_id(position: Position) -> str:
    """Return the id of the dead letter of the command at a position."""
    return f"dlq-{position.epoch}-{position.sequence}"


def printable(text: str, longest: int = _MAX_TEXT) -> str:
    """Return text as printable ASCII of at most `longest` characters. Others become escapes as in Python."""
    return _UNPRINTABLE.sub(lambda found: escape_character(found[0]), text[:longest])[:longest]


def _message(raw: RawCommand, body: bytes, headers: Mapping[str, str]) -> Message:
    tenant, message = raw.address.tenant, raw.address.message
    address = Address(
        Kind.DEAD_LETTER,
        tenant if re.fullmatch(TENANT_PATTERN, tenant) else UNREADABLE,
        message if _MESSAGE.fullmatch(message) else UNREADABLE,
    )
    return Message(address, letter_id(raw.position), body, headers)


def _reasons(raw: RawCommand, rejection: Rejection) -> dict[str, str]:
    return {
        "Timer-Error-Code": str(rejection.code),
        "Timer-Error-Message": _one_line(rejection.message),
        "Timer-Source-Subject": printable(raw.source).strip(),
        "Timer-Source-Sequence": str(raw.position.sequence),
    }


def _original_headers(headers: Headers) -> dict[str, str] | None:
    """Return the command's headers as the dead letter carries them, or None if they are too large or too many.

    A header that a broker could refuse, change or misunderstand goes into one header, as JSON. A header that occurs
    several times does too, with a list of its values: a message has each name once.
    """
    found = list(islice(headers.items(), _MOST_HEADERS + 1))
    if len(found) > _MOST_HEADERS or _size(found) > _MAX_HEADERS:
        return None
    values: dict[str, list[str]] = {}
    for name, value in found:
        values.setdefault(name, []).append(value)
    kept: dict[str, str] = {}
    others: dict[str, str | list[str]] = {}
    for name, (value, *more) in values.items():
        if more:
            others[name] = [value, *more]
        elif not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)) or _is_misleading(name.lower()):
            others[name] = value
        elif name.lower().startswith("nats-"):  # it would change how the broker stores the dead letter
            kept[f"Timer-Original-{name}"] = value
        else:
            kept[name] = value
    if others:
        kept[ORIGINAL_HEADERS] = json.dumps(others, separators=(",", ":")).replace("\x7f", "\\u007f")
    return kept if _size(kept.items()) <= _MAX_HEADERS else None


def _is_misleading(name: str) -> bool:
    return name.startswith(_OWN) or name in _STATUS


def _size(headers: Iterable[tuple[str, str]]) -> int:
    """Return the bytes of headers on the wire, with room for headers that a broker adapter adds."""
    return _ADDED_HEADERS + sum(len(f"{name}: {value}\r\n".encode(errors="replace")) for name, value in headers)


def _one_line(text: str) -> str:
    """Replace characters that would end a header. The text may quote the sender."""
    text = text[:_MAX_TEXT]
    return (text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)).strip()
