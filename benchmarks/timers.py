"""Timers to schedule, their events, and the figures and faults of these events."""

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple


class Timer(NamedTuple):
    """A timer to schedule."""

    tenant: str
    call: str
    due_at: int

    @property
    def subject(self) -> str:
        return f"timer.cmd.v1.{self.tenant}.schedule-timer"

    @property
    def id(self) -> str:
        return f"schedule-{self.tenant}-{self.call}"

    def body(self) -> bytes:
        payload = {
            "tenantId": self.tenant,
            "serviceCallId": self.call,
            "dueAt": instant(self.due_at),
            "data": {"order": 4711, "step": "payment"},
        }
        command = {"id": self.id, "type": "ScheduleTimer", "tenantId": self.tenant, "payload": payload}
        return json.dumps(command).encode()


class Fired(NamedTuple):
    """A published event, and its time in epoch milliseconds."""

    type: str
    tenant: str
    call: str
    at: float


def instant(at: int) -> str:
    """Return an instant in the format of the contracts and of the broker."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now() -> int:
    return time.time_ns() // 1_000_000


async def sleep_until(at: int) -> None:
    await asyncio.sleep(max(0.0, at / 1000 - time.time()))


def due_together(tenant: str, count: int, due_at: int) -> list[Timer]:
    return [Timer(tenant, f"call-{index}", due_at) for index in range(count)]


def fired(body: bytes, at: float) -> Fired:
    """Return the event of a message body. `at` is its time."""
    event = json.loads(body)
    return Fired(event["type"], event["tenantId"], event["payload"].get("serviceCallId", ""), at)


def lateness(timers: Sequence[Timer], events: Iterable[Fired], shares: Sequence[float]) -> dict[str, float]:
    """Return percentiles of the lateness by name. A share of 1 is the maximum."""
    due = {(timer.tenant, timer.call): timer.due_at for timer in timers}
    late = [event.at - due[event.tenant, event.call] for event in events if event[1:3] in due]
    return percentiles("lateness", late, shares)


def percentiles(what: str, values: Iterable[float], shares: Sequence[float]) -> dict[str, float]:
    """Return percentiles of values in ms by name. A share of 1 is the maximum."""
    found = sorted(values)
    names = {share: f"p{share * 100:g}" if share < 1 else "max" for share in shares}
    return {f"{what} {name}, ms": found[math.ceil(share * len(found)) - 1] for share, name in names.items() if found}


def faults(timers: Sequence[Timer], events: Sequence[Fired], event_type: str = "DueTimeReached") -> list[str]:
    """Return a line for each kind of fault of the events of timers."""
    due = {(event_type, timer.tenant, timer.call): timer.due_at for timer in timers}
    return count_faults(due, (each[:3] for each in events), sum(each.at < due.get(each[:3], 0) for each in events))


def count_faults(expected: Iterable[Hashable], found: Iterable[Hashable], early: int = 0) -> list[str]:
    """Return a line for each kind of fault: missing, duplicate, unexpected and early events."""
    wanted, times = set(expected), Counter(found)
    counts = {
        "missing": len(wanted - times.keys()),
        "duplicate": sum(times[each] - 1 for each in wanted & times.keys()),
        "unexpected": sum(times[each] for each in times.keys() - wanted),
        "early": early,
    }
    return [f"{count} {fault} events" for fault, count in counts.items() if count]
