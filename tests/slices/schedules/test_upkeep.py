"""Retention, row counts, wrong clocks, lists and the constraints of the schema."""

import asyncio
import itertools
import json
from datetime import timedelta

import pytest

from tests.harness.clock import NOW, after, iso
from tests.harness.schedules import Schedules
from timer_service.core.due.row_counts import RowCounts, overdue_sql
from timer_service.core.requests.computing import Computing
from timer_service.core.requests.query import Queries
from timer_service.core.service.clock_repair import ClockRepair
from timer_service.core.service.upkeep import Retention
from timer_service.schedules.queries import QUERIES
from timer_service.schedules.store import COUNTED, SCHEDULES, TIMED, delete_settled


async def run_retention(schedules: Schedules) -> int:
    """Run one pass of retention. Return the number of deleted rows."""
    return (await Retention(schedules.database, timedelta(days=7), delete_settled).tick(schedules.clock.now())).done


async def test_retention(schedules: Schedules) -> None:
    """Ended and deleted schedules and remembered commands are deleted after the retention time. Others stay."""
    for name, fields in {"active": {}, "paused": {}, "ended": {"maxCount": 1}, "deleted": {}}.items():
        await schedules.put(name, every="PT1H", **fields)
    await schedules.about("Pause", "paused")
    await schedules.about("Delete", "deleted")
    await schedules.about("Pause", "remembered")
    await schedules.advance(hours=1)
    schedules.clock.set(after(days=7))
    early = await run_retention(schedules)
    schedules.clock.advance(hours=1, milliseconds=1)
    deleted = await run_retention(schedules)
    left = [row["schedule_id"] for row in await schedules.all_rows()]
    assert (early, deleted, left) == (0, 3, ["active", "paused"])


async def test_row_counts(schedules: Schedules) -> None:
    """The gauges show active schedules, overdue ones, and those whose next slot cannot be computed."""
    for name in ("active", "paused", "broken"):
        await schedules.put(name, cron="* * * * *", zone="Europe/Berlin")
    await schedules.about("Pause", "paused")
    await schedules.sql("UPDATE schedules SET zone = 'Mars/Olympus' WHERE schedule_id = 'broken'")
    await schedules.advance(minutes=1)
    await schedules.advance(seconds=10)  # no other instance has computed it
    await RowCounts(
        schedules.database, schedules.metrics, counted=COUNTED, overdue={SCHEDULES.name: overdue_sql(SCHEDULES)}
    ).tick(after(minutes=4))
    assert schedules.metrics.counts == {("schedules", "active"): 2, ("schedules", "failing"): 1}
    assert schedules.metrics.overdues == {"schedules": [(2, 120.0)]}


async def test_attempt_of_a_clock_that_was_ahead(schedules: Schedules) -> None:
    """A schedule that failed while the clock was ahead by a year does not wait for a year. Others stay as they are."""
    await schedules.put("broken", every="P300D", startAt=iso(after(hours=1)))
    await schedules.put("yearly", every="P366D", jitter="P1D", startAt=iso(after(days=300)))
    await schedules.sql(
        f"UPDATE schedules SET last_error = 'no', available_at = {after(days=365)} WHERE schedule_id = 'broken'"
    )
    yearly = await schedules.row("yearly")
    repair = ClockRepair(schedules.database, schedules.clock, TIMED)
    repaired = 0
    for _ in range(3):
        repaired += (await repair.tick(schedules.clock.now())).done
    row = await schedules.row("broken")
    assert (repaired, row["available_at"], await schedules.row("yearly")) == (1, after(hours=1), yearly)
    await schedules.advance(hours=1)
    assert await schedules.fired("broken") == [iso(after(hours=1))]


