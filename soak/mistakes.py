"""The mistakes of a tenant, as floods of protocol bytes: loops, garbage, huge bodies, wrong order, unread replies."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.harness.hostile import fuzz
from tests.harness.raw_nats import RawMessage, header_block
from timer_service.core.values.address import kebab

TENANT = "tenant-a"
LONG_AFTER = "2100-01-01T00:00:00Z"
LONG_AGO = "2020-01-01T00:00:00Z"
LARGE = "x" * 60_000
MIB = 1024 * 1024
_INBOX = b"_INBOX.tenant-a.NUMBER"
_UNREAD_MS = 6_000

Made = tuple[str, Mapping[str, Any]]
"""A command: its type and its payload. `NUMBER` in it stands for the number of its turn."""


class Flood(NamedTuple):
    """What a tenant sends again and again until its time is up."""

    block: Callable[[int], bytes]
    """Return the protocol bytes of a block, by its number."""
    size: int
    """How many messages a block has."""
    opening: bytes = b""
    """What each connection sends first."""
    prepare: Sequence[RawMessage] = ()
    """Commands that the service has handled before the flood begins."""
    reads: bool = True
    """Whether the tenant reads what the server sends."""
    waits: bool = False
    """Whether a connection waits until the service has handled its commands, two blocks at most."""
    longest_ms: int = 1_000
    """How long a command or a query of another tenant may take beside it."""


def body(kind: str, payload: Mapping[str, Any]) -> bytes:
    """Return the body of a command."""
    return json.dumps({"type": kind, "tenantId": TENANT, "payload": payload}).encode()


def address(kind: str) -> bytes:
    """Return the subject of a command."""
    return f"timer.cmd.v1.{TENANT}.{kebab(kind)}".encode()


def flood(*messages: RawMessage, size: int = 200, **options: Any) -> Flood:
    """Return the flood of messages in turn. The messages of a turn have the same number."""

    def encode(number: int) -> bytes:
        message, digits = messages[number % len(messages)], b"%d" % (number // len(messages))
        content, reply = (part.replace(b"NUMBER", digits) for part in (message.body, message.reply))
        return message._replace(body=content, reply=reply).encode()

    def block(number: int) -> bytes:
        return b"".join(map(encode, range(number * size, (number + 1) * size)))

    return Flood(block, size, **options)


def commands(*made: Made, **options: Any) -> Flood:
    """Return the flood of commands in turn."""
    return flood(*_messages(*made), waits=True, **options)


def _messages(*made: Made) -> list[RawMessage]:
    return [RawMessage(address(kind), body(kind, payload)) for kind, payload in made]


def _asked(name: str, question: Mapping[str, Any], kind: str = "qry") -> RawMessage:
    return RawMessage(f"timer.{kind}.v1.{TENANT}.{name}".encode(), json.dumps(question).encode(), reply=_INBOX)


def _bodies(*bodies: bytes, size: int = 200) -> Flood:
    return flood(*(RawMessage(address("ScheduleTimer"), each) for each in bodies), size=size, waits=True)


def _as_tenant(message: RawMessage) -> bytes:
    subject, content = (part.replace(b"evil", TENANT.encode()) for part in (message.subject, message.body))
    return message._replace(subject=subject, body=content).encode()


def _timer(call: str = "call-NUMBER", due_at: str = LONG_AFTER, **fields: Any) -> Made:
    return "ScheduleTimer", {"serviceCallId": call, "dueAt": due_at, **fields}


def _strange_replies() -> list[RawMessage]:
    """Return commands and queries whose outcomes and replies are to go where no reply may go."""
    wanted = (
        b"_INBOX.tenant-a..",
        b"_INBOX.",
        b"_INBOX.tenant-a.>",
        b"_INBOX.tenant-a." + b"x" * 3_000,
        b"_INBOX.\xff",
        b">",
    )
    (message,) = _messages(_timer())
    return [
        *(message._replace(headers=header_block(b"Timer-Reply-To: " + each)) for each in wanted),
        *(_asked("count-timers", {})._replace(reply=each) for each in wanted),
    ]


_STAR = [{"name": "job-0"}, *({"name": f"job-{number}", "needs": ["job-0"]} for number in range(1, 10_000))]
"""As many jobs as a run can have."""
_READY = b"SUB _INBOX.tenant-a.* 1\r\n"
_STORED = _messages(*(_timer(f"call-{number}", data=LARGE) for number in range(300)))
_PAGES = _asked("list-timers", {"limit": 1000})
_SLOTS = {"policy": "all", "lateBy": "P1D", "limit": 1000}

MISTAKES: Mapping[str, Flood] = {
    "a loop of timers": commands(_timer()),
    "a loop of one timer": commands(_timer("call", data="NUMBER"), _timer("call", "2101-01-01T00:00:00Z")),
    "a loop of due timers": commands(_timer(due_at=LONG_AGO)),
    "a loop of due timers with much data": commands(_timer(due_at=LONG_AGO, data=LARGE), size=20),
    "a loop of large runs": commands(
        ("StartRun", {"runId": "run-NUMBER", "jobs": _STAR}), ("CancelRun", {"runId": "run-NUMBER"}), size=2
    ),
    "a loop of schedules that catch up": commands(
        (
            "PutSchedule",
            {"scheduleId": "s-NUMBER", "every": "PT1S", "startAt": "1970-01-01T00:00:00Z", "catchUp": _SLOTS},
        )
    ),
    "a loop of workflows without a worker": commands(
        ("StartWorkflow", {"workflowId": "order-NUMBER", "type": "order", "input": LARGE}), size=20
    ),
    "a loop of queries": flood(_asked("count-timers", {}), _asked("get-timer", {"serviceCallId": "call"})),
    "a loop of large queries": flood(_PAGES._replace(body=b"{}".ljust(60_000)), size=20),
    "strange reply subjects": flood(*_strange_replies()),
    "a loop of polls": flood(_asked("poll-tasks", {"workerId": "w-NUMBER", "types": ["order"], "slots": 1000}, "wrk")),
    "wrong order": commands(
        ("CancelTimer", {"serviceCallId": "call-NUMBER"}),
        ("ReportJobStatus", {"runId": "run-NUMBER", "jobName": "job", "status": "success"}),
        ("TransitionWorkItem", {"workItemId": "item-NUMBER", "to": "blocked"}),
        ("TriggerSchedule", {"scheduleId": "s-NUMBER"}),
        ("SendToWorkflow", {"workflowId": "order-NUMBER", "name": "go", "data": LARGE}),
        size=50,
    ),
    "garbage": _bodies(b"", b"{", b"[]", b'{"type":"\xff"}', b'{"type":"X","tenantId":"tenant-a","payload":{}}'),
    "random messages": Flood(lambda number: b"".join(map(_as_tenant, fuzz(number, 100))), 100, waits=True),
    "huge bodies": _bodies(b"x" * MIB, b"[" * 100_000, b"[" + b"0," * 499_999 + b"0]", size=4),
    "huge headers": flood(
        RawMessage(address("ScheduleTimer"), b"{}", header_block(b"X: " + b"x" * 60_000)),
        RawMessage(address("ScheduleTimer"), b"{}", header_block(*(b"a:b" for _ in range(10_000)))),
        size=20,
    ),
    "replies that are not read": flood(_PAGES, prepare=_STORED, opening=_READY, reads=False, longest_ms=_UNREAD_MS),
    "events that are not read": flood(
        *_messages(_timer(due_at=LONG_AGO, data=LARGE)),
        size=20,
        opening=b"SUB timer.evt.v1.tenant-a.* 1\r\n",
        reads=False,
    ),
}
