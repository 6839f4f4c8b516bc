"""What an attack is: blocks of protocol bytes that a tenant sends as fast as they are read or handled."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.harness.raw_nats import RawMessage
from timer_service.core.values.instant import format_instant
from timer_service.core.values.message import kebab

TENANT = "tenant-a"
LONG_AFTER = "2100-01-01T00:00:00Z"
LONG_AGO = "2020-01-01T00:00:00Z"
NUMBER = "NUMBER"
"""Stands for the number of the message, or of the turn of several messages, in bodies, headers and replies."""
SOON = "SOON"
"""Stands for an instant that is at most five seconds away, and the same for all messages of these seconds."""
_SOON_MS = 5_000


class Attack(NamedTuple):
    """What a tenant does again and again until its time is up."""

    block: Callable[[int], bytes]
    """Return the protocol bytes of a block, by its number."""
    size: int
    """How many messages a block has."""
    connections: int = 2
    opening: bytes = b""
    """What each connection sends first."""
    prepare: Sequence[RawMessage] = ()
    """Commands that the service has handled before the attack begins."""
    reads: bool = True
    """Whether the tenant reads what the server sends."""
    reconnects: bool = False
    """Whether each block is sent on a connection of its own."""
    logins: int = 0
    """How often each block has the login of its connection, which is sent before it."""
    paced: bool = False
    """Whether a connection waits for outcomes of the service: at most two blocks are not handled."""


def body(kind: str, payload: Mapping[str, Any]) -> bytes:
    """Return the body of a command of the attacking tenant."""
    text = json.dumps({"type": kind, "tenantId": TENANT, "payload": payload}, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def address(kind: str) -> bytes:
    """Return the subject of a command of the attacking tenant."""
    return f"timer.cmd.v1.{TENANT}.{kebab(kind)}".encode()


def numbered(message: RawMessage, number: int) -> RawMessage:
    """Return a message with its number and instant."""
    digits = b"%d" % number
    content, headers, reply = (
        part.replace(b"NUMBER", digits) for part in (message.body, message.headers or b"", message.reply)
    )
    if b"SOON" in content:
        now = time.time_ns() // 1_000_000
        content = content.replace(b"SOON", format_instant(now - now % _SOON_MS + _SOON_MS).encode())
    return message._replace(body=content, headers=headers or None, reply=reply)


def flood(*messages: RawMessage, size: int = 200, **options: Any) -> Attack:
    """Return the attack that sends messages in turn. `NUMBER` and `SOON` in them are replaced.

    The number is the same for all messages of a turn, so that a command can name what the one before it has made.
    """
    if not any(word in part for each in messages for part in each if part for word in (b"NUMBER", b"SOON")):
        same = b"".join(messages[each % len(messages)].encode() for each in range(size))
        return Attack(lambda _: same, size, **options)

    def block(number: int) -> bytes:
        each = range(number * size, (number + 1) * size)
        return b"".join(numbered(messages[n % len(messages)], n // len(messages)).encode() for n in each)

    return Attack(block, size, **options)


def commands(*made: tuple[str, Mapping[str, Any]], headers: bytes | None = None, **options: Any) -> Attack:
    """Return the attack that sends commands in turn. Each is given by its type and its payload."""
    return flood(*(RawMessage(address(kind), body(kind, payload), headers) for kind, payload in made), **options)


def queries(*asked: tuple[str, Mapping[str, Any]], reply: bytes = b"_INBOX.tenant-a.NUMBER", **options: Any) -> Attack:
    """Return the attack that sends queries in turn. Each is given by its name and its question."""
    messages = [
        RawMessage(f"timer.qry.v1.{TENANT}.{name}".encode(), json.dumps(question).encode(), reply=reply)
        for name, question in asked
    ]
    return flood(*messages, **options)
