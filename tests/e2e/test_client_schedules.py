"""Schedules through the Python client, with the real broker and the real service."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.e2e.conftest import ON_EACH_BROKER, ON_SQLITE
from tests.harness.processes import NatsServer, Service
from timer_service.client import (
    CalendarInterval,
    CatchUp,
    Schedule,
    ScheduleEnded,
    ScheduleFired,
    TimerClient,
)

BERLIN = ZoneInfo("Europe/Berlin")
WEEKDAYS = "0 9 * * MON-FRI"
HOUR = timedelta(hours=1)
LATER = datetime(2100, 1, 1, 9, 30, tzinfo=UTC)
PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
async def client(tmp_path: Path, broker: NatsServer, stored: Mapping[str, str]) -> AsyncIterator[TimerClient]:
    async with (
        Service(tmp_path / "service", broker.url, **stored),
        TimerClient.connect(broker.url) as connected,
    ):
        yield connected


async def test_put_returns_the_schedule(client: TimerClient) -> None:
    """The outcome of a command holds the schedule after it, with the next slot. `get` adds more slots."""
    outcome = await client.schedules.put(
        "acme",
        "report",
        cron=WEEKDAYS,
        zone="Europe/Berlin",
        start_at=PAST,
        end_at=LATER,
        max_count=1000,
        jitter=timedelta(minutes=5),
        catch_up="skip",
        late_by=timedelta(seconds=90),
        catch_up_limit=7,
        data={"to": ["team", None]},
    )
    schedule = outcome.schedule
    assert schedule is not None
    assert (outcome.name, schedule.tenant, schedule.schedule_id, schedule.status) == (
        "created",
        "acme",
        "report",
        "active",
    )
    assert (schedule.cron, schedule.zone, schedule.every) == (WEEKDAYS, "Europe/Berlin", None)
    assert (schedule.start_at, schedule.end_at, schedule.max_count) == (PAST, LATER, 1000)
    assert schedule.jitter == timedelta(minutes=5)
    assert schedule.catch_up == CatchUp(policy="skip", late_by=timedelta(seconds=90), limit=7)
    assert (schedule.data, schedule.fired_count) == ({"to": ["team", None]}, 0)
    found = await client.schedules.get("acme", "report", upcoming=3)
    assert found is not None
    assert found.upcoming is not None
    assert (len(found.upcoming), found.upcoming[0]) == (3, schedule.next_slot_at)
    assert {slot.astimezone(BERLIN).time().isoformat() for slot in found.upcoming} == {"09:00:00"}
    assert schedule.upcoming == [schedule.next_slot_at]
    assert await client.schedules.get("acme", "report") == replace(schedule, upcoming=None)
    assert Schedule.read(schedule.document()) == schedule
    assert await client.schedules.get("other", "report") is None


async def test_life_of_a_schedule(client: TimerClient) -> None:
    """Each method ends with the outcome of the reference, and a list shows what is left."""
    schedules = client.schedules
    outcomes = [
        await schedules.pause("acme", "hourly"),
        await schedules.put("acme", "hourly", every=HOUR),
        await schedules.put("acme", "hourly", every=HOUR, data=1),
        await schedules.put("acme", "hourly", every=HOUR, data=1),
        await schedules.resume("acme", "hourly"),
        await schedules.trigger("acme", "hourly"),
        await schedules.put("acme", "other", every=HOUR, end_at=PAST),
        await schedules.resume("acme", "other"),
    ]
    names = ["not_found", "created", "updated", "unchanged", "resumed", "triggered", "ended", "already_ended"]
    assert [each.name for each in outcomes] == names
    statuses = [None if each.schedule is None else each.schedule.status for each in outcomes]
    assert statuses == [None, *["paused"] * 3, *["active"] * 2, *["ended"] * 2]
    assert [each.schedule_id async for each in schedules.list("acme")] == ["hourly", "other"]
    assert [each.schedule_id async for each in schedules.list("acme", status="ended")] == ["other"]
    gone = [await schedules.delete("acme", name) for name in ("hourly", "hourly", "nobody")]
    assert [each.name for each in gone] == ["deleted", "unchanged", "not_found"]
    assert [each.schedule_id async for each in schedules.list("acme")] == ["other"]


@ON_EACH_BROKER
@ON_SQLITE
async def test_watch_schedules(client: TimerClient) -> None:
    """`schedules.watch` yields the slots and triggers of a schedule, and its end, and nothing of other schedules."""
    events = client.schedules.watch("acme", schedule_id="tick")
    first = asyncio.ensure_future(anext(events))
    await client.schedules.put("acme", "tick", every=timedelta(days=1))
    while not first.done():  # nothing else tells that the watch has begun
        await client.schedules.trigger("acme", "tick", data="begin")
    await client.schedules.put("acme", "tick", every=timedelta(seconds=1), max_count=2, data="own")
    await client.schedules.trigger("acme", "tick", data=None)
    await client.schedules.put("acme", "tock", every=timedelta(seconds=1))
    seen: list[Any] = []
    async with asyncio.timeout(20):
        while len(seen) < 4:
            event = await anext(events)
            if not (isinstance(event, ScheduleFired) and event.data == "begin"):
                seen.append(event)
    fired = {each.cause: each.data for each in seen if isinstance(each, ScheduleFired)}
    assert (fired["slot"], fired["trigger"]) == ("own", None)
    assert {each.schedule_id for each in seen} == {"tick"}
    assert sorted(each.type for each in seen) == ["ScheduleEnded", *["ScheduleFired"] * 3]
    assert [each.reason for each in seen if isinstance(each, ScheduleEnded)] == ["max_count"]


@ON_SQLITE
async def test_preview(client: TimerClient) -> None:
    """A preview shows the slots around a clock change. It reads all of them, however long they take to compute."""
    start = datetime(2027, 3, 27, tzinfo=UTC)
    slots = await client.schedules.preview("acme", cron="30 2 * * *", zone="Europe/Berlin", from_at=start, count=3)
    assert [slot.isoformat() for slot in slots] == [
        "2027-03-27T01:30:00+00:00",
        "2027-03-28T01:00:00+00:00",  # 02:30 does not exist on that day
        "2027-03-29T00:30:00+00:00",
    ]
    pay = CalendarInterval(every=1, unit="months", anchor=datetime(2027, 1, 31, 2, 30))  # noqa: DTZ001 - wall time
    slots = await client.schedules.preview("acme", calendar=pay, zone="Europe/Berlin", count=3)
    assert [slot.isoformat()[:16] for slot in slots] == ["2027-01-31T01:30", "2027-02-28T01:30", "2027-03-31T00:30"]
    last_two = await client.schedules.preview("acme", every=HOUR, start_at=start, end_at=start + 2 * HOUR, from_at=PAST)
    assert last_two == [start, start + HOUR]
    begin, leap_sundays = datetime(2026, 1, 1, tzinfo=UTC), "0 0 29 2 */7"
    question = {"cron": leap_sundays, "from": begin.isoformat(), "count": 100}
    assert (await client.query("acme", "preview-slots", question))["complete"] is False
    found = await client.schedules.preview("acme", cron=leap_sundays, from_at=begin, count=100)
    assert (len(set(found)), sorted(found)) == (100, found)
    assert {(slot.month, slot.day, slot.isoweekday()) for slot in found} == {(2, 29, 7)}
    assert [each async for each in client.schedules.list("acme")] == []
