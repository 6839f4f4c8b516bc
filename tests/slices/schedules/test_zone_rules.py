"""The rules of a time zone change: the next slots are computed again, and no time of the clock fires twice.

A schedule gets the rules of another zone in its row, as if its own zone had these rules after a restart.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.schedules import Schedules
from timer_service.cli.doctor.database import check_zones
from timer_service.core.ports.database import Database
from timer_service.schedules import room
from timer_service.schedules.backfill import transaction as backfill_pass
from timer_service.schedules.calendar.zones import load_zone
from timer_service.schedules.firing.worker import FiringWorker
from timer_service.workflows.commands.slot_start import start_workflows

DAY = 24 * 3_600_000
OLD, LATER, EARLIER = "Etc/GMT-2", "Etc/GMT-1", "Etc/GMT-3"
EACH_DAY = [{"cron": "0 10 * * *"}, {"calendar": {"every": 1, "unit": "days", "anchor": "2020-01-01T10:00"}}]


async def change_rules(schedules: Schedules, zone: str) -> None:
    """Change the rules of the zone of all schedules, and restart the worker."""
    await schedules.sql(f"UPDATE schedules SET zone = '{zone}'")
    schedules.worker = FiringWorker(schedules.parts, start_workflows)
    await schedules.worker.tick(schedules.clock.now())


def instant(clock: ManualClock, hour: int, days: int = 1) -> str:
    day = datetime.fromtimestamp(clock.now() / 1000, UTC).date().toordinal() + days
    return f"{datetime.fromordinal(day):%Y-%m-%d}T{hour:02}:00:00.000Z"


async def advance_to(schedules: Schedules, at: str) -> None:
    missing = datetime.fromisoformat(at).timestamp() - schedules.clock.now() / 1000
    await schedules.advance(seconds=missing)


@pytest.mark.parametrize("times", EACH_DAY)
@pytest.mark.parametrize(("zone", "hour"), [(LATER, 9), (EARLIER, 7)])
async def test_waiting_slot_moves(
    schedules: Schedules, times: Mapping[str, Any], zone: str, hour: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A slot that waits moves to its instant by the new rules and fires once. A log line says so."""
    await schedules.put(**times, zone=OLD)
    first, second = instant(schedules.clock, hour), instant(schedules.clock, hour, 2)
    await advance_to(schedules, instant(schedules.clock, 0))
    before = await schedules.fired()
    await change_rules(schedules, zone)
    view = await schedules.view(upcoming=2)
    assert (view["nextSlotAt"], view["upcoming"]) == (first, [first, second])
    (line,) = [each for each in caplog.records if "have moved" in each.message]
    assert vars(line)["slot"] == first
    for at in sorted({first, first.replace("T09", "T08"), second}):
        await advance_to(schedules, at)
    assert [each for each in await schedules.fired() if each not in before] == [first, second]


@pytest.mark.parametrize("times", EACH_DAY)
@pytest.mark.parametrize("zone", [LATER, EARLIER])
async def test_slot_that_has_fired(schedules: Schedules, times: Mapping[str, Any], zone: str) -> None:
    """A time of the clock that has fired by the old rules does not fire again by the new ones on this day."""
    await schedules.put(**times, zone=OLD)
    old, hour = instant(schedules.clock, 8), 9 if zone == LATER else 7
    second = instant(schedules.clock, hour, 2)
    await advance_to(schedules, old)
    before = await schedules.fired()
    assert old in before
    await change_rules(schedules, zone)
    assert (await schedules.view())["nextSlotAt"] == second
    await schedules.advance(hours=1)
    assert await schedules.fired() == before
    await advance_to(schedules, second)
    assert await schedules.fired() == [*before, second]


@pytest.mark.parametrize(("policy", "fired_late"), [("last", ["T07:40"]), ("all", ["T07:20", "T07:40"]), ("skip", [])])
async def test_times_that_are_jumped_over(schedules: Schedules, policy: str, fired_late: list[str]) -> None:
    """Times that the new rules put before the slot that fired last are late, and follow the policy."""
    await schedules.put(cron="0,20,40 10 * * *", zone=OLD, catchUp={"policy": policy})
    await advance_to(schedules, instant(schedules.clock, 8))
    before = await schedules.fired()
    await schedules.advance(minutes=10)
    await change_rules(schedules, EARLIER)
    await schedules.fire()
    after = [each for each in await schedules.fired() if each not in before]
    assert [each[10:16] for each in after] == fired_late
    view = await schedules.view(upcoming=1)
    assert view["upcoming"] == [view["nextSlotAt"]] == [instant(schedules.clock, 7)]
    assert view.get("missedSince", "")[10:16] == ("T07:20" if policy == "skip" else "")


async def test_instants_that_have_fired(schedules: Schedules) -> None:
    """A slot of the new rules at an instant that has fired as another time does not fire again."""
    await schedules.put(cron="0,30 9-17 * * *", zone=OLD, catchUp={"policy": "all"})
    await advance_to(schedules, instant(schedules.clock, 10))
    before = await schedules.fired()
    await schedules.advance(minutes=10)
    await change_rules(schedules, EARLIER)
    await schedules.advance(hours=1)
    after = [each for each in await schedules.fired() if each not in before]
    assert [each[10:16] for each in after] == ["T10:30", "T11:00"]


