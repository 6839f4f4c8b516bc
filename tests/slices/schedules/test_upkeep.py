"""Retention, row counts, wrong clocks, lists, previews and the constraints of the schema."""

import itertools
import json
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tests.harness.clock import NOW, after, iso
from tests.harness.in_process import exhaust
from tests.harness.schedules import Schedules
from timer_service.core.due.row_counts import RowCounts, overdue_sql
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.requests.computing import Computing
from timer_service.core.requests.query import Queries
from timer_service.core.service.clock_repair import ClockRepair
from timer_service.core.service.upkeep import Retention
from timer_service.schedules.backfill import store as backfill_store
from timer_service.schedules.queries import QUERIES
from timer_service.schedules.store import COUNTED, SCHEDULES, TIMED, delete_settled


async def test_retention(schedules: Schedules) -> None:
    """Ended and deleted schedules and remembered commands are deleted after the retention time. Others stay."""
    for name, fields in {"active": {}, "paused": {}, "ended": {"maxCount": 1}, "deleted": {}}.items():
        await schedules.put(name, every="PT1H", **fields)
    await schedules.about("Pause", "paused")
    await schedules.about("Delete", "deleted")
    await schedules.about("Pause", "remembered")
    await schedules.put("confirmed", every="PT1H", maxCount=1)
    await schedules.advance(hours=1)
    schedules.clock.advance(days=1)
    assert await schedules.put("confirmed", every="PT1H", maxCount=1) == "unchanged"
    portion = await in_transaction(schedules.database, partial(delete_settled, before=after(days=30), limit=2))
    retention = Retention(schedules.database, timedelta(days=7), delete_settled)
    deleted = [(await retention.tick(at)).done for at in (after(days=7), after(days=7, hours=1, milliseconds=1))]
    left = [row["schedule_id"] for row in await schedules.all_rows()]
    assert (portion, deleted, left) == (2, [0, 1], ["active", "confirmed", "paused"])


async def test_row_counts(schedules: Schedules) -> None:
    """The gauges show active schedules, overdue and failing ones, and open backfills."""
    for name in ("active", "paused", "broken"):
        await schedules.put(name, cron="* * * * *", zone="Europe/Berlin")
    await schedules.backfill(after(minutes=-3), NOW, "active")
    await schedules.about("Pause", "paused")
    await schedules.sql("UPDATE schedules SET zone = 'Mars/Olympus' WHERE schedule_id = 'broken'")
    await schedules.advance(minutes=1)
    await schedules.advance(seconds=10)  # no other instance has computed it
    overdue = {SCHEDULES.name: overdue_sql(SCHEDULES)}
    counted = (*COUNTED, backfill_store.COUNTED)
    await RowCounts(schedules.database, schedules.metrics, counted=counted, overdue=overdue).tick(after(minutes=4))
    assert schedules.metrics.counts == {
        ("schedules", "active"): 2,
        ("schedules", "failing"): 1,
        ("schedule_backfills", "open"): 1,
    }
    assert [count for count, _ in schedules.metrics.overdues["schedules"]] == [2]


async def test_repair_after_a_clock_that_was_ahead(schedules: Schedules) -> None:
    """Schedules that fired or failed while the clock was ahead by a year fire again, under the same ids.

    Schedules without a next slot, and those of a rare slot, stay as they are.
    """
    for name, fields in {"hourly": {}, "paused": {}, "deleted": {}, "ended": {"maxCount": 1}}.items():
        await schedules.put(name, every="PT1H", **fields)
    await schedules.put("failed", every="P300D", startAt=iso(after(hours=1)))
    await schedules.put("yearly", every="P366D", jitter="P1D", startAt=iso(after(days=400)))
    await schedules.backfill(after(hours=-3), NOW, "hourly")
    await schedules.sql(f"UPDATE schedule_backfills SET available_at = {after(hours=1)}")
    schedules.clock.set(after(hours=9000))
    await schedules.sql("UPDATE schedules SET zone = 'Mars/Olympus' WHERE schedule_id = 'failed'")
    await schedules.sql(
        f"UPDATE schedules SET last_error = 'no', available_at = {after(hours=9000)} WHERE schedule_id = 'failed'"
    )
    await exhaust(schedules.worker, schedules.clock.now() - 1)
    await schedules.publish()
    await schedules.about("Pause", "paused")
    await schedules.about("Delete", "deleted")
    before = {name: await schedules.row(name) for name in ("paused", "deleted", "ended", "yearly")}
    schedules.clock.set(NOW)
    await exhaust(ClockRepair(schedules.database, schedules.clock, [*TIMED, backfill_store.TIMED]), NOW)
    await schedules.sql("UPDATE schedules SET zone = 'UTC' WHERE schedule_id = 'failed'")
    assert {name: await schedules.row(name) for name in before} == before
    await schedules.fire_backfills()
    assert len(await schedules.backfilled("hourly")) == 3
    await schedules.advance(milliseconds=1)
    assert (await schedules.row("hourly"))["slot_at"] == after(hours=1)
    await schedules.advance(hours=1)
    assert iso(after(hours=1)) in await schedules.fired("hourly")
    assert await schedules.fired("failed") == [iso(after(hours=1))]


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


