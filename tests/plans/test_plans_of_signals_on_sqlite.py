"""Query plans of signals and the outbox on SQLite: an index, no more rows than needed, no sort."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.harness.clock import NOW
from tests.harness.stores import open_sqlite
from timer_service.core.due.due_rows import DueTable
from timer_service.core.due.lease import LeasedTable
from timer_service.core.due.row_counts import overdue_sql
from timer_service.core.events import outbox
from timer_service.core.events.cause import Cause
from timer_service.core.events.outbox import OUTBOX
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.service.clock_repair import leased_rows
from timer_service.core.values.message import Event, Position
from timer_service.signals import firing_store, store
from timer_service.signals.firing_store import COUNTED, FIRINGS, TIMED
from timer_service.signals.firings import Firing
from timer_service.signals.messages import TriggerKind
from timer_service.signals.signal import Definition, ItemKey, Key, Signal, Status, Transition

ROWS = 3000
POSITION = Position(1, 1)
BLOCKED = '{"kind":"work_item.status.transition","to":["blocked"]}'

IGNORED_STEPS = (
    *("LIST SUBQUERY", "SCALAR SUBQUERY", "CO-ROUTINE", "SCAN counted", "SETUP", "RECURSIVE", "SCAN pending"),
    *("MATERIALIZE picked", "SCAN picked"),
)


@pytest.fixture(scope="module", params=["analyzed", "not analyzed"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a SQLite file with thousands of rows in each table, with or without statistics."""
    path = tmp_path_factory.mktemp("plans") / "timers.db"
    asyncio.run(make(path, analyzed=request.param == "analyzed"))
    return path


async def make(path: Path, *, analyzed: bool) -> None:
    async with open_sqlite(path) as database, database.transaction() as tx:
        await fill(tx)
        if analyzed:
            await tx.execute("ANALYZE")


async def fill(tx: Transaction) -> None:
    numbers = range(ROWS)
    keys = [Key(f"tenant-{number % 50}", f"signal-{number}") for number in numbers]
    items = [ItemKey(key.tenant_id, f"item-{number % 100}") for number, key in enumerate(keys)]
    made = {}
    for key, item in zip(keys, items, strict=True):
        definition = Definition(item.work_item_id, TriggerKind.EVENT, BLOCKED, None)
        made[key] = Signal(key, Status.ACTIVE, definition, POSITION, POSITION, NOW)
    await store.save_signals(tx, {}, made)
    await store.add_transitions(
        tx,
        [
            Transition(item, f"event-{n}", None, "blocked", NOW, NOW, Position(1, n), Cause(), NOW if n % 9 else None)
            for n, item in enumerate(items)
        ],
    )
    firings = [Firing(key, POSITION, "event", None, NOW + n, POSITION, Cause()) for n, key in enumerate(keys)]
    await firing_store.add(tx, firings, NOW)
    await outbox.add(tx, [Event(f"event-{n}", "hello", f"tenant-{n % 50}", {}, NOW) for n in numbers], NOW)


@pytest.fixture
async def database(made: Path, tmp_path: Path) -> AsyncIterator[Database]:
    """Open a copy of the file."""
    shutil.copy(made, tmp_path / "timers.db")
    async with open_sqlite(tmp_path / "timers.db") as database:
        yield database


async def plan(database: Database, sql: str) -> list[str]:
    """Return the index and the range of each step of a statement. Other steps, such as sorts, are complete."""
    parameters = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
    async with database.transaction() as tx:
        rows = await tx.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)
    steps = [row["detail"].replace("COVERING ", "") for row in rows]
    return [re.sub(r"^\w+ \w+ USING INDEX ", "", step) for step in steps if not step.startswith(IGNORED_STEPS)]


OF_ITEM = "tenant_id=? AND work_item_id=?"
PLACE_OF_EVENT = "SEARCH outbox USING INTEGER PRIMARY KEY (rowid=?)"
KEY_OF_FIRING = "sqlite_autoindex_work_signal_firings_1 (tenant_id=? AND firing_id=?)"
KEY_OF_SIGNAL = "sqlite_autoindex_work_signals_1 (tenant_id=? AND signal_id=?)"
KEY_OF_ITEM = "sqlite_autoindex_work_items_1 (tenant_id=? AND work_item_id=?)"
KEY_OF_EVENT = "sqlite_autoindex_work_item_events_1 (tenant_id=? AND work_item_id=? AND event_id=?)"
KEY_OF_OUTBOX = "sqlite_autoindex_outbox_1 (tenant_id=? AND event_id=?)"
REPAIRED_EVENTS = leased_rows(OUTBOX, timedelta(seconds=30))