@pytest.mark.parametrize("hours", [0, 2])
async def test_command_after_new_rules_were_due(schedules: Schedules, hours: int) -> None:
    """A slot that the new rules put before the Put, or before a Resume, does not fire."""
    await advance_to(schedules, instant(schedules.clock, 7 - hours))
    await schedules.advance(minutes=30)
    await schedules.put(cron="0 10 * * *", zone=OLD)
    await schedules.about("Pause")
    await schedules.advance(hours=hours)
    await schedules.about("Resume")
    await change_rules(schedules, EARLIER)
    await schedules.advance(hours=1)
    assert await schedules.fired() == []
    assert (await schedules.view())["nextSlotAt"] == instant(schedules.clock, 7)


@pytest.mark.parametrize("zone", [LATER, EARLIER])
async def test_backfill_in_progress(schedules: Schedules, zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backfill goes on by the new rules after a portion, and each time of the clock fires once."""
    monkeypatch.setattr(room, "MOST_COMPUTING_SECONDS", math.inf)
    monkeypatch.setattr(backfill_pass, "COSTLY", room.MOST_SLOTS // 10)
    await schedules.put(cron="0,20,40 10 * * *", zone=OLD)
    schedules.clock.advance(hours=12)
    await schedules.backfill(schedules.clock.now() - 6 * DAY, schedules.clock.now())
    assert await schedules.fire_backfills(1) == 1
    count = len(await schedules.backfilled())
    assert count == 10
    await schedules.sql(f"UPDATE schedule_backfills SET zone = '{zone}'")
    await schedules.fire_backfills()
    fired = [datetime.fromisoformat(each) for each in await schedules.backfilled()]
    offsets = [2] * count + [1 if zone == LATER else 3] * (len(fired) - count)
    shown = [f"{each + timedelta(hours=offset):%m-%d %H:%M}" for each, offset in zip(fired, offsets, strict=True)]
    days = sorted({each[:5] for each in shown})
    assert len(days) == 6
    assert shown == [f"{day} {time}" for day in days for time in ("10:00", "10:20", "10:40")]


async def test_same_put_moves_the_slot(schedules: Schedules) -> None:
    """A Put that changes nothing computes the slot by the rules of the instance, before the worker reads the row."""
    await schedules.put(cron="0 10 * * *", zone=OLD)
    await schedules.sql(f"UPDATE schedules SET zone = '{LATER}'")
    assert await schedules.put(cron="0 10 * * *", zone=LATER) == "unchanged"
    view = await schedules.view(upcoming=1)
    assert view["upcoming"] == [view["nextSlotAt"]]
    assert "T09:00" in view["nextSlotAt"]


@pytest.mark.parametrize(("zone", "step"), [*product([LATER, EARLIER], [1, 5])])
async def test_generated_schedules(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, zone: str, step: int
) -> None:
    """Whenever the rules change, each time of the clock fires once, at its instant by the rules of that moment."""
    schedules = Schedules(store, memory_broker, clock)
    hours = [*range(0, 24, step)]
    names = [f"s-{hour}" for hour in hours]
    for name, hour in zip(names, hours, strict=True):
        await schedules.put(name, cron=f"0 {hour} * * *", zone=OLD)
    await advance_to(schedules, instant(clock, 0))
    change = 11
    for number in range(change):
        await schedules.advance(hours=1 if number else 0.5)
    changed_at = clock.now()
    await change_rules(schedules, zone)
    await schedules.fire()
    for _ in range(36):
        await schedules.advance(hours=0.5)
    offset = 1 if zone == LATER else 3
    for name, hour in zip(names, hours, strict=True):
        fired = [datetime.fromisoformat(each) for each in await schedules.fired(name)]
        is_old = [each.timestamp() * 1000 <= changed_at and each.hour == (hour - 2) % 24 for each in fired]
        walls = [((each.hour + (2 if old else offset)) % 24) for each, old in zip(fired, is_old, strict=True)]
        assert set(walls) <= {hour}
        days = [
            (each.timestamp() + 3600 * (2 if old else offset)) // 86_400
            for each, old in zip(fired, is_old, strict=True)
        ]
        assert len(days) == len(set(days)), f"{name} fired a time twice: {fired}"
        assert days == [*range(int(days[0]), int(days[-1]) + 1)], f"{name} lost a slot: {fired}"


def test_doctor_names_zones_with_other_rules() -> None:
    """The doctor warns of next slots that were computed from other zone data than those of its machine."""
    (finding,) = check_zones(
        [("Europe/Berlin", "0000", 3), (OLD, load_zone(OLD).rules, 1), ("Mars/Olympus", "0000", 1)]
    )
    assert finding.message.endswith(": Europe/Berlin (3)")
