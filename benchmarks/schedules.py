"""Schedules that are due at one instant."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.harness import Message, Rig, command, publish, stored_events, unhandled, until_none
from benchmarks.processes import BenchmarkError, Fleet
from benchmarks.records import Result
from benchmarks.timers import count_faults, instant, now, sleep_until

_DUPLICATES_SECONDS = 1
_DAY_MS = 24 * 3_600_000
_SAMPLE = 0.1
"""The share of the schedules that is stored first, for tomorrow, to find out how long storing takes."""
_RESERVE = 2
"""The schedules are due after this many times as long as storing them should take, and `_MARGIN_MS`."""
_MARGIN_MS = 15_000


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


async def _fire_together(rig: Rig, size: int, fields_of: Callable[[int, int], Mapping[str, Any]]) -> Result:
    arrived: list[Slot] = []

    async def arrive(message: Msg) -> None:
        event, at = json.loads(message.data), now()
        slot_at = round(datetime.fromisoformat(event["payload"]["slotAt"]).timestamp() * 1000)
        arrived.append(Slot(event["tenantId"], event["payload"]["scheduleId"], slot_at, at))

    async with rig.broker() as client, rig.service() as service:
        count, began = math.ceil(size * _SAMPLE), now()
        await _store(rig, client, [_put("sample", n, fields_of(now() + _DAY_MS, n)) for n in range(count)], service)
        due_at = (now() + _MARGIN_MS + round(_RESERVE * (now() - began) / _SAMPLE)) // 1000 * 1000 + 1000
        puts = [_put("bench", n, fields_of(due_at, n)) for n in range(size)]
        puts.append(_put("single", 0, {"every": "P1D", "startAt": instant(due_at)}))
        await client.subscribe("timer.evt.v1.*.schedule-fired", cb=arrive)
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
    expected = [("single", "s-0", due_at), *(("bench", f"s-{n}", due_at) for n in range(size))]
    early = sum(slot.arrived < slot.at for slot in arrived)
    return Result(figures, count_faults(expected, (slot[:3] for slot in arrived), early))


def _put(tenant: str, number: int, fields: Mapping[str, Any]) -> Message:
    data = {"order": 4711, "step": "payment"}
    payload = {"scheduleId": f"s-{number}", "data": data, **fields, "maxCount": 1}
    return command("PutSchedule", f"put-{tenant}-{number}", payload, tenant)


def _cron(due_at: int, number: int) -> Mapping[str, Any]:
    """Return a cron expression with a slot at an instant. Each number gives another expression."""
    at = datetime.fromtimestamp(due_at / 1000, UTC)
    seconds, minutes, days = number % 59, number // 59 % 59, number // (59 * 59)
    other = [(value + 1 + shift) % 60 for value, shift in ((at.second, seconds), (at.minute, minutes))]
    day = (at.day + days) % 28 + 1
    fields = (f"{at.second},{other[0]}", f"{at.minute},{other[1]}", at.hour, f"{at.day},{day}", "*", "*")
    late = {"lateBy": "PT1H"}  # a later slot would replace the slot if this machine took longer than that to fire all
    return {"cron": " ".join(map(str, fields)), "startAt": instant(due_at), "catchUp": late}


async def _store(rig: Rig, client: Client, puts: Sequence[Message], service: Fleet) -> bool:
    """Send commands. Return whether the service has handled all of them."""
    await publish(client, puts)
    await until_none(service, partial(unhandled, rig, client))
    return not await unhandled(rig, client)