PLANS = {
    "due firings": (FIRINGS.sql("due"), ["work_signal_firings_available (available_at<?)"]),
    "a tenant's share of firings": (
        FIRINGS.sql("due_of_tenant"),
        ["work_signal_firings_pending (tenant_id=? AND due_at<?)"],
    ),
    "a due firing": (FIRINGS.sql("due_by_key"), [KEY_OF_FIRING]),
    "the next firing": (FIRINGS.sql("next_available"), ["work_signal_firings_available (available_at>?)"]),
    "overdue firings": (overdue_sql(FIRINGS), ["work_signal_firings_available (available_at<?)"]),
    "the end of a page of firings": (
        TIMED.sql("page_end"),
        ["work_signal_firings_available (available_at>?)"],
    ),
    "firings to repair": (
        TIMED.sql("find_wrong"),
        ["work_signal_firings_available (available_at>? AND available_at<?)"],
    ),
    **{f"a firing, {name}": (firing_store._SQL[name], [KEY_OF_FIRING]) for name in ("settle", "retry")},
    "firings of a definition": (
        firing_store._SQL["fail_unsettled"],
        ["work_signal_firings_of_signal (tenant_id=? AND signal_id=?)"],
    ),
    "a page of firings": (
        firing_store._SQL["page_of_signal"],
        ["work_signal_firings_of_signal (tenant_id=? AND signal_id=? AND (created_at,firing_id)>(?,?))"],
    ),
    "a page of tasks": (
        firing_store._SQL["tasks_of_item"],
        ["work_signal_firings_tasks (tenant_id=? AND work_item_id=? AND (settled_at,firing_id)>(?,?))"],
    ),
    "firings of a deleted signal": (
        firing_store._SQL["delete_of_signal"],
        [KEY_OF_FIRING, "work_signal_firings_of_signal (tenant_id=? AND signal_id=?)"],
    ),
    "old firings": (
        firing_store._SQL["delete_settled"],
        [KEY_OF_FIRING, "work_signal_firings_settled (settled_at<?)"],
    ),
    "failed firings": (COUNTED[1].sql, ["work_signal_firings_failed"]),
    **{f"an item, {name}": (store._SQL[name], [KEY_OF_ITEM]) for name in ("find_item",)},
    **{f"an event, {name}": (store._SQL[name], [KEY_OF_EVENT]) for name in ("find_event", "note_evaluated")},
    "events to evaluate": (
        store.UNEVALUATED.sql("due_of_tenant"),
        ["work_item_events_to_evaluate (tenant_id=? AND evaluate_at>? AND evaluate_at<?)"],
    ),
    "old events": (store._SQL["delete_events"], [KEY_OF_EVENT, "work_item_events_evaluated (recorded_at<?)"]),
    "unevaluated events": (COUNTED[2].sql, ["work_item_events_to_evaluate"]),
    **{f"a signal, {name}": (store._SQL[name], [KEY_OF_SIGNAL]) for name in ("find", "pause")},
    "a signal to delete": (
        store._SQL["delete"],
        [KEY_OF_SIGNAL, "work_signal_firings_of_signal (tenant_id=? AND signal_id=?)"],
    ),
    "signals that wait for an item": (
        store._SQL["waiting"],
        ["work_signals_of_item (tenant_id=? AND work_item_id=? AND status=? AND signal_id>?)"],
    ),
    "signals of a status": (
        store._SQL["page"].format(where="trigger_kind <> '' AND status = 'active'"),
        ["work_signals_by_status (tenant_id=? AND status=? AND signal_id>?)"],
    ),
    "signals of an item": (
        store._SQL["page"].format(where="work_item_id = :work_item_id AND status = 'active'"),
        ["work_signals_of_item (tenant_id=? AND work_item_id=? AND status=? AND signal_id>?)"],
    ),
    "signals": (
        store._SQL["page"].format(where="TRUE"),
        ["sqlite_autoindex_work_signals_1 (tenant_id=? AND signal_id>?)"],
    ),
    "ended signals": (store._SQL["ended"], ["work_signals_ended (ended_at<?)"]),
    "a claim of events": (OUTBOX.sql("claim"), [PLACE_OF_EVENT, "outbox_available (available_at<?)"]),
    "a tenant's share of events": (
        OUTBOX.sql("claim_of_tenant"),
        [PLACE_OF_EVENT, "outbox_pending (tenant_id=? AND added_at<?)"],
    ),
    "an event that waits": (outbox._SQL["find_waiting"], ["outbox_pending (tenant_id=? AND added_at<?)"]),
    "the end of a page of events": (REPAIRED_EVENTS.sql("page_end"), ["outbox_available (available_at>?)"]),
    "events to repair": (REPAIRED_EVENTS.sql("find_wrong"), ["outbox_available (available_at>? AND available_at<?)"]),
    "a published event": (OUTBOX.sql("complete"), [KEY_OF_OUTBOX]),
    "a published claim": (OUTBOX.sql("complete_claim"), ["outbox_available (available_at=?)"]),
    "buried events": (outbox.COUNTED[1].sql, ["outbox_buried"]),
    "a page of buried events": (
        outbox._SQL["buried_page"],
        [
            "outbox_buried (tenant_id=? AND (added_at,event_id)>(?,?))",
            "CORRELATED SCALAR SUBQUERY 1",
            "sqlite_autoindex_long_texts_1 (owner=? AND tenant_id=? AND text_id=?)",
        ],
    ),
    **{f"a buried event, {name}": (outbox._SQL[name], [KEY_OF_OUTBOX]) for name in ("find", "requeue")},
}


async def test_plans(database: Database) -> None:
    """Every frequent statement uses its index."""
    found = {name: await plan(database, sql) for name, (sql, _) in PLANS.items()}
    assert found == {name: wanted for name, (_, wanted) in PLANS.items()}


@pytest.mark.parametrize(("table", "index"), [(FIRINGS, "work_signal_firings_pending"), (OUTBOX, "outbox_pending")])
async def test_pending_tenants(database: Database, table: LeasedTable | DueTable, index: str) -> None:
    """Each tenant with rows to fire is found by one index lookup."""
    steps = [step for step in await plan(database, table.sql("due_tenants")) if "outbox" in step or "firings" in step]
    assert steps == [f"{index} ({step})" for step in ("tenant_id>?", "tenant_id>?", "tenant_id=?")]