# Queries


async def test_list(schedules: Schedules) -> None:
    """The list has active, paused and then ended schedules, each in order of ids, in pages, without tombstones."""
    for number in range(12):
        await schedules.put(f"s-{number:02}", every="PT1H", **({"maxCount": 1} if number % 3 == 2 else {}))
    for number in range(1, 12, 3):
        await schedules.about("Pause", f"s-{number:02}")
    await schedules.about("Delete", "s-00")
    await schedules.about("Pause", "remembered")
    await schedules.advance(hours=1)
    names: list[str] = []
    page = await schedules.ask("list-schedules", limit=5)
    while True:
        names += [each["scheduleId"] for each in page["schedules"]]
        if "cursor" not in page:
            break
        page = await schedules.ask("list-schedules", limit=5, cursor=page["cursor"])
    assert names == [f"s-{number:02}" for number in (3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11)]
    counts = {
        status: len((await schedules.ask("list-schedules", status=status))["schedules"])
        for status in ("active", "paused", "ended")
    }
    assert counts == {"active": 3, "paused": 4, "ended": 4}
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


async def test_upcoming_after_a_command(schedules: Schedules) -> None:
    """The reply to a command has the next slot among the upcoming ones: none if it has ended, unknown if paused."""
    replies = [
        await schedules.request("PutSchedule", scheduleId="daily", every="PT1M"),
        await schedules.request("PauseSchedule", scheduleId="daily"),
        await schedules.request("PutSchedule", scheduleId="past", every="PT1M", endAt=iso(NOW)),
    ]
    assert [each["schedule"].get("upcoming") for each in replies] == [[iso(after(minutes=1))], None, []]


async def test_preview(schedules: Schedules) -> None:
    """preview-slots returns the slots of a recurrence and stores nothing. Bad input has the codes of PutSchedule."""
    preview = await schedules.ask(
        "preview-slots", cron="30 2 * * *", zone="Europe/Berlin", count=2, **{"from": "2027-03-27T01:30:00Z"}
    )
    assert preview == {"slots": ["2027-03-27T01:30:00.000Z", "2027-03-28T01:00:00.000Z"], "complete": True}
    assert (await schedules.ask("preview-slots", every="PT1H", count=1))["slots"] == [iso(after(hours=0))]
    assert (await schedules.ask("preview-slots", cron="61 * * * *"))["error"]["code"] == "INVALID_CRON"
    assert await schedules.all_rows() == []


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("preview-slots", {"cron": "7 7 29 2 TUE", "count": 100}),
        ("get-schedule", {"scheduleId": "rare", "upcoming": 100}),
    ],
)
async def test_computing_slots_rests(schedules: Schedules, query: str, fields: dict[str, Any]) -> None:
    """A query that computes slots for long leaves the event loop to other tasks in between, and soon ends."""
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
    if query == "preview-slots":
        preview = await schedules.ask(query, **fields)
        assert (len(preview["slots"]) == 100) is preview["complete"]


# Schema


FORBIDDEN = {
    "schedules": [
        *("status = 'done'", "status = 'paused'", "status = 'ended'", "status = 'deleted'"),
        *("slot_at = NULL", "available_at = NULL", "slot_at = after_at", "available_at = slot_at - 1"),
        *("end_at = slot_at", "ended_at = 1", "end_reason = 'end_at'", "is_paused = 1", "is_paused = 2"),
        *("cron = '* * * * *'", "every_ms = NULL", "every_ms = 999", "zone = NULL", "jitter_ms = -1"),
        *("catch_up = NULL", "late_by_ms = 0", "catch_up_limit = 0", "max_count = 0", "fired_count = -1"),
        *("calendar = '[1]'", "fired_count = max_count + 1", "data_size = 0", "data = NULL", "confirmed_at = 1"),
        "status = 'paused', is_paused = 1, slot_at = NULL, available_at = NULL, last_error = 'no'",
        "status = 'deleted', slot_at = NULL, available_at = NULL, ended_at = 1",
        "topic = 'a', start = '[]'",
    ],
    "schedule_backfills": [
        *("to_at = from_at", "after_at = from_at - 2", "after_at = to_at", "slot_limit = 0"),
        *("fired_count = slot_limit", "fired_count = 5, skipped_count = slot_limit - 5", "fired_count = -1"),
        *("skipped_count = -1", "cron = '* * * * *'", "every_ms = NULL", "every_ms = 999", "jitter_ms = -1"),
        *("data = NULL", "data_size = 0", "topic = 'a', start = '[]'", "calendar = '[1]'"),
    ],
}


async def test_schema_refuses(schedules: Schedules) -> None:
    """Both engines refuse a row that would break a promise of schedules."""
    await schedules.put(maxCount=3, data=1)
    await schedules.backfill(after(minutes=-3), NOW)
    for table, changes in FORBIDDEN.items():
        for change in changes:
            with pytest.raises(Exception, match=r"(?i)check constraint"):
                await schedules.sql(f"UPDATE {table} SET {change}")
