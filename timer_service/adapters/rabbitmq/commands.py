"""Reads stored messages as commands. A stream stores them in the format of AMQP 1.0."""

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote, unquote

from rstream import amqp_decoder

from timer_service.adapters.rabbitmq.names import Names, read_key
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.codec import REPLY_TO
from timer_service.core.values.message import Position
from timer_service.core.values.raw_command import MESSAGE_ID, Headers, RawCommand, decode_text

_CORRELATION = "?"
"""Stands between a reply address and the correlation id. No address of the broker has it."""
_NO_ADDRESS = Address(Kind.COMMAND, "", "")
_RESERVED = {MESSAGE_ID, REPLY_TO}
_PASSED_ON = "x-first-death-queue"
"""A header that the broker adds to dead letters. RabbitMQ 3.13 and later store headers that begin with x- apart."""
_KEY = b"x-routing-key\xa1"
_LINE_ENDS = str.maketrans("\r\n", "  ")


def read_command(stored: bytes, names: Names, position: Position, stored_at: int) -> RawCommand:
    """Return a stored message as a command. Its address is not valid if it was not published to the exchange."""
    try:
        message = amqp_decoder(stored)
        annotations = message.message_annotations or {}
        exchange, key = (_text(annotations.get(each, b"")) for each in (b"x-exchange", b"x-routing-key"))
        headers = {_text(name): value for name, value in (message.application_properties or {}).items()}
        marks: Collection[str] = {*map(_text, annotations), *headers}
        block = _write_block(message.properties, headers)
        body = message.body if isinstance(message.body, bytes) else b""
    except Exception:  # noqa: BLE001 - a publisher of the stream protocol can store any bytes
        exchange, key, marks = "", "", ()
        block, body = b"", stored
    is_direct = was_published_to(names.exchange(Kind.COMMAND), exchange, marks)
    address = read_key(Kind.COMMAND, key) if is_direct else _NO_ADDRESS
    source = f"{exchange} {key}"
    size = len(source.encode()) + len(block) + len(body)
    return RawCommand(address, source, body, Headers(block), position, size, stored_at)


def is_of(stored: bytes, tenant: str) -> bool:
    """Return whether a stored message is of a tenant, by its routing key, which is a short text."""
    at = stored.find(_KEY)
    return at >= 0 and stored.startswith(f"{tenant}.".encode(), at + len(_KEY) + 1)


def was_published_to(wanted: str, exchange: str | None, marks: Collection[str]) -> bool:
    """Return whether a message was published to an exchange, for which the permissions of the tenant counted.

    A tenant that may create exchanges or queues can let them pass messages on, with the routing key of another one.
    `marks`: the names of its headers.
    """
    return exchange == wanted and _PASSED_ON not in marks


def write_reply_address(reply_to: str, correlation_id: str | None) -> str:
    """Return the address of replies to a client that knows them by a correlation id."""
    return f"{reply_to}{_CORRELATION}{quote(correlation_id, '').replace('.', '%2E')}" if correlation_id else reply_to


def read_reply_address(address: str) -> tuple[str, str | None]:
    """Return the routing key of a reply, and its correlation id if there is one."""
    reply_to, _, correlation_id = address.partition(_CORRELATION)
    return reply_to, unquote(correlation_id) or None


def _write_block(properties: Any, headers: Mapping[str, Any]) -> bytes:
    """Return headers as lines. The broker keeps message id and reply address as properties."""
    lines = ["AMQP/1.0"]
    if properties is not None:
        if properties.message_id is not None:
            lines.append(f"{MESSAGE_ID}: {_text(properties.message_id)}")
        if properties.reply_to is not None:
            correlation_id = properties.correlation_id
            to = write_reply_address(_text(properties.reply_to), correlation_id and _text(correlation_id))
            lines.append(f"{REPLY_TO}: {to}")
    lines += (f"{name}: {_text(value)}" for name, value in headers.items() if name not in _RESERVED)
    return "\r\n".join(lines).encode() if len(lines) > 1 else b""


def _text(value: Any) -> str:
    """Return a value of a property or a header in one line."""
    text = decode_text(value) if isinstance(value, bytes) else str(value)
    return text.translate(_LINE_ENDS) if "\n" in text or "\r" in text else text
