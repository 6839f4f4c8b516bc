"""Schedules whose service, or one of its instances, is killed, and schedules that are disabled."""

import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import asyncpg
import pytest

from tests.e2e.conftest import User
from tests.harness.fleet import Fleet
from tests.harness.processes import NatsServer, Service, body
from tests.harness.spawn import BIN

SECOND = 1000


def put(schedule: str, **fields: Any) -> tuple[str, bytes]:
    """Return the subject and the body of a PutSchedule."""
    return _command("PutSchedule", "put-schedule", {"scheduleId": schedule, **fields})


def about(verb: str, schedule: str) -> tuple[str, bytes]:
    """Return the subject and the body of a command. `verb` is Pause, Delete or Trigger."""
    return _command(f"{verb}Schedule", f"{verb.lower()}-schedule", {"scheduleId": schedule})


def _command(message_type: str, message: str, payload: Mapping[str, Any]) -> tuple[str, bytes]:
    return f"timer.cmd.v1.acme.{message}", body(message_type, "acme", payload)


async def read_fired(user: User) -> list[Any]:
    """Return the payloads of all ScheduleFired in the stream, with the ids of the events and when they were stored."""
    messages = await user.read("TIMER_EVT", "timer.evt.v1.*.schedule-fired")
    return [
        {**event["payload"], "id": event["id"], "stored": message.metadata.timestamp.timestamp() * 1000}
        for message, event in ((each, json.loads(each.data)) for each in messages)
    ]


def to_ms(instant: str) -> int:
    return round(datetime.fromisoformat(instant).timestamp() * 1000)


def slots_of(events: Sequence[Any]) -> dict[str, list[int]]:
    """Return the slots of each schedule, in order. Assert that each slot has one id, and that none was early."""
    ids = defaultdict[tuple[str, int], set[str]](set)
    for event in events:
        slot = to_ms(event["slotAt"])
        assert event["stored"] >= slot
        ids[event["scheduleId"], slot].add(event["id"])
    assert {len(each) for each in ids.values()} == {1}
    slots = defaultdict[str, list[int]](list)
    for schedule, slot in sorted(ids):
        slots[schedule].append(slot)
    return slots


@pytest.mark.slow
async def test_killed_again_and_again(user: User, service: Service) -> None:
    """A service that is killed again and again fires every slot, each under one id. Deleted schedules stay silent."""
    names = [f"s-{number}" for number in range(20)]
    everything = {"policy": "all", "lateBy": "P1D", "limit": 1000}
    await user.send([put(name, every=SECOND, catchUp=everything) for name in names])
    await user.until_handled()
    for _ in range(3):
        before = await user.stored("TIMER_EVT")
        await user.until_stored("TIMER_EVT", before + 1)
        await service.kill()
        await service.start()
    await user.until_stored("TIMER_EVT", await user.stored("TIMER_EVT") + 40)
    await user.send([about("Delete", name) for name in names])
    await user.until_handled()
    async with service.backlog() as backlog, asyncio.timeout(30):
        while await backlog("acme"):
            await asyncio.sleep(0.02)
    slots = slots_of(await read_fired(user))
    assert slots.keys() == set(names)
    for each in slots.values():
        assert each == list(range(each[0], each[-1] + 1, SECOND))


ZONE = "Europe/Berlin"
MADE_DUE = "UPDATE schedules SET after_at = $1::bigint - 1, slot_at = $1, available_at = $2 WHERE schedule_id = $3"


