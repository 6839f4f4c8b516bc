"""Schedules that are due at one instant, and schedules that fire at a steady rate."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.harness import Publisher, Rig, stored_events, unhandled, until_none
from benchmarks.processes import BenchmarkError, Fleet
from benchmarks.result import Result
from benchmarks.timers import instant, now, percentiles, sleep_until

_RATE = 200
_DUPLICATES_SECONDS = 1
_DAY_MS = 24 * 3_600_000
_SAMPLE = 0.1
"""The share of the schedules that is stored first, for tomorrow, to find out how long storing takes."""
_RESERVE = 2
"""The schedules are due after this many times as long as storing them should take, and `_MARGIN_MS`."""
_MARGIN_MS = 15_000


class Put(NamedTuple):
    """A PutSchedule."""

    tenant: str
    schedule: str
    fields: Mapping[str, Any]

    @property
    def subject(self) -> str:
        return f"timer.cmd.v1.{self.tenant}.put-schedule"

    @property
    def id(self) -> str:
        return f"put-{self.tenant}-{self.schedule}"

    def body(self) -> bytes:
        payload = {"scheduleId": self.schedule, "data": {"order": 4711, "step": "payment"}, **self.fields}
        return json.dumps({"id": self.id, "type": "PutSchedule", "tenantId": self.tenant, "payload": payload}).encode()


class Slot(NamedTuple):
    """A slot that fired, and when its event arrived, in epoch milliseconds."""

    tenant: str
    schedule: str
    at: int
    arrived: int


async def intervals(rig: Rig, size: int) -> Result:
    """Put schedules with `every` for one instant, and one of another tenant. Measure how fast all fire."""
    return await _fire_together(rig, size, lambda at, _: {"every": "P1D", "startAt": instant(at)})


async def crons(rig: Rig, size: int) -> Result:
    """Like `intervals`, with a different cron expression for each schedule."""
    return await _fire_together(rig, size, _cron)


async def slots(rig: Rig, seconds: int) -> Result:
    """Put schedules that fire each second. Measure how late each event arrives at a subscriber."""
    begin = _next_second(5000)
    end = begin + 1000 * seconds
    puts = [
        Put("bench", f"s-{n}", {"every": 1000, "startAt": instant(begin + 1000 * n // _RATE), "endAt": instant(end)})
        for n in range(_RATE)
    ]

    async def missing(arrived: Sequence[Slot]) -> int:
        return _RATE * seconds - len(arrived)

    async with rig.broker() as client, rig.service() as service:
        arrived = await _listen(client)
        await _store(rig, client, puts, service)
        await sleep_until(end)
        await until_none(service, partial(missing, arrived))
        await asyncio.sleep(_DUPLICATES_SECONDS)
    figures = {
        "slots": len(arrived),
        "slots/s": _RATE,
        **percentiles("lateness", [slot.arrived - slot.at for slot in arrived], (0.5, 0.99, 1)),
    }
    expected = {(f"s-{n}", begin + 1000 * n // _RATE + 1000 * k) for n in range(_RATE) for k in range(seconds)}
    return Result(figures, _faults(arrived, expected))


async def _fire_together(rig: Rig, size: int, fields_of: Callable[[int, int], Mapping[str, Any]]) -> Result:
    async with rig.broker() as client, rig.service() as service:
        sample = _due_together("sample", math.ceil(size * _SAMPLE), now() + _DAY_MS, fields_of)
        began = now()
        await _store(rig, client, sample, service)
        due_at = _next_second(_MARGIN_MS + round(_RESERVE * (now() - began) / _SAMPLE))
        puts = _due_together("bench", size, due_at, fields_of)
        puts.append(Put("single", "s", {"every": "P1D", "startAt": instant(due_at), "maxCount": 1}))
        arrived = await _listen(client)
        if not await _store(rig, client, puts, service) or now() >= due_at:
            raise BenchmarkError(f"this machine did not store {size} schedules before they were due")

        async def missing() -> int:
            return 2 * len(puts) - await stored_events(client)  # each has fired, and has ended

        await sleep_until(due_at)
        seconds = await until_none(service, missing) - due_at / 1000
        await asyncio.sleep(_DUPLICATES_SECONDS)
    late = next((slot.arrived - due_at for slot in arrived if slot.tenant == "single"), math.nan)
    figures = {
        "schedules": size,
        "seconds from the instant to the last event": seconds,
        "events/s": 2 * len(puts) / seconds,
        "lateness of another tenant's schedule, ms": late,
    }
    return Result(figures, _faults(arrived, {(put.schedule, due_at) for put in puts}))


def _due_together(
    tenant: str, count: int, due_at: int, fields_of: Callable[[int, int], Mapping[str, Any]]
) -> list[Put]:
    return [Put(tenant, f"s-{n}", {**fields_of(due_at, n), "maxCount": 1}) for n in range(count)]


def _cron(due_at: int, number: int) -> Mapping[str, Any]:
    """Return a cron expression with a slot at an instant. Each number gives another expression."""
    at = datetime.fromtimestamp(due_at / 1000, UTC)
    seconds, minutes, days = number % 59, number // 59 % 59, number // (59 * 59)
    other = [(value + 1 + shift) % 60 for value, shift in ((at.second, seconds), (at.minute, minutes))]
    day = (at.day + days) % 28 + 1
    fields = (f"{at.second},{other[0]}", f"{at.minute},{other[1]}", at.hour, f"{at.day},{day}", "*", "*")
    late = {"lateBy": "PT1H"}  # a later slot would replace the slot if this machine took longer than that to fire all
    return {"cron": " ".join(map(str, fields)), "startAt": instant(due_at), "catchUp": late}


def _next_second(ahead_ms: int) -> int:
    return (now() + ahead_ms) // 1000 * 1000 + 1000


async def _store(rig: Rig, client: Client, puts: Sequence[Put], service: Fleet) -> bool:
    """Send commands. Return whether the service has handled all of them."""
    publisher = Publisher(client)
    await publisher.open()
    for put in puts:
        await publisher.send(put)
    await publisher.flush()
    await until_none(service, partial(unhandled, rig, client))
    return not await unhandled(rig, client)


async def _listen(client: Client) -> list[Slot]:
    """Return a list to which each slot is added when its event arrives."""
    arrived: list[Slot] = []

    async def arrive(message: Msg) -> None:
        event, at = json.loads(message.data), now()
        slot_at = datetime.fromisoformat(event["payload"]["slotAt"])
        slot = round(slot_at.timestamp() * 1000)
        arrived.append(Slot(event["tenantId"], event["payload"]["scheduleId"], slot, at))

    await client.subscribe("timer.evt.v1.*.schedule-fired", cb=arrive)
    return arrived


def _faults(arrived: Sequence[Slot], expected: set[tuple[str, int]]) -> list[str]:
    times = Counter((slot.schedule, slot.at) for slot in arrived)
    counts = {
        "missing": len(expected - times.keys()),
        "duplicate": times.total() - len(times),
        "unexpected": len(times.keys() - expected),
        "early": sum(slot.arrived < slot.at for slot in arrived),
    }
    return [f"{count} {fault} events" for fault, count in counts.items() if count]