async def test_cursor_of_a_clock_that_was_ahead(schedules: Schedules) -> None:
    """A schedule that fired while the clock was ahead by a year does not stay silent for a year.

    A slot that has fired in that time fires again, under the same event id.
    """
    await schedules.put("hourly", every="PT1H", startAt=iso(after(hours=1)))
    schedules.clock.set(after(hours=9000))
    await schedules.fire()
    schedules.clock.set(NOW)
    repair = ClockRepair(schedules.database, schedules.clock, TIMED)
    repaired = 0
    for _ in range(3):
        repaired += (await repair.tick(schedules.clock.now())).done
    await schedules.advance(milliseconds=1)
    row = await schedules.row("hourly")
    assert (repaired, row["slot_at"], row["last_error"]) == (1, after(hours=1), None)
    await schedules.advance(hours=1)
    assert iso(after(hours=1)) in await schedules.fired("hourly")


@pytest.mark.parametrize("verb", ["Resume", "Put"])
async def test_start_after_a_clock_that_was_ahead(schedules: Schedules, verb: str) -> None:
    """A schedule that was paused or deleted while the clock was ahead fires again after a Resume or a Put."""
    await schedules.put("hourly", every="PT1H")
    schedules.clock.set(after(hours=9000))
    await schedules.fire()
    await schedules.about("Pause" if verb == "Resume" else "Delete", "hourly")
    schedules.clock.set(NOW)
    await schedules.advance(minutes=1)
    await (schedules.about("Resume", "hourly") if verb == "Resume" else schedules.put("hourly", every="PT1H"))
    assert (await schedules.row("hourly"))["slot_at"] == after(hours=1)


async def test_repair_beside_schedules_without_a_next_slot(schedules: Schedules) -> None:
    """Ended, paused and deleted schedules of a clock that was ahead do not stop the repair of the others."""
    for name, fields in {"hourly": {}, "paused": {}, "deleted": {}, "ended": {"maxCount": 1}}.items():
        await schedules.put(name, every="PT1H", **fields)
    schedules.clock.set(after(hours=9000))
    await schedules.fire()
    await schedules.about("Pause", "paused")
    await schedules.about("Delete", "deleted")
    schedules.clock.set(NOW)
    repair = ClockRepair(schedules.database, schedules.clock, TIMED)
    assert sum([(await repair.tick(schedules.clock.now())).done for _ in range(3)]) == 1
    await schedules.advance(milliseconds=1)
    assert (await schedules.row("hourly"))["slot_at"] == after(hours=1)


# Queries


async def test_list(schedules: Schedules) -> None:
    """The list is in order of ids, by status or over all, in pages, and without tombstones."""
    for number in range(30):
        await schedules.put(f"s-{number:02}", every="PT1H", **({"maxCount": 1} if number % 3 == 2 else {}))
    for number in range(1, 30, 3):
        await schedules.about("Pause", f"s-{number:02}")
    await schedules.about("Delete", "s-00")
    await schedules.about("Pause", "remembered")
    await schedules.advance(hours=1)
    names: list[str] = []
    page = await schedules.ask("list-schedules", limit=7)
    while True:
        names += [each["scheduleId"] for each in page["schedules"]]
        if "cursor" not in page:
            break
        page = await schedules.ask("list-schedules", limit=7, cursor=page["cursor"])
    assert names == [f"s-{number:02}" for number in range(1, 30)]
    counts = {
        status: len((await schedules.ask("list-schedules", status=status))["schedules"])
        for status in ("active", "paused", "ended")
    }
    assert counts == {"active": 9, "paused": 10, "ended": 10}
    assert (await schedules.ask("list-schedules", tenant="globex"))["schedules"] == []


async def test_upcoming(schedules: Schedules) -> None:
    """get-schedule shows the next slots, as many as may still fire, also of a paused schedule."""
    await schedules.put(maxCount=3)
    await schedules.advance(minutes=1)
    found = {"active": (await schedules.view(upcoming=100))["upcoming"]}
    await schedules.about("Pause")
    schedules.clock.advance(minutes=10)
    found["paused"] = (await schedules.view(upcoming=1))["upcoming"]
    await schedules.put(endAt=iso(NOW))
    found["ended"] = (await schedules.view(upcoming=5))["upcoming"]
    assert found == {
        "active": [iso(after(minutes=2)), iso(after(minutes=3))],
        "paused": [iso(after(minutes=12))],
        "ended": [],
    }


