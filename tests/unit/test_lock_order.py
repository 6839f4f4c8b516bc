"""Statements that write several rows get them in the order of their keys, so that two instances cannot deadlock."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Any

import pytest

from tests.harness.builders import scheduled
from tests.harness.clock import NOW
from timer_service.core.due.due_rows import DueRows
from timer_service.core.due.isolate import Retry
from timer_service.core.due.lease import Failure, Lease
from timer_service.core.events import outbox
from timer_service.core.events.cause import Cause
from timer_service.core.events.outbox import OUTBOX
from timer_service.core.ports.database import Parameters, Row
from timer_service.core.values.message import Event, Position
from timer_service.schedules import schedule
from timer_service.schedules import store as schedules
from timer_service.schedules.backfill import store as backfills
from timer_service.schedules.backfills import Backfill, BackfillKey
from timer_service.schedules.calendar.recurrence import Recurrence
from timer_service.schedules.schedule import Schedule
from timer_service.schedules.store import SCHEDULES
from timer_service.signals import firing_store
from timer_service.signals import store as signals
from timer_service.signals.firing_store import FIRINGS
from timer_service.signals.signal import ItemKey, Key
from timer_service.timers import store as timers
from timer_service.timers.store import TIMERS

HOLD = timedelta(seconds=30)
NOTHING: Parameters = {}
IDS = ["c", "a", "e", "b", "d"]


class Recorder:
    """A transaction that records the keys of each statement on many rows."""

    def __init__(self, *key: str) -> None:
        self._key = key
        self.statements: list[list[tuple[Any, ...]]] = []

    async def fetch(self, _sql: str, _parameters: Parameters = NOTHING) -> Sequence[Row]:
        return []

    async def fetch_each(self, _sql: str, many: Sequence[Parameters]) -> Sequence[Row]:
        await self.executemany(_sql, many)
        return []

    async def execute(self, _sql: str, _parameters: Parameters = NOTHING) -> int:
        return 1

    async def executemany(self, _sql: str, many: Sequence[Parameters]) -> int:
        self.statements.append([tuple(each[column] for column in self._key) for each in many])
        return len(many)

    async def insert(self, _sql: str, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        self.statements.append([tuple(each) for each in rows])
        return []

    async def wait_briefly(self) -> None:
        """Do nothing."""

    def on_commit(self, _then: Callable[[], None]) -> None:
        """Do nothing."""


def claimed(*key: str) -> list[Row]:
    tenant, name = key
    rows: list[dict[str, Any]] = [
        {tenant: f"t{n % 2}", name: IDS[n], "lease_token": "token", "large_body": None} for n in range(len(IDS))
    ]
    return list(rows)


def failures(rows: Sequence[Row]) -> list[Failure]:
    return [Failure(row, "no", NOW) for row in rows]


Write = Callable[[Recorder, Lease, list[Row]], Awaitable[object]]
LEASE: dict[str, Write] = {
    "complete": lambda tx, lease, rows: lease.complete(tx, rows, NOW),
    "retry": lambda tx, lease, rows: lease.retry(tx, failures(rows)),
    "bury": lambda tx, lease, rows: lease.bury(tx, failures(rows)),
    "release": lambda tx, lease, rows: lease.release(tx, rows),
}


@pytest.mark.parametrize("table", [TIMERS, OUTBOX, FIRINGS], ids=lambda table: table.name)
@pytest.mark.parametrize("write", LEASE.values(), ids=LEASE)
async def test_lease(write: Write, table: Any) -> None:
    """Every step on claimed rows is in the order of the keys."""
    tx = Recorder(*table.key)
    await write(tx, Lease(table, HOLD), claimed(*table.key))
    assert tx.statements == [sorted(tx.statements[0])]


async def test_events_are_added_in_key_order() -> None:
    """Events are inserted in the order of their keys, and keep the numbers of their own order."""
    tx = Recorder("tenant_id", "event_id")
    await outbox.add(tx, [Event(name, "a.b", "acme", {}, NOW) for name in IDS], NOW)
    (added,) = tx.statements
    assert [event for _, event, *_ in added] == sorted(IDS)
    assert [event for _, event, *_ in sorted(added, key=itemgetter(-2))] == IDS


async def test_timers_are_saved_in_key_order() -> None:
    """Timers are locked and written in the order of their keys."""
    made = {timer.key: timer for timer in (scheduled(name, NOW, Position(1, 1)) for name in IDS)}
    tx = Recorder("tenant_id", "service_call_id")
    await timers.load(tx, made.keys())
    await timers.save(tx, {}, made)
    assert [statement for statement in tx.statements if statement] == [[("acme", name) for name in sorted(IDS)]] * 2


async def test_new_timers_are_inserted_in_key_order() -> None:
    """New timers with different columns are inserted by one statement. Two could not have one order."""
    tx = Recorder("tenant_id", "service_call_id")
    made = [scheduled(name, correlation_id=name if name in "ab" else None) for name in IDS]
    await timers.insert_new(tx, [timers.new_row(timer) for timer in made])
    assert [[call for _, call, *_ in statement] for statement in tx.statements] == [sorted(IDS)]


async def test_backfills_are_written_in_key_order() -> None:
    """Backfills are added, saved, postponed and deleted in the order of their keys."""
    recurrence = Recurrence(None, 60_000)
    keys = [BackfillKey("acme", 1, number) for number in (3, 1, 2)]
    made = [Backfill(key, "daily", recurrence, 0, None, Cause("id"), 0, NOW, 5, -1, NOW) for key in keys]
    tx = Recorder("tenant_id", "position_sequence")
    await backfills.add(tx, made)
    await backfills.save(tx, made)
    await DueRows(backfills.BACKFILLS).postpone(tx, dict.fromkeys(keys, Retry(NOW, "an error")))
    await backfills.delete(tx, keys)
    assert tx.statements == [[("acme", 1), ("acme", 2), ("acme", 3)]] * 4


async def test_signals_and_work_items_are_locked_in_key_order() -> None:
    """Signals, work items and events of the outbox are locked in the order of their keys."""
    signals_tx, items_tx = Recorder("tenant_id", "signal_id"), Recorder("tenant_id", "work_item_id")
    events_tx = Recorder("tenant_id", "event_id")
    await signals.find_locked(signals_tx, [Key("acme", name) for name in IDS])
    await signals.save_items(items_tx, {ItemKey("acme", name): None for name in IDS}, NOW)
    await outbox.lock_states(events_tx, [outbox.EventKey("acme", name) for name in IDS])
    for tx in (signals_tx, items_tx, events_tx):
        assert all(keys == [("acme", name) for name in sorted(IDS)] for keys in tx.statements if keys)


async def test_firings_are_locked_in_key_order() -> None:
    """Firings are locked and settled in the order of their keys."""
    tx = Recorder("tenant_id", "firing_id")
    rows = claimed(*FIRINGS.key)
    await firing_store.lock_held(tx, rows)
    await firing_store.fail(tx, failures(rows), NOW)
    assert tx.statements == [sorted(tx.statements[0])] * 2


async def test_schedules_are_locked_and_written_in_key_order() -> None:
    """Schedules are locked, written and advanced in the order of their keys."""
    made = {
        key: Schedule(key, NOW, ended_at=NOW) for key in (schedule.Key(f"t{n % 2}", name) for n, name in enumerate(IDS))
    }
    tx = Recorder("tenant_id", "schedule_id")
    await schedules.load(tx, made.keys())
    await schedules.save(tx, {}, made)
    await schedules.save(tx, made, {key: each._replace(ended_at=NOW + 1) for key, each in made.items()})
    await schedules.advance(tx, made.values())
    await DueRows(SCHEDULES).select_keys(tx, list(made), NOW)
    assert [statement for statement in tx.statements if statement] == [sorted(made)] * 5
