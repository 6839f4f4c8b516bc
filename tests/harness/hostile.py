"""Hostile messages: every kind of message that a tenant may publish to a command subject and that is no command."""

import json
import random
from collections.abc import Callable, Iterator, Mapping

from tests.harness.raw_nats import RawMessage, header_block

MAX_PAYLOAD = 1024 * 1024
_SUBJECT = b"timer.cmd.v1.evil.schedule-timer"
_INBOX = b"_INBOX.evil.1"


def _valid(number: int, **envelope: object) -> bytes:
    payload = {"tenantId": "evil", "serviceCallId": f"call-{number}", "dueAt": "2999-01-01T00:00:00Z"}
    return json.dumps({"type": "ScheduleTimer", "tenantId": "evil", "payload": payload, **envelope}).encode()


def _with_headers(*lines: bytes, body: bytes = b"", reply: bytes = b"") -> Callable[[int], RawMessage]:
    headers = header_block(*lines)
    return lambda _: RawMessage(_SUBJECT, body, headers, reply)


def _with_body(body: bytes) -> Callable[[int], RawMessage]:
    return lambda _: RawMessage(_SUBJECT, body)


def _with_subject(end: bytes, tenant: bytes = b"evil") -> Callable[[int], RawMessage]:
    return lambda number: RawMessage(b"timer.cmd.v1.%b.%b" % (tenant, end), _valid(number))


_FIELDS = b"{" + b",".join(b'"%d":0' % number for number in range(100_000)) + b"}"


KINDS: Mapping[str, Callable[[int], RawMessage]] = {
    "status 404": _with_headers(b"Status: 404"),
    "status 409": _with_headers(b"Status: 409", b"Description: Consumer Deleted"),
    "status line 503": lambda _: RawMessage(_SUBJECT, b"", b"NATS/1.0 503\r\n\r\n"),
    "status of words": _with_headers(b"Status: x"),
    "subject not UTF-8": _with_subject(b"\xff"),
    "subject with a vertical tab": _with_subject(b"schedule\x0btimer"),
    "subject with NUL": _with_subject(b"schedule\x00timer"),
    "subject of 3,900 bytes": _with_subject(b"x" * 3_900),
    "headers not UTF-8": _with_headers(b"X: \xff\xfe"),
    "header without a name": _with_headers(b": c"),
    "header without a colon": _with_headers(b"colon"),
    "header block without an end": lambda _: RawMessage(_SUBJECT, b"{}", b"NATS/1.0\r\n"),
    "message id of bytes": lambda number: RawMessage(_SUBJECT, b"", header_block(b"Nats-Msg-Id: \xff%d" % number)),
    "reply to an event": _with_headers(b"Timer-Reply-To: timer.evt.v1.good.due-time-reached"),
    "expected sequence": _with_headers(b"Nats-Expected-Last-Sequence: 1"),
    "empty": _with_body(b""),
    "not JSON": _with_body(b"{"),
    "not UTF-8": _with_body(b'{"type":"\xff"}'),
    "a list": _with_body(b"[]"),
    "lone surrogate": _with_body(_valid(0).replace(b"call-0", b"\\ud800")),
    "wrong tenant": lambda number: RawMessage(_SUBJECT, _valid(number).replace(b"evil", b"good")),
    "wrong type": lambda number: RawMessage(b"timer.cmd.v1.evil.cancel-timer", _valid(number)),
    "unknown type": lambda _: RawMessage(b"timer.cmd.v1.evil.x", b'{"type":"X","tenantId":"evil","payload":{}}'),
}
"""Small messages. Some are valid commands, and the server does not store all of them."""

LARGE_KINDS: Mapping[str, Callable[[int], RawMessage]] = {
    "headers of 60 KiB": _with_headers(b"X: " + b"x" * 60 * 1024),
    "10,000 headers": _with_headers(*(b"a:b" for _ in range(10_000))),
    "body of max_payload": _with_body(b"x" * MAX_PAYLOAD),
    "100,000 nested lists": _with_body(b"[" * 100_000),
    "an array of 500,000": _with_body(b"[" + b"0," * 499_999 + b"0]"),
    "unknown fields": _with_body(_FIELDS),
    "170,000 times the same field": _with_body(b"{" + b'"":0,' * 170_000 + b'"":0}'),
}
"""Messages that are costly to store or to read."""


def flood(kinds: Mapping[str, Callable[[int], RawMessage]], each: int) -> Iterator[RawMessage]:
    """Yield `each` messages of every kind, in turn."""
    for number in range(each):
        for make in kinds.values():
            yield make(number)


def fuzz(seed: int, count: int) -> Iterator[RawMessage]:
    """Yield random messages to command subjects: bytes, headers, subjects, and valid messages with changed bytes.

    One in 2,000 has up to `MAX_PAYLOAD` bytes.
    """
    rng = random.Random(seed)
    makers = list(KINDS.values())
    for number in range(count):
        message = rng.choice(makers)(number)
        if rng.random() < 0.3:
            message = message._replace(body=_mutate(rng, message.body or _valid(number)))
        if rng.random() < 0.2:
            message = message._replace(headers=header_block(*(_header(rng) for _ in range(rng.randrange(5)))))
        if rng.random() < 0.1:
            token = bytes(rng.choice(_SUBJECT_BYTES) for _ in range(rng.randint(1, 60)))
            message = message._replace(subject=b"timer.cmd.v1.%b.%b" % (rng.choice([b"evil", b"e"]), token))
        if number % 2_000 == 1_999:
            message = message._replace(body=rng.randbytes(rng.randrange(MAX_PAYLOAD - 100_000)))
        yield message


_SUBJECT_BYTES = bytes(set(range(1, 256)) - set(b" \t\r\n.*>"))
_HEADER_NAMES = [b"Status", b"Description", b"Nats-Msg-Id", b"Timer-Reply-To", b"traceparent", b"X", b"a/b", b""]


def _header(rng: random.Random) -> bytes:
    value = bytes(byte for byte in rng.randbytes(rng.randrange(30)) if byte not in b"\r\n")
    return rng.choice(_HEADER_NAMES) + rng.choice([b": ", b":", b""]) + value


def _mutate(rng: random.Random, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(changed) + 1)
        changed[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
    return bytes(changed)