@pytest.mark.slow
async def test_a_zone_that_one_of_two_instances_lacks(
    tmp_path: Path, user: User, fleet: Fleet, database_url: str
) -> None:
    """The slots of a zone fire in time from the instance that knows it. The other one says so, and fires the rest."""
    midnight = int(datetime.now(ZoneInfo(ZONE)).replace(hour=0, minute=0, second=0, microsecond=0).timestamp() * 1000)
    names = [f"s-{number}" for number in range(50)]
    polls = {"TIMER_POLLING_INTERVAL": "50"}
    knowing, lacking = fleet.instance(**polls), fleet.instance(**polls, **_zone_data(tmp_path / "zones"))
    lacking.command = [sys.executable, str(BIN / "timer-service"), "serve"]
    late = 0.0
    async with knowing:
        daily = {"cron": "0 0 * * *", "zone": ZONE, "catchUp": {"policy": "last"}}
        await user.send([put(name, **daily) for name in names])
        await user.until_handled()
        connection = await asyncpg.connect(database_url)
        async with lacking:
            for number, name in enumerate(names, 1):
                await connection.execute(MADE_DUE, midnight, round(time.time() * 1000), name)
                began = time.monotonic()
                await user.until_stored("TIMER_EVT", number, seconds=20)
                late = max(late, time.monotonic() - began)
                if await lacking.metric(_settled("left")) >= 3:
                    break
            await user.send([put("ticker", every=SECOND)])
            await lacking.until_metric(_settled("fired"), at_least=1)
            assert [(await each.page("/readyz"))[0] for each in fleet.instances] == [200, 200]
            outcomes = ("failed", "left")
            found = [[await each.metric(_settled(outcome)) for outcome in outcomes] for each in (knowing, lacking)]
            missed = [await each.metric("timer_slots_missed_total") for each in fleet.instances]
        assert await connection.fetchval("SELECT count(*) FROM schedules WHERE last_error IS NOT NULL") == 0
        await connection.close()
    assert (found, missed) == ([[0, 0], [0, 3]], [0, 0])
    slots = slots_of(await read_fired(user))
    assert {name: each for name, each in slots.items() if name != "ticker"} == {
        name: [midnight] for name in names[:number]
    }
    assert late < 5, "a slot that is left to the other instance fires before the ten seconds are over"
    lines = [json.loads(line) for line in lacking.log.read_text().splitlines() if "leaving it to others" in line]
    assert [ZONE in line["reason"] for line in lines] == [True] * 3


def _settled(outcome: str) -> str:
    return f'timer_schedules_processed_total{{outcome="{outcome}",table="schedules"}}'


def _zone_data(folder: Path) -> dict[str, str]:
    """Return the settings of a process whose time zone data have no zone but UTC."""
    package = folder / "tzdata"
    (package / "zoneinfo").mkdir(parents=True)
    for each in (package, package / "zoneinfo"):
        (each / "__init__.py").touch()
    (package / "zones").write_text("UTC\n")
    (package / "zoneinfo" / "UTC").write_bytes((resources.files("tzdata") / "zoneinfo" / "UTC").read_bytes())
    return {"PYTHONTZPATH": "", "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}


@pytest.mark.slow
async def test_disabled_and_enabled(tmp_path: Path, broker: NatsServer, user: User) -> None:
    """With TIMER_SCHEDULES_ENABLED=false commands are stored and triggers fire. With true, the newest slot fires."""
    async with Service(tmp_path / "service", broker.url, TIMER_SCHEDULES_ENABLED="false") as off:
        await user.send([put("s", every=SECOND, catchUp={"lateBy": SECOND}), about("Trigger", "s")])
        await user.until_stored("TIMER_EVT", 1)
        await asyncio.sleep(3)  # slots pass; nothing announces that they do not fire
        assert [event["cause"] for event in await read_fired(user)] == ["trigger"]
        assert await off.metric('timer_loop_last_tick_timestamp_seconds{loop="schedules"}') == 0
    async with Service(tmp_path / "service", broker.url) as on:
        await user.until_stored("TIMER_EVT", 3)
        assert await on.metric("timer_slots_missed_total") > 0
    first = next(event for event in await read_fired(user) if event["cause"] == "slot")
    assert to_ms(first["missedSince"]) < to_ms(first["slotAt"])
