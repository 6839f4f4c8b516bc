"""Firings and what comes of them in the database: rows <-> rules."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from timer_service.core.database import Reader, Row, Transaction
from timer_service.core.lease import Failure, LeasedTable
from timer_service.core.row_counts import Counted
from timer_service.core.sql import load_sql
from timer_service.signals.rules import Firing, FiringStatus, ItemKey, Key
from timer_service.signals.store import cause_parameters

_SQL = load_sql("timer_service.signals", "firing_store.sql")

FIRINGS = LeasedTable(
    name="work_signal_firings",
    key=("tenant_id", "firing_id"),
    claimed=(
        "tenant_id",
        "firing_id",
        "signal_id",
        "dedupe_key",
        "work_item_id",
        "due_at",
        "correlation_id",
        "causation_id",
        "traceparent",
        "tracestate",
    ),
    oldest_first="due_at",
    state="status",
    waiting=FiringStatus.QUEUED,
    held=FiringStatus.PROCESSING,
    buried=FiringStatus.FAILED,
    done=FiringStatus.ENQUEUED,
    done_at="settled_at",
)

COUNTED = (
    Counted(FIRINGS.name, "pending", "available_at IS NOT NULL"),
    Counted(FIRINGS.name, FiringStatus.FAILED, "status = 'failed'"),
    Counted("work_item_events", "unevaluated", "evaluate_at IS NOT NULL"),
)
"""What the gauges tell of signals."""


class Cursor(NamedTuple):
    """A place in a list that is ordered by when its rows were made, and then by their ids."""

    after_at: int
    after_id: str


async def add(tx: Transaction, firings: Iterable[Firing], now: int) -> None:
    """Queue firings; one that is there already, whatever became of it, stays as it is."""
    in_order = sorted(firings, key=lambda firing: (firing.signal.tenant_id, firing.firing_id))
    await tx.executemany(_SQL["add"], [{**_parameters(firing), "now": now} for firing in in_order])


async def put_back(tx: Transaction, firings: Iterable[Firing]) -> None:
    """Queue those firings anew that have failed, with all their attempts before them."""
    keys = [{**_key(firing), "due_at": firing.due_at} for firing in firings]
    await tx.executemany(_SQL["put_back"], keys)


async def end(tx: Transaction, signals: Iterable[tuple[Key, str]], now: int) -> None:
    """Fail the firings that signals still have to come, each with the reason; ends any claim on them."""
    await tx.executemany(
        _SQL["end_of_signal"], [{**signal._asdict(), "now": now, "error": reason} for signal, reason in signals]
    )


async def still_held(tx: Transaction, rows: Collection[Row]) -> list[Row]:
    """Return those claimed rows whose lease has not been lost; until the transaction ends it will not be."""
    keys = [_held(row) for row in sorted(rows, key=lambda row: (row["tenant_id"], row["firing_id"]))]
    found = await tx.fetch_each(_SQL["still_held"], keys)
    held = {(row["tenant_id"], row["firing_id"]) for row in found}
    return [row for row in rows if (row["tenant_id"], row["firing_id"]) in held]


async def fail(tx: Transaction, failures: Sequence[Failure], at: int) -> int:
    """Give claimed rows up at an instant; return how many were still held."""
    parameters = [{**_held(each.row), "error": each.error, "at": at} for each in failures]
    return await tx.executemany(_SQL["fail"], parameters)


async def note_fired(tx: Transaction, signals: Iterable[Key], at: int) -> None:
    """Write that locked signals have fired."""
    await tx.executemany(_SQL["note_fired"], [{**key._asdict(), "at": at} for key in signals])


async def note_failed(tx: Transaction, failures: Iterable[Failure]) -> None:
    """Pause the signals, if they are active, whose firings were given up."""
    parameters = [{**signal_of(each.row)._asdict(), "error": each.error} for each in failures]
    await tx.executemany(_SQL["note_failed"], parameters)


async def add_tasks(tx: Transaction, rows: Iterable[Row], at: int) -> None:
    """Write the follow-up work of claimed rows that have a work item."""
    tasks = [
        {
            "tenant_id": row["tenant_id"],
            "task_id": task_id(row),
            "work_item_id": row["work_item_id"],
            "signal_id": row["signal_id"],
            "firing_id": row["firing_id"],
            "at": at,
        }
        for row in rows
        if row["work_item_id"] is not None
    ]
    await tx.executemany(_SQL["add_task"], tasks)


async def page_of_signal(reader: Reader, signal: Key, after: Cursor, limit: int) -> Sequence[Row]:
    """Read a signal's next firings behind a place, oldest first."""
    parameters = {**signal._asdict(), **after._asdict(), "limit": limit}
    return await reader.fetch(_SQL["page_of_signal"], parameters)


async def tasks_of_item(reader: Reader, item: ItemKey, after: Cursor, limit: int) -> Sequence[Row]:
    """Read a work item's next tasks behind a place, oldest first."""
    parameters = {**item._asdict(), **after._asdict(), "limit": limit}
    return await reader.fetch(_SQL["tasks_of_item"], parameters)


async def delete_tasks(tx: Transaction, signals: Iterable[Key]) -> None:
    """Delete the tasks of signals."""
    await tx.executemany(_SQL["delete_tasks"], [key._asdict() for key in signals])


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete up to `limit` firings that were settled before an instant; return how many."""
    return await tx.execute(_SQL["delete_settled"], {"before": before, "limit": limit})


def signal_of(row: Row) -> Key:
    """Return whose firing a row is."""
    return Key(row["tenant_id"], row["signal_id"])


def task_id(row: Row) -> str | None:
    """Return the id of the task a firing leads to: one per firing, None without a work item."""
    return None if row["work_item_id"] is None else f"task-{row['firing_id']}"


def _key(firing: Firing) -> Mapping[str, Any]:
    return {"tenant_id": firing.signal.tenant_id, "firing_id": firing.firing_id}


def _held(row: Row) -> Mapping[str, Any]:
    return {"tenant_id": row["tenant_id"], "firing_id": row["firing_id"], "token": row["lease_token"]}


def _parameters(firing: Firing) -> Mapping[str, Any]:
    return {
        **_key(firing),
        "signal_id": firing.signal.signal_id,
        "dedupe_key": firing.dedupe_key,
        "work_item_id": firing.work_item_id,
        "due_at": firing.due_at,
        **cause_parameters(firing.cause),
    }
