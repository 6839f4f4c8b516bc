"""Statements that write several rows get them in the order of their keys, so that two instances cannot deadlock."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Any
from unittest.mock import AsyncMock

import pytest

from tests.harness.builders import scheduled
from tests.harness.clock import NOW
from timer_service.core.due.due_rows import DueRows
from timer_service.core.due.isolate import Retry
from timer_service.core.due.lease import Failure, Lease
from timer_service.core.events import outbox
from timer_service.core.events.outbox import OUTBOX
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.values.message import Command, Event, Position, Trace
from timer_service.runs import loader as runs
from timer_service.runs.rules import RunKey
from timer_service.schedules import schedule
from timer_service.schedules import store as schedules
from timer_service.schedules.schedule import Schedule
from timer_service.schedules.store import SCHEDULES
from timer_service.signals import firing_store
from timer_service.signals import store as signals
from timer_service.signals.firing_store import FIRINGS
from timer_service.signals.firings import FiringStatus
from timer_service.signals.signal import ItemKey, Key
from timer_service.timers import store as timers
from timer_service.timers.messages import PlainTimer
from timer_service.timers.rules import key_of, requested
from timer_service.timers.store import TIMERS

IDS = ["c", "a", "e", "b", "d"]


def new_transaction() -> AsyncMock:
    """Return a transaction that finds no rows."""
    tx = AsyncMock()
    tx.fetch.return_value = tx.fetch_each.return_value = tx.insert.return_value = []
    tx.execute.return_value = 1
    tx.executemany.side_effect = lambda _sql, many: len(many)
    return tx


def statements_of(tx: AsyncMock, *key: str) -> list[list[Any]]:
    """Return the keys of the rows of each statement on many rows, or whole rows."""
    many = [
        call.args[1] for call in tx.mock_calls if call[0] in {"fetch_each", "executemany", "insert"} and call.args[1]
    ]
    return [[tuple(row[column] for column in key) if key else tuple(row) for row in rows] for rows in many]


def claimed(*key: str) -> list[Row]:
    tenant, name = key
    return [{tenant: f"t{n % 2}", name: IDS[n], "lease_token": "token", "large_body": None} for n in range(len(IDS))]


def failures(rows: Sequence[Row]) -> list[Failure]:
    return [Failure(row, "no", NOW) for row in rows]


Write = Callable[[Transaction, Lease, list[Row]], Awaitable[object]]
LEASE: dict[str, Write] = {
    "complete": lambda tx, lease, rows: lease.complete(tx, rows, NOW),
    "retry": lambda tx, lease, rows: lease.retry(tx, failures(rows)),
    "bury": lambda tx, lease, rows: lease.bury(tx, failures(rows)),
    "release": lambda tx, lease, rows: lease.release(tx, rows),
}


@pytest.mark.parametrize("table", [TIMERS, OUTBOX], ids=lambda table: table.name)
@pytest.mark.parametrize("write", LEASE.values(), ids=LEASE)
async def test_lease(write: Write, table: Any) -> None:
    """Every step on claimed rows is in the order of the keys."""
    tx = new_transaction()
    await write(tx, Lease(table, timedelta(seconds=30)), claimed(*table.key))
    (statement,) = statements_of(tx, *table.key)
    assert statement == sorted(statement)


async def test_events() -> None:
    """Events are inserted in the order of their keys, and keep the numbers of their own order."""
    tx = new_transaction()
    await outbox.add(tx, [Event(name, "a.b", "acme", {}, NOW) for name in IDS], NOW)
    (added,) = statements_of(tx)
    assert [event for _, event, *_ in added] == sorted(IDS)
    assert [event for _, event, *_ in sorted(added, key=itemgetter(-2))] == IDS


async def write_timers(tx: Transaction) -> None:
    made = {timer.key: timer for timer in (scheduled(name, NOW, Position(1, 1)) for name in IDS)}
    await timers.load(tx, made.keys())
    await timers.save(tx, {}, made)


async def write_firings(tx: Transaction) -> None:
    keys = [firing_store.FiringKey("acme", name) for name in IDS]
    await DueRows(FIRINGS).select_keys(tx, keys, NOW)
    await firing_store.settle(tx, FiringStatus.ENQUEUED, dict.fromkeys(keys), NOW)
    await firing_store.retry(tx, dict.fromkeys(keys, Retry(NOW, "an error")))


async def write_schedules(tx: Transaction) -> None:
    keys = [schedule.Key(f"t{n % 2}", name) for n, name in enumerate(IDS)]
    made = {key: Schedule(key, NOW, ended_at=NOW) for key in keys}
    await schedules.load(tx, made.keys())
    await schedules.save(tx, {}, made)
    await schedules.save(tx, made, {key: each._replace(ended_at=NOW + 1) for key, each in made.items()})
    await schedules.advance(tx, made.values())
    await DueRows(SCHEDULES).select_keys(tx, keys, NOW)


STATEMENTS: dict[str, tuple[tuple[str, ...], Callable[[Transaction], Awaitable[object]], int]] = {
    "timers": (("tenant_id", "service_call_id"), write_timers, 2),
    "signals": (
        ("tenant_id", "signal_id"),
        lambda tx: signals.find_locked(tx, [Key("acme", name) for name in IDS]),
        1,
    ),
    "items": (
        ("tenant_id", "work_item_id"),
        lambda tx: signals.save_items(tx, {ItemKey("acme", name): None for name in IDS}, NOW),
        1,
    ),
    "states of events": (
        ("tenant_id", "event_id"),
        lambda tx: outbox.lock_states(tx, [outbox.EventKey("acme", name) for name in IDS]),
        1,
    ),
    "runs": (
        ("tenant_id", "run_id"),
        lambda tx: runs.lock_runs(tx, {RunKey("acme", name) for name in IDS}),
        1,
    ),
    "firings": (("tenant_id", "firing_id"), write_firings, 3),
    "schedules": (("tenant_id", "schedule_id"), write_schedules, 5),
}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_rows_are_locked_and_written_in_key_order(name: str) -> None:
    """Each statement on many rows has them in the order of their keys."""
    key, write, statements = STATEMENTS[name]
    tx = new_transaction()
    await write(tx)
    found = statements_of(tx, *key)
    assert found == [sorted(found[0])] * statements


async def test_new_timers() -> None:
    """New timers with different columns are inserted by one statement. Two could not have one order."""
    tx = new_transaction()
    rows = []
    for name in IDS:
        payload = PlainTimer("acme", name, NOW, None, None)
        sent = Command(name, payload, Position(1, 1), name if name in "ab" else None, Trace(), None)
        rows.append(timers.new_row(key_of(sent), sent, requested(key_of(sent), sent, NOW), NOW))
    await timers.insert_new(tx, rows)
    assert [[call for _, call, *_ in statement] for statement in statements_of(tx)] == [sorted(IDS)]
