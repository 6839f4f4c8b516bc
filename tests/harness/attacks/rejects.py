"""Attacks with commands that the service or the stream refuses."""

from collections.abc import Mapping

from tests.harness.attacks.attack import LONG_AFTER, Attack, address, body, commands, flood
from tests.harness.raw_nats import RawMessage, header_block

MIB = 1024 * 1024
_SUBJECT = address("ScheduleTimer")
_VALID = body("ScheduleTimer", {"serviceCallId": "call-NUMBER", "dueAt": LONG_AFTER})
_INBOX = b"_INBOX.tenant-a.any"


def _with_body(content: bytes, size: int = 200, kind: str = "ScheduleTimer") -> Attack:
    return flood(RawMessage(address(kind), content), size=size)


def _with_headers(*lines: bytes, content: bytes = _VALID, size: int = 200, reply: bytes = b"") -> Attack:
    return flood(RawMessage(_SUBJECT, content, header_block(*lines), reply), size=size)


_FIELDS = b"{" + b",".join(b'"%d":0' % number for number in range(100_000)) + b"}"
_PAYLOAD = b'{"type":"ScheduleTimer","tenantId":"tenant-a","payload":%b}'
_OBJECTS = b'{"data":[' + b",".join(b'{"%d":0}' % number for number in range(80_000)) + b"]}"
_NEEDS = b'{"type":"StartRun","tenantId":"tenant-a","payload":{"runId":"run","jobs":[{"name":"job","needs":[%b0]}]}}'
_REPLIES = (
    b"_INBOX.tenant-b.guessed",
    b"_INBOX.tenant-a..",
    b"_INBOX.tenant-a.>",
    b"timer.evt.v1.tenant-b.due-time-reached",
    b"$JS.API.STREAM.DELETE.TIMER_CMD",
    b"_INBOX.tenant-a." + b"x" * 3_000,
    b"_INBOX.\xff",
)

REJECTS: Mapping[str, Attack] = {
    "empty messages": _with_body(b""),
    "headers without a body": _with_headers(b"X: y", content=b""),
    "status headers": _with_headers(b"Status: 409", b"Description: Consumer Deleted", content=b""),
    "no JSON": _with_body(b"{"),
    "bodies of max_payload": _with_body(b"x" * MIB, 4),
    "bodies of max_payload with headers": _with_headers(b"X: y", content=b" " * (MIB - 100), size=4),
    "100,000 nested lists": _with_body(b"[" * 100_000, 20),
    "100,000 nested objects": _with_body(b'{"a":' * 100_000, 10),
    "an array of 500,000": _with_body(b"[" + b"0," * 499_999 + b"0]", 4),
    "needs of numbers": _with_body(_NEEDS % (b"0," * 400_000), 4, "StartRun"),
    "100,000 unknown fields": _with_body(_FIELDS, 4),
    "100,000 unknown fields of a payload": _with_body(_PAYLOAD % _FIELDS, 4),
    "data of 80,000 objects": _with_body(_PAYLOAD % _OBJECTS, 4),
    "170,000 times the same field": _with_body(b"{" + b'"":0,' * 170_000 + b'"":0}', 4),
    "runs with cycles": commands(
        (
            "StartRun",
            {
                "runId": "run-NUMBER",
                "jobs": [{"name": f"{n}", "needs": [f"{(n + 1) % 9_000}"]} for n in range(9_000)],
            },
        ),
        size=2,
    ),
    "10,000 headers": _with_headers(*(b"a:b" for _ in range(10_000)), size=20),
    "headers of 60 KiB": _with_headers(b"X: " + b"x" * 60 * 1024, size=20),
    "headers not UTF-8": _with_headers(b"X: \xff\xfe"),
    "texts not UTF-8": _with_body(_VALID.replace(b"call-", b"\xff\xfe")),
    "commands of other tenants": flood(RawMessage(_SUBJECT, _VALID.replace(b"tenant-a", b"tenant-b"))),
    "one message id again and again": _with_headers(b"Nats-Msg-Id: same", reply=_INBOX),
    "many long message ids": _with_headers(b"Nats-Msg-Id: " + b"x" * 4_000 + b"NUMBER"),
    "conditions that the stream refuses": _with_headers(b"Nats-Expected-Last-Sequence: 1", reply=_INBOX),
    "atomic batches that stay open": _with_headers(
        b"Nats-Batch-Id: mine-NUMBER", b"Nats-Batch-Sequence: 1", reply=_INBOX
    ),
    "schedules and rollups of the server": flood(
        *(
            RawMessage(_SUBJECT, _VALID, header_block(line), _INBOX)
            for line in (b"Nats-Rollup: all", b"Nats-TTL: 1s", b"Nats-Schedule: @every 1s")
        )
    ),
    "outcomes to strange subjects": flood(
        *(RawMessage(_SUBJECT, _VALID, header_block(b"Timer-Reply-To: " + each)) for each in _REPLIES)
    ),
}
