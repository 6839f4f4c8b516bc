"""Reads and writes of backfills: rows of `schedule_backfills` to values and back. A backfill that ends is deleted."""

from collections.abc import Collection, Mapping
from typing import Any

from timer_service.core.due.due_rows import DueTable
from timer_service.core.due.row_counts import CountedRows
from timer_service.core.events.cause import cause_columns, read_cause
from timer_service.core.limits.quotas import Usage
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.service.clock_repair import SLACK_MS, TimedRows
from timer_service.core.values.message import Position
from timer_service.schedules.backfills import Backfill, BackfillKey
from timer_service.schedules.schedule import Key
from timer_service.schedules.store import (
    LONGEST_DELAY_MS,
    dump_spec,
    read_recurrence,
    read_spec,
    recurrence_columns,
)
from timer_service.schedules.store import key_of as schedule_key_of

TABLE = "schedule_backfills"
_KEY = BackfillKey._fields
_PLAIN = (
    *("schedule_id", "jitter_ms", "from_at", "to_at", "slot_limit", "after_at", "after_wall_at", "available_at"),
    *("fired_count", "skipped_count", "last_error", "topic", "data_size"),
)
_WITHOUT_DATA = (
    *_KEY,
    *_PLAIN,
    *("cron", "every_ms", "calendar", "zone", "start_at", "end_at", "start"),
    *("correlation_id", "causation_id", "traceparent", "tracestate"),
)
_COLUMNS = (*_WITHOUT_DATA, "data")

_SQL = load_sql("timer_service.schedules.backfill", "store.sql")
_SQL["add"] = _SQL["add"].format(columns=", ".join(_COLUMNS), values=", ".join(f":{name}" for name in _COLUMNS))
_SQL["of_schedule"] = _SQL["of_schedule"].format(columns=", ".join(_WITHOUT_DATA))

BACKFILLS = DueTable(TABLE, _KEY, order=("available_at", *_KEY[1:]), columns=_WITHOUT_DATA)

TIMED = TimedRows(
    table=TABLE,
    instant="available_at",
    is_wrong=f"available_at - {LONGEST_DELAY_MS + SLACK_MS} > :now",
    repair="available_at = :now",
)
"""The backfills that wait for their next portion."""

OPEN = Usage("open_backfills", _SQL["count_open"])
"""The backfills of a tenant, which may be limited."""

COUNTED = CountedRows(TABLE, "open", "TRUE")
"""The backfills that the gauges count."""


async def add(tx: Transaction, backfills: Collection[Backfill]) -> None:
    """Add backfills."""
    in_order = sorted(backfills, key=lambda each: each.key)
    await tx.executemany(_SQL["add"], [_parameters(each) for each in in_order])


async def find_created(reader: Reader, schedules: Collection[Key]) -> dict[Key, Position]:
    """Return the position of the PutSchedule that created each schedule that exists."""
    rows = await reader.fetch_each(_SQL["find_created"], [key._asdict() for key in sorted(set(schedules))])
    return {schedule_key_of(row): Position(row["created_epoch"], row["created_sequence"]) for row in rows}


async def load_data(reader: Reader, keys: Collection[BackfillKey]) -> dict[BackfillKey, str]:
    """Return the data of backfills that have any."""
    rows = await reader.fetch_each(_SQL["load_data"], [key._asdict() for key in sorted(keys)])
    return {key_of(row): row["data"] for row in rows}


async def save(tx: Transaction, backfills: Collection[Backfill]) -> None:
    """Write how far some backfills are. They are locked."""
    in_order = sorted(backfills, key=lambda each: each.key)
    progress = ("after_at", "after_wall_at", "fired_count", "skipped_count")
    many = [{**each.key._asdict(), **{name: getattr(each, name) for name in progress}} for each in in_order]
    await tx.executemany(_SQL["save"], many)


async def delete(tx: Transaction, keys: Collection[BackfillKey]) -> None:
    """Delete backfills that have ended. They are locked."""
    await tx.executemany(_SQL["delete"], [key._asdict() for key in sorted(keys)])


async def of_schedule(reader: Reader, schedule: Key, limit: int) -> list[Backfill]:
    """Return the oldest backfills of a schedule, without their data."""
    rows = await reader.fetch(_SQL["of_schedule"], {**schedule._asdict(), "limit": limit})
    return [read_backfill(row) for row in rows]


def key_of(row: Row) -> BackfillKey:
    """Return the key in a row of `schedule_backfills`."""
    return BackfillKey(row["tenant_id"], row["position_epoch"], row["position_sequence"])


def read_backfill(row: Row) -> Backfill:
    """Return the backfill in a row of `schedule_backfills`, without its data."""
    return Backfill(
        key=key_of(row),
        recurrence=read_recurrence(row),
        start=read_spec(row["start"]),
        cause=read_cause(row),
        **{name: row[name] for name in _PLAIN},
    )


def _parameters(backfill: Backfill) -> Mapping[str, Any]:
    return {
        **backfill.key._asdict(),
        **{name: getattr(backfill, name) for name in _PLAIN},
        **recurrence_columns(backfill.recurrence),
        "start": dump_spec(backfill.start),
        "data": backfill.data,
        **cause_columns(backfill.cause),
    }
