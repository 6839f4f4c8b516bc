"""Real changes of the rules of zones: a service that restarts with a newer release of the data, in time or late."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import pytest

from tests.harness.cases import case
from tests.harness.clock import ManualClock, iso
from tests.harness.memory_broker import MemoryBroker
from tests.harness.reference_slots import Clock, PlainCron
from tests.harness.schedules import Schedules
from tests.harness.zone_releases import RULE_CHANGES, RuleChange, releases, use_release
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.values.instant import parse_instant
from timer_service.schedules.calendar.recurrence import Recurrence, parse_recurrence, slots_between
from timer_service.schedules.firing.worker import FiringWorker
from timer_service.workflows.commands.slot_start import start_workflows

MINUTE, HOUR, DAY = 60_000, 3_600_000, 24 * 3_600_000
ARRIVALS = [-DAY, *(minutes * MINUTE for minutes in (-30, 5, 40, 65, 95, 125, 180)), 2 * DAY]
"""When the new data arrive, from the first instant that differs."""
MIXED = ("Africa/Cairo", "Asia/Almaty")
ALL = {"catchUp": {"policy": "all", "limit": 1000}}


class Times(NamedTuple):
    """Times of the clock on each day. `anchor`: that of a calendar interval with the same slots."""

    cron: str
    anchor: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a PutSchedule."""
        if self.anchor is None:
            return {"cron": self.cron}
        return {"calendar": {"every": 1, "unit": "days", "anchor": self.anchor}}


TIMES = [
    *(Times(f"{time} * * *") for time in ("0 0", "30 0", "30 1", "15 2", "0 3", "30 10", "30 23")),
    *(Times(f"30 {hour} * * *", f"2020-01-01T{hour:02}:30") for hour in (0, 2)),
    *map(Times, ["0,20,40 0 * * *", "10,50 3 * * *", "0 0-5 * * *", "*/30 0-3 * * *"]),
]


class Slots:
    """The slots of a zone with each release, found by looking at each minute of its clock."""

    def __init__(self, change: RuleChange) -> None:
        self._found: dict[tuple[str, str], dict[int, datetime]] = {}
        """The slots of each release and expression, with the time of the clock that each is for."""
        for release in (change.before, change.after):
            use_release(release)
            start = (change.since - 2 * DAY) // 1000
            clock = Clock(change.zone, start, start + 6 * DAY // 1000, 60)
            self._found |= {(release, times.cron): _slots_of(clock, times.cron) for times in TIMES}

    def of(self, release: str, cron: str, after: int, until: int) -> dict[int, datetime]:
        """Return the slots later than `after` and not later than `until`, with the times of the clock."""
        return {slot: time for slot, time in self._found[release, cron].items() if after < slot <= until}


def _slots_of(clock: Clock, cron: str) -> dict[int, datetime]:
    expression, shown = PlainCron(cron), dict(clock.shown)
    return {slot * 1000: _time_of(expression, shown[slot], clock) for slot in clock.slots(cron)}


def _time_of(expression: PlainCron, shown: datetime, clock: Clock) -> datetime:
    """Return the last time of an expression up to a reading: a time in a gap has its slot after the gap."""
    while not expression.matches(shown):
        shown -= clock.step
    return shown


def expected_slots(fired: Mapping[int, datetime], new: Mapping[int, datetime], *, fixed: bool) -> list[int]:
    """Return the slots that fire if those of `fired` did by the old rules: each time once, by the rules in force.

    `new`: all slots since the Put by the new rules. A time that they put in the past fires too, unless a later slot has
    fired that they also have.
    """
    last = max(fired, default=0)
    if not fixed:
        return [*fired, *(slot for slot in new if slot > last)]
    time = max(fired.values(), default=datetime.min)  # noqa: DTZ901 - the reading of a clock
    handled = [slot for slot, its_time in new.items() if slot <= last and (slot in fired or its_time <= time)]
    return sorted([*fired, *(slot for slot, its in new.items() if slot > max(handled, default=0) and its > time)])


@pytest.fixture(autouse=True)
def any_release() -> Iterator[None]:
    with releases():
        yield


def restart(schedules: Schedules) -> None:
    schedules.worker = FiringWorker(schedules.parts, start_workflows)


@pytest.mark.slow
@pytest.mark.parametrize("change", RULE_CHANGES, ids=lambda change: change.zone)
async def test_each_time_fires_once(sqlite: SqliteDatabase, change: RuleChange) -> None:
    """Whenever new data arrive, each time of the clock fires once, at its instant by the rules in force, or late."""
    put_at, end = change.since - DAY - HOUR, change.since + 3 * DAY
    slots = Slots(change)
    for arrival in ARRIVALS:
        moved_at = change.since + arrival
        use_release(change.before)
        schedules = Schedules(sqlite, MemoryBroker(), ManualClock(put_at))
        names = {f"{number} {arrival}": times for number, times in enumerate(TIMES)}
        for name, times in names.items():
            await schedules.put(name, **times.fields, zone=change.zone, **ALL)
        schedules.clock.set(moved_at)
        await schedules.fire()
        use_release(change.after)
        restart(schedules)
        await schedules.fire()
        schedules.clock.set(end)
        await schedules.fire()
        fired: dict[str, list[str]] = {name: [] for name in names}
        for stored in await schedules.stored():
            payload = json.loads(stored.body)["payload"]
            fired[payload["scheduleId"]].append(payload["slotAt"])
        for name, times in names.items():
            by_old_rules = slots.of(change.before, times.cron, put_at, moved_at)
            new = slots.of(change.after, times.cron, put_at, end)
            expected = expected_slots(by_old_rules, new, fixed=PlainCron(times.cron).fixed)
            with case(change.zone, times.cron, iso(moved_at)):
                assert sorted(fired[name]) == [iso(each) for each in expected]
        await schedules.sql("DELETE FROM schedules")


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [each for each in RULE_CHANGES if each.zone in MIXED], ids=lambda change: change.zone
)
async def test_instances_with_different_releases(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, change: RuleChange
) -> None:
    """While one of two instances has old data, each time fires once a day, at its instant by the rules of either."""
    clock = ManualClock(change.since - 3 * HOUR)
    use_release(change.before)
    instances = [(release, Schedules(postgres, memory_broker, clock)) for release in (change.before, change.after)]
    hours = (0, 1, 2, 3, 22, 23)
    for hour in hours:
        await instances[0][1].put(str(hour), cron=f"30 {hour} * * *", zone=change.zone, **ALL)
    slots = {str(hour): set[int]() for hour in hours}
    for release, _ in instances:
        use_release(release)
        for name, found in slots.items():
            found |= {*slots_between(recurrence(name, change.zone), clock.now(), clock.now() + 2 * DAY)}
    for slot in sorted(set.union(*slots.values())):
        for at in (slot, slot + 10_001):  # an instance leaves a slot of other rules to others for ten seconds
            clock.set(at)
            for release, each in instances:
                use_release(release)
                await each.fire()
    for name, possible in slots.items():
        fired = [parse_instant(each) for each in await instances[0][1].fired(name)]
        with case(change.zone, name):
            assert {*fired} <= possible
            assert len(fired) == 2
            assert abs(fired[1] - fired[0] - DAY) <= HOUR


def recurrence(hour: str, zone: str) -> Recurrence:
    return parse_recurrence(cron=f"30 {hour} * * *", every=None, zone=zone)
