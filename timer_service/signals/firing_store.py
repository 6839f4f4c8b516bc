"""Reads and writes of firings. An enqueued firing with a work item is a follow-up task."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from timer_service.core.due.due_rows import DueTable
from timer_service.core.due.isolate import Retry
from timer_service.core.due.row_counts import CountedRows
from timer_service.core.events.cause import cause_columns
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.positions import position_columns
from timer_service.core.ports.sql import load_sql
from timer_service.core.service.clock_repair import SLACK_MS, TimedRows
from timer_service.core.values.delays import LONGEST_DELAY
from timer_service.core.values.message import Position
from timer_service.signals.firings import Firing, FiringStatus
from timer_service.signals.signal import ItemKey, Key

_SQL = load_sql("timer_service.signals", "firing_store.sql")

FIRINGS = DueTable(
    name="work_signal_firings",
    key=("tenant_id", "firing_id"),
    order=("due_at",),
    columns=(
        *("tenant_id", "firing_id", "signal_id", "dedupe_key", "work_item_id", "due_at", "attempt"),
        *("defined_epoch", "defined_sequence", "position_epoch", "position_sequence"),
        *("correlation_id", "causation_id", "traceparent", "tracestate"),
    ),
    where="available_at IS NOT NULL",
    available="available_at",
)

_LONGEST_MS = LONGEST_DELAY // timedelta(milliseconds=1) + SLACK_MS
_OF_TRANSITION = "(position_epoch, position_sequence) > (defined_epoch, defined_sequence)"
"""The firings that were due when they were written, so that they are never due later than now."""

TIMED = TimedRows(
    table=FIRINGS.name,
    instant="available_at",
    is_wrong=f"(available_at - {_LONGEST_MS} > :now AND available_at > due_at)"
    f" OR ({_OF_TRANSITION} AND due_at - {SLACK_MS} > :now)",
    repair=f"due_at = CASE WHEN {_OF_TRANSITION} AND due_at > :now THEN :now ELSE due_at END, "
    f"available_at = CASE WHEN due_at > :now AND NOT {_OF_TRANSITION} THEN due_at ELSE :now END",
)
"""The firings that wait for their instant, or for the next attempt."""

COUNTED = (
    CountedRows(FIRINGS.name, "pending", "available_at IS NOT NULL"),
    CountedRows(FIRINGS.name, FiringStatus.FAILED, "status = 'failed'"),
    CountedRows("work_item_events", "unevaluated", "evaluate_at IS NOT NULL"),
)
"""The rows that the gauges count."""


class FiringKey(NamedTuple):
    """The key of a firing."""

    tenant_id: str
    firing_id: str


class Cursor(NamedTuple):
    """The last row of a page in a list that is ordered by creation time, then by id."""

    after_at: int
    after_id: str


async def add(tx: Transaction, firings: Iterable[Firing], now: int) -> None:
    """Insert firings. A stored firing that failed is queued again; any other stored firing does not change."""
    await tx.executemany(_SQL["add"], [_parameters(firing, now) for firing in sorted(firings, key=_key_of)])


async def fail_unsettled(tx: Transaction, reasons: Mapping[tuple[Key, Position], str], now: int) -> None:
    """Set the unsettled firings of ended definitions to failed, with the reasons."""
    parameters = [
        {**signal._asdict(), **position_columns(defined, "defined"), "now": now, "error": reason}
        for (signal, defined), reason in sorted(reasons.items())
    ]
    await tx.executemany(_SQL["fail_unsettled"], parameters)


async def settle(tx: Transaction, status: FiringStatus, firings: Mapping[FiringKey, str | None], at: int) -> None:
    """Settle due firings that are locked, each with its error."""
    parameters = [
        {**key._asdict(), "status": status, "error": error, "at": at} for key, error in sorted(firings.items())
    ]
    await tx.executemany(_SQL["settle"], parameters)


async def retry(tx: Transaction, retries: Mapping[FiringKey, Retry]) -> None:
    """Count an attempt of due firings that are locked, and let them wait for the next one."""
    await tx.executemany(_SQL["retry"], [{**key._asdict(), **each._asdict()} for key, each in sorted(retries.items())])


async def page_of_signal(reader: Reader, signal: Key, after: Cursor, limit: int) -> Sequence[Row]:
    """Return the next firings of a signal after a cursor, oldest first."""
    parameters = {**signal._asdict(), **after._asdict(), "limit": limit}
    return await reader.fetch(_SQL["page_of_signal"], parameters)


async def tasks_of_item(reader: Reader, item: ItemKey, after: Cursor, limit: int) -> Sequence[Row]:
    """Return the next tasks of a work item after a cursor, oldest first."""
    parameters = {**item._asdict(), **after._asdict(), "limit": limit}
    return await reader.fetch(_SQL["tasks_of_item"], parameters)


async def delete_of_signals(tx: Transaction, signals: Collection[Key], limit: int) -> int:
    """Delete about `limit` firings of signals, the same number of each; return how many. A signal can have 100,000."""
    most = math.ceil(limit / max(len(signals), 1))
    return await tx.executemany(_SQL["delete_of_signal"], [{**key._asdict(), "limit": most} for key in signals])


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete up to `limit` firings without a task that were settled before an instant; return how many."""
    return await tx.execute(_SQL["delete_settled"], {"before": before, "limit": limit})


def key_of(row: Row) -> FiringKey:
    """Return the key of a firing."""
    return FiringKey(row["tenant_id"], row["firing_id"])


def signal_of(row: Row) -> Key:
    """Return the key of the signal of a firing."""
    return Key(row["tenant_id"], row["signal_id"])


def task_id(row: Row) -> str | None:
    """Return the id of the follow-up task of a firing, or None if the firing has no work item."""
    return None if row["work_item_id"] is None else f"task-{row['firing_id']}"


def _key_of(firing: Firing) -> tuple[str, str]:
    return firing.signal.tenant_id, firing.firing_id


def _parameters(firing: Firing, now: int) -> Mapping[str, Any]:
    return {
        **firing.signal._asdict(),
        "firing_id": firing.firing_id,
        "dedupe_key": firing.dedupe_key,
        "work_item_id": firing.work_item_id,
        "due_at": firing.due_at,
        "now": now,
        **position_columns(firing.defined, "defined"),
        **position_columns(firing.position),
        **cause_columns(firing.cause),
    }