async def test_preview(schedules: Schedules) -> None:
    """preview-slots returns the slots of a recurrence and stores nothing. Bad input has the codes of PutSchedule."""
    preview = await schedules.ask(
        "preview-slots", cron="30 2 * * *", zone="Europe/Berlin", count=2, **{"from": "2027-03-27T01:30:00Z"}
    )
    assert preview == {"slots": ["2027-03-27T01:30:00.000Z", "2027-03-28T01:00:00.000Z"], "complete": True}
    assert (await schedules.ask("preview-slots", every="PT1H", count=1))["slots"] == [iso(after(hours=0))]
    assert len((await schedules.ask("preview-slots", every="PT1H"))["slots"]) == 10
    assert (await schedules.ask("preview-slots", cron="61 * * * *"))["error"]["code"] == "INVALID_CRON"
    assert (await schedules.ask("preview-slots", cron="0 0 30 2 *"))["error"]["code"] == "NEVER_FIRES"
    assert await schedules.all_rows() == []


async def test_slow_preview_stops(schedules: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing slots ends after 20 ms. The reply says that more slots follow."""
    monkeypatch.setattr("timer_service.schedules.queries._COMPUTING_SECONDS", 0)
    preview = await schedules.ask("preview-slots", cron="0 0 29 2 MON", count=100)
    assert (len(preview["slots"]) < 100, preview["complete"]) == (True, False)
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("preview-slots", {"cron": "7 7 29 2 TUE", "count": 100}),
        ("get-schedule", {"scheduleId": "rare", "upcoming": 100}),
    ],
)
async def test_computing_slots_rests(schedules: Schedules, query: str, fields: dict[str, object]) -> None:
    """A query that computes slots for long leaves the event loop to other tasks in between."""
    await schedules.put("rare", cron="8 8 29 2 WED")
    rests: list[float] = []
    milliseconds = itertools.count()

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    computing = Computing(monotonic=lambda: next(milliseconds) / 1000, sleep=sleep)
    queries = Queries(schedules.database, schedules.clock, QUERIES, schedules.metrics, computing=computing)
    reply = await queries.answer(query, "acme", json.dumps(fields).encode())
    assert reply.code is None
    assert sum(rests) > 0.005


# Schema


FORBIDDEN = [
    "status = 'done'",
    "status = 'paused'",
    "status = 'ended'",
    "status = 'deleted'",
    "slot_at = NULL",
    "available_at = NULL",
    "slot_at = after_at",
    "available_at = slot_at - 1",
    "end_at = slot_at",
    "ended_at = 1",
    "end_reason = 'end_at'",
    "is_paused = 1",
    "is_paused = 2",
    "cron = '* * * * *'",
    "every_ms = NULL",
    "every_ms = 999",
    "zone = NULL",
    "jitter_ms = -1",
    "catch_up = NULL",
    "late_by_ms = 0",
    "catch_up_limit = 0",
    "max_count = 0",
    "fired_count = -1",
    "fired_count = max_count + 1",
    "data_size = 0",
    "data = NULL",
    "confirmed_at = 1",
    "status = 'paused', is_paused = 1, slot_at = NULL, available_at = NULL, last_error = 'no'",
    "status = 'deleted', slot_at = NULL, available_at = NULL, ended_at = 1",
]


async def test_schema_refuses(schedules: Schedules) -> None:
    """Both engines refuse a row that would break a promise of schedules."""
    await schedules.put(maxCount=3, data=1)
    for change in FORBIDDEN:
        with pytest.raises(Exception, match=r"(?i)check constraint"):
            await schedules.sql(f"UPDATE schedules SET {change}")
