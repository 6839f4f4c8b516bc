"""Random use of everything that a tenant behind the fence can reach: commands, queries, the API of the server."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.harness.attacks.attack import LONG_AFTER, LONG_AGO, TENANT, Attack, address, body
from tests.harness.raw_nats import RawMessage, header_block

_SIZE = 100
_INBOX = b"_INBOX.tenant-a.any"
_LARGEST = 300_000
_IDS = ("a", "b", "c", "job-0", "x" * 200, "\U0001f525" * 50, "", "a/b", "tenant-b")
_COMMANDS: Mapping[str, Sequence[str]] = {
    "ScheduleTimer": ("serviceCallId", "dueAt", "data"),
    "CancelTimer": ("serviceCallId",),
    "RetryTimer": ("serviceCallId",),
    "CreateWorkItem": ("workItemId", "status"),
    "TransitionWorkItem": ("workItemId", "to", "eventId"),
    "CreateWorkSignal": ("signalId", "workItemId", "triggerKind", "triggerSpec", "note"),
    "PauseWorkSignal": ("signalId",),
    "ActivateWorkSignal": ("signalId",),
    "CancelWorkSignal": ("signalId",),
    "ResolveWorkSignal": ("signalId",),
    "StartRun": ("runId", "jobs", "groups"),
    "ResolveGroup": ("runId", "groupName", "jobs"),
    "ReportJobStatus": ("runId", "jobName", "status", "outputs", "droppedJobs"),
    "CancelRun": ("runId",),
    "RetryEvent": ("eventId",),
}
_QUERIES: Mapping[str, Sequence[str]] = {
    "get-timer": ("serviceCallId",),
    "list-timers": ("state", "dueBefore", "limit", "cursor"),
    "count-timers": (),
    "get-signal": ("signalId",),
    "list-signals": ("workItemId", "limit", "cursor"),
    "list-firings": ("signalId", "limit"),
    "list-tasks": ("workItemId", "limit"),
    "get-run": ("runId", "limit", "cursor"),
    "list-runs": ("limit",),
    "list-buried-events": ("limit", "cursor"),
    "get-usage": (),
}
_SUBJECTS = (
    *(f"timer.{kind}.v1.{tenant}.schedule-timer" for kind in ("cmd", "evt", "dlq") for tenant in (TENANT, "tenant-b")),
    *(f"$JS.API.{name}" for name in ("INFO", "STREAM.NAMES", "STREAM.INFO.TIMER_CMD", "STREAM.MSG.GET.TIMER_EVT")),
    *(
        f"$JS.API.CONSUMER.{name}"
        for name in ("MSG.NEXT.TIMER_EVT_tenant-a.tenant-a", "MSG.NEXT.TIMER_EVT_tenant-b.tenant-b")
    ),
    *(
        f"$JS.API.CONSUMER.{name}"
        for name in (
            "CREATE.TIMER_EVT",
            "MSG.NEXT.TIMER_EVT.tenant-a",
            "INFO.TIMER_EVT_tenant-b.tenant-b",
            "LIST.TIMER_EVT",
        )
    ),
    *(f"$JS.API.DIRECT.GET.{name}" for name in ("TIMER_EVT", "TIMER_CMD.timer.cmd.v1.tenant-b.schedule-timer")),
    *(f"$JS.ACK.TIMER_EVT_{name}.{name}.1.1.1.1.0" for name in (TENANT, "tenant-b")),
    "$JS.ACK.TIMER_CMD.timer-service.1.1.1.1.0",
    *(f"timer.qry.v1.{tenant}.list-timers" for tenant in ("tenant-b", "*", ">")),
    *("$SYS.REQ.USER.INFO", "$SYS.REQ.ACCOUNT.PING.CONNZ", "$SRV.PING", "$SRV.STATS.timer-service"),
    *("timer.wake.v1.timers", "_INBOX.tenant-b.x", "_INBOX_TIMER_SERVICE.x", "_R_.x", "TIMERS.API.INFO", "x"),
)
_PATTERNS = (">", "*.>", "timer.>", "timer.evt.v1.tenant-b.*", "_INBOX.>", "_R_.>", "$JS.>", "$SYS.>", "$SRV.>", "x y")
_HEADERS = (
    *("Nats-Msg-Id", "Nats-Expected-Last-Msg-Id", "Nats-Expected-Last-Sequence", "Nats-Expected-Stream", "Nats-TTL"),
    *("Nats-Expected-Last-Subject-Sequence", "Nats-Expected-Last-Subject-Sequence-Subject", "Nats-Rollup", "Status"),
    *("Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit", "Nats-Schedule", "Nats-Schedule-Target", "X", ""),
    *("Nats-Trace-Dest", "Nats-Incr", "Nats-Required-Api-Level", "Timer-Reply-To", "traceparent", "tracestate"),
)
_REPLIES = (b"", _INBOX, b"_INBOX.tenant-b.x", b"_INBOX.tenant-a..", b">", b"$JS.API.STREAM.DELETE.TIMER_CMD", b"_R_.x")


def fuzz(seed: int) -> Attack:
    """Return the attack that sends random messages. Block `n` is the same for the same seed."""
    subscriptions = b"".join(b"SUB %b %d\r\n" % (each.encode(), n + 1) for n, each in enumerate(_PATTERNS[:-1]))
    return Attack(lambda number: _block(random.Random(f"{seed} {number}")), _SIZE, 4, subscriptions)


def _block(rng: random.Random) -> bytes:
    kinds: list[Callable[[random.Random], bytes]] = [*[_command] * 10, *[_query] * 6, *[_elsewhere] * 3, _protocol]
    return b"".join(rng.choice(kinds)(rng) for _ in range(_SIZE))


def _command(rng: random.Random) -> bytes:
    kind, fields = rng.choice(list(_COMMANDS.items()))
    return _message(rng, address(kind), body(kind, _fields(rng, fields)))


def _query(rng: random.Random) -> bytes:
    name, fields = rng.choice(list(_QUERIES.items()))
    return _message(rng, f"timer.qry.v1.{TENANT}.{name}".encode(), json.dumps(_fields(rng, fields)).encode(), _INBOX)


def _elsewhere(rng: random.Random) -> bytes:
    subject = rng.choice(_SUBJECTS).encode()
    if rng.random() < 0.2:
        subject += b"." + bytes(rng.choice(b"abc>*\xff\x0b$_-") for _ in range(rng.randint(1, 20)))
    content = json.dumps({"batch": rng.randrange(5), "no_wait": True, "seq": rng.randrange(100)}).encode()
    return _message(rng, subject, content, _INBOX)


def _protocol(rng: random.Random) -> bytes:
    number = rng.randrange(20, 100)
    pattern = rng.choice(_PATTERNS).encode()
    if rng.random() < 0.02:
        return rng.randbytes(20) + b"\r\n"  # ends the connection
    return rng.choice(
        [b"SUB %b %d\r\n" % (pattern, number), b"SUB %b q %d\r\n" % (pattern, number), b"UNSUB %d\r\n" % number]
    )


def _message(rng: random.Random, subject: bytes, content: bytes, reply: bytes = b"") -> bytes:
    if rng.random() < 0.2:
        reply = rng.choice(_REPLIES)
    if rng.random() < 0.2:
        content = _damage(rng, content)
    headers = None
    if rng.random() < 0.3:
        lines = [f"{rng.choice(_HEADERS)}: ".encode() + _header_value(rng) for _ in range(rng.randint(1, 4))]
        headers = header_block(*lines)
    return RawMessage(subject, content, headers, reply).encode()


def _header_value(rng: random.Random) -> bytes:
    return rng.choice([b"x", b"1", b"0", b"1s", b"@every 1s", _INBOX, rng.randbytes(9).translate(None, b"\r\n"), b""])


def _damage(rng: random.Random, content: bytes) -> bytes:
    match rng.randrange(4):
        case 0:
            return content[: rng.randrange(len(content) + 1)]
        case 1:
            at = rng.randrange(len(content) + 1)
            return content[:at] + rng.randbytes(rng.randrange(5)) + content[at:]
        case 2:
            return rng.choice([b"", b"[" * 50_000, b'{"type":' + b"9" * 5_000 + b"}", b"\x00", b"null", b"[]"])
        case _:
            return rng.randbytes(rng.randrange(_LARGEST)) if rng.random() < 0.02 else rng.randbytes(50)


def _fields(rng: random.Random, names: Sequence[str]) -> dict[str, Any]:
    found = {name: _value(rng, name) for name in names if rng.random() < 0.9}
    if rng.random() < 0.05:
        found[rng.choice(_IDS)] = rng.choice(_IDS)
    return found


def _value(rng: random.Random, name: str) -> Any:
    if rng.random() < 0.1:
        return rng.choice([None, 0, -1, 1e308, True, "", [], {}, "x" * 5_000, [[[]]], "\ud800", "\x00"])
    match name:
        case "dueAt" | "dueBefore":
            return rng.choice([LONG_AFTER, LONG_AGO, "9999-12-31T23:59:59Z", "1970-01-01T00:00:00+14:00"])
        case "jobs":
            return _jobs(rng)
        case "groups" | "droppedJobs":
            return rng.sample(_IDS, rng.randrange(4))
        case "triggerKind":
            return rng.choice(["event", "time"])
        case "triggerSpec":
            at = {"kind": "time.at", "at": LONG_AGO}
            return rng.choice([{"kind": "work_item.status.transition", "to": rng.sample(_IDS, 3)}, at])
        case "limit":
            return rng.choice([1, 10, 1000])
        case "status" | "state":
            return rng.choice(["success", "failed", "running", "Scheduled", "new"])
        case "data" | "outputs":
            return {"log": "x" * rng.choice([1, 100, 60_000])} if rng.random() < 0.1 else {"a": rng.random()}
        case _:
            return f"{rng.choice(_IDS)}{rng.randrange(1_000)}" if rng.random() < 0.5 else rng.choice(_IDS)


def _jobs(rng: random.Random) -> list[dict[str, Any]]:
    count = rng.choice([0, 1, 3, 3, 10, 10, 100, 1_000]) if rng.random() < 0.9 else 5_000
    return [
        {"name": f"job-{n}", "needs": [f"job-{rng.randrange(max(n, 1))}" for _ in range(rng.randrange(3))] if n else []}
        for n in range(count)
    ]
