"""Reads and writes of schedules: rows of `schedules` to `Schedule` values and back."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from timer_service.core.due.due_rows import DueTable
from timer_service.core.due.row_counts import CountedRows
from timer_service.core.events.cause import cause_columns, read_cause
from timer_service.core.limits.quotas import Usage
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.service.clock_repair import SLACK_MS, TimedRows
from timer_service.core.service.workflow_start import WorkflowSpec, read_concurrency
from timer_service.core.values.data import dump_data
from timer_service.core.values.delays import LONGEST
from timer_service.core.values.message import Position
from timer_service.schedules.calendar.interval import CalendarInterval
from timer_service.schedules.calendar.recurrence import Recurrence
from timer_service.schedules.messages import Policy, ShownStatus, Status
from timer_service.schedules.schedule import CLOCKS_APART_MS, Definition, Key, Schedule

_KEY = ("tenant_id", "schedule_id")
_ADVANCES = (
    *(
        "status",
        "after_at",
        "after_wall_at",
        "slot_at",
        "zone_rules",
        "available_at",
        "fired_count",
        "missed_since",
        "last_slot_at",
        "last_fired_at",
    ),
    *("last_error", "last_skipped_at", "last_skip_reason", "ended_at", "end_reason"),
)
"""The columns that a pass can change."""
_DEFINITION = (
    *("cron", "every_ms", "calendar", "zone", "start_at", "end_at", "max_count", "jitter_ms"),
    *("catch_up", "late_by_ms", "catch_up_limit", "start", "topic", "data_size"),
)
_OTHERS = (
    *("is_paused", "created_at", "confirmed_at"),
    *("correlation_id", "causation_id", "traceparent", "tracestate"),
    *("created_epoch", "created_sequence", "defined_epoch", "defined_sequence"),
)
_WITHOUT_DATA = (*_KEY, *_ADVANCES, *_DEFINITION, *_OTHERS)
_COLUMNS = (*_WITHOUT_DATA, "data")

_SQL = load_sql("timer_service.schedules", "store.sql")
_SQL["insert"] = _SQL["insert"].format(
    columns=", ".join(_COLUMNS), values=", ".join(f":{column}" for column in _COLUMNS)
)
_SQL["update"] = _SQL["update"].format(updates=", ".join(f"{name} = :{name}" for name in _COLUMNS[len(_KEY) :]))
_SQL["advance"] = _SQL["advance"].format(advances=", ".join(f"{name} = :{name}" for name in _ADVANCES))
_SQL["lock_active"] = _SQL["lock_active"].format(columns=", ".join(_WITHOUT_DATA))
for _name in ("find", "page"):  # not `*`: a new column would break the prepared statements of older instances
    _SQL[_name] = _SQL[_name].replace("{columns}", ", ".join(_COLUMNS))
_FIND_LOCKED = f"{_SQL['find']}\n/* for update */"

SCHEDULES = DueTable(
    name="schedules",
    key=_KEY,
    order=("available_at", "schedule_id"),
    columns=_WITHOUT_DATA,
    where="available_at IS NOT NULL",
)

LIVE = Usage("schedules", _SQL["count_live"])
"""The active and paused schedules of a tenant, which may be limited."""

COUNTED = (
    CountedRows(SCHEDULES.name, Status.ACTIVE, "available_at IS NOT NULL"),
    CountedRows(SCHEDULES.name, "failing", "last_error IS NOT NULL"),
)
"""The schedules that the gauges count."""

LONGEST_DELAY_MS = int(LONGEST.total_seconds() * 1000)
"""How long a row that failed waits at most."""
_IS_AHEAD = f"after_at - {CLOCKS_APART_MS} > :now"

TIMED = (
    TimedRows(
        table=SCHEDULES.name,
        instant="available_at",
        # later than its slot can be due, and later than it can be tried again; or the cursor is later than now
        is_wrong=f"(available_at - {LONGEST_DELAY_MS + SLACK_MS} > :now AND available_at > slot_at + jitter_ms)"
        f" OR {_IS_AHEAD}",
        # A cursor that was ahead goes back. A pass soon computes the next slot of a schedule with an error again. Slots
        # that have fired already keep their event ids.
        repair=f"after_at = CASE WHEN {_IS_AHEAD} THEN :now ELSE after_at END, "
        f"after_wall_at = CASE WHEN {_IS_AHEAD} THEN NULL ELSE after_wall_at END, "
        f"slot_at = CASE WHEN {_IS_AHEAD} THEN :now + 1 ELSE slot_at END, "
        f"available_at = CASE WHEN {_IS_AHEAD} THEN :now + 1 WHEN slot_at > :now THEN slot_at ELSE :now END, "
        f"last_error = CASE WHEN {_IS_AHEAD} THEN 'the clock was set back' ELSE last_error END",
    ),
)
"""The schedules that wait for their next slot, or for the next attempt."""


async def find(reader: Reader, key: Key) -> Schedule | None:
    """Return a schedule or a tombstone, or None if it does not exist."""
    rows = await reader.fetch_each(_SQL["find"], [key._asdict()])
    return read_schedule(rows[0], rows[0]["data"]) if rows else None


async def load(tx: Transaction, keys: Collection[Key]) -> dict[Key, Schedule]:
    """Return the schedules and tombstones that exist among `keys`, and lock them until the transaction ends.

    They are locked in the order of their keys.
    """
    rows = await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in sorted(keys)])
    return {schedule.key: schedule for schedule in (read_schedule(row, row["data"]) for row in rows)}


async def page_of_zones(reader: Reader, after: Key, limit: int) -> list[tuple[Key, str, str | None]]:
    """Return up to `limit` schedules and tombstones after a key: their keys, zones and the rules of the next slot."""
    rows = await reader.fetch(_SQL["page_of_zones"], {**after._asdict(), "limit": limit})
    return [(key_of(row), row["zone"], row["zone_rules"]) for row in rows]


async def lock_active(tx: Transaction, keys: Collection[Key]) -> list[Schedule]:
    """Return the active schedules among `keys` without their data, and lock them. Locked ones are left out."""
    rows = await tx.fetch_each(_SQL["lock_active"], [key._asdict() for key in sorted(keys)])
    return [read_schedule(row) for row in rows]


async def save(tx: Transaction, before: Mapping[Key, Schedule], after: Mapping[Key, Schedule]) -> None:
    """Write the schedules of `after` that differ from `before`. `load` locked the rows of `before`."""
    changed = [after[key] for key in sorted(after) if after[key] != before.get(key)]
    await tx.executemany(_SQL["insert"], [_parameters(each) for each in changed if each.key not in before])
    await tx.executemany(_SQL["update"], [_parameters(each) for each in changed if each.key in before])


async def advance(tx: Transaction, schedules: Collection[Schedule]) -> None:
    """Write what a pass has changed of schedules. Their rows are locked."""
    in_order = sorted(schedules, key=lambda schedule: schedule.key)
    await tx.executemany(_SQL["advance"], [{**each.key._asdict(), **_advance_parameters(each)} for each in in_order])


async def load_data(tx: Transaction, keys: Collection[Key]) -> dict[Key, str]:
    """Return the data of schedules that have any."""
    rows = await tx.fetch_each(_SQL["load_data"], [key._asdict() for key in sorted(keys)])
    return {key_of(row): row["data"] for row in rows}


async def page(
    reader: Reader, tenant_id: str, status: ShownStatus, *, topic: str | None = None, after: str, limit: int
) -> list[Schedule]:
    """Return up to `limit` schedules of a tenant with a status after an id, in order of their ids.

    `topic`: only schedules with it.
    """
    where = f"status = '{status}'" if topic is None else f"topic = :topic AND status = '{status}'"
    parameters = {"tenant_id": tenant_id, "topic": topic, "after": after, "limit": limit}
    rows = await reader.fetch(_SQL["page"].format(where=where), parameters)
    return [read_schedule(row, row["data"]) for row in rows]


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete up to `limit` schedules that ended and were last confirmed before an instant; return how many."""
    return await tx.execute(_SQL["delete_settled"], {"before": before, "limit": limit})


def read_schedule(row: Row, data: str | None = None) -> Schedule:
    """Return the schedule in a row of `schedules`, with `data`.

    The columns are written out: a pass reads 1,000 rows, and loops over the names take three times as long.
    """
    return Schedule(
        key=key_of(row),
        created_at=row["created_at"],
        definition=None if row["zone"] is None else _definition(row, data),
        cause=read_cause(row),
        created_by=Position(row["created_epoch"], row["created_sequence"]),
        defined_by=Position(row["defined_epoch"], row["defined_sequence"]),
        is_paused=row["is_paused"] == 1,
        after_at=row["after_at"],
        after_wall_at=row["after_wall_at"],
        slot_at=row["slot_at"],
        zone_rules=row["zone_rules"],
        available_at=row["available_at"],
        fired_count=row["fired_count"],
        missed_since=row["missed_since"],
        last_slot_at=row["last_slot_at"],
        last_fired_at=row["last_fired_at"],
        last_error=row["last_error"],
        last_skipped_at=row["last_skipped_at"],
        last_skip_reason=row["last_skip_reason"],
        ended_at=row["ended_at"],
        end_reason=row["end_reason"],
        confirmed_at=row["confirmed_at"],
    )


def key_of(row: Row) -> Key:
    """Return the key in a row of `schedules`."""
    return Key(row["tenant_id"], row["schedule_id"])


def _definition(row: Row, data: str | None) -> Definition:
    return Definition(
        recurrence=read_recurrence(row),
        max_count=row["max_count"],
        jitter_ms=row["jitter_ms"],
        policy=Policy(row["catch_up"]),
        late_by_ms=row["late_by_ms"],
        limit=row["catch_up_limit"],
        data=data,
        start=read_spec(row["start"]),
        topic=row["topic"],
    )


def read_recurrence(row: Row) -> Recurrence:
    """Return the recurrence in a row of `schedules` or `schedule_backfills`."""
    calendar = None if row["calendar"] is None else CalendarInterval(*json.loads(row["calendar"]))
    return Recurrence(row["cron"], row["every_ms"], row["zone"], row["start_at"], row["end_at"], calendar)


def recurrence_columns(recurrence: Recurrence) -> Mapping[str, Any]:
    """Return the columns of a recurrence."""
    calendar = None if recurrence.calendar is None else dump_data(recurrence.calendar)
    return {**recurrence._asdict(), "calendar": calendar}


def read_spec(text: str | None) -> WorkflowSpec | None:
    """Return the workflow in a column `start`."""
    if text is None:
        return None
    spec = WorkflowSpec(*json.loads(text))
    return spec._replace(concurrency=read_concurrency(spec.concurrency))


def dump_spec(spec: WorkflowSpec | None) -> str | None:
    """Return what a column `start` stores of a workflow."""
    return None if spec is None else dump_data(spec)


def _advance_parameters(schedule: Schedule) -> Mapping[str, Any]:
    return {name: getattr(schedule, name) for name in _ADVANCES}


def _parameters(schedule: Schedule) -> Mapping[str, Any]:
    return {
        **schedule.key._asdict(),
        **_advance_parameters(schedule),
        **_definition_parameters(schedule.definition),
        "is_paused": int(schedule.is_paused),
        "created_at": schedule.created_at,
        "confirmed_at": schedule.confirmed_at,
        **cause_columns(schedule.cause),
        "created_epoch": schedule.created_by.epoch,
        "created_sequence": schedule.created_by.sequence,
        "defined_epoch": schedule.defined_by.epoch,
        "defined_sequence": schedule.defined_by.sequence,
    }


def _definition_parameters(definition: Definition | None) -> Mapping[str, Any]:
    """Return the columns of a definition. A tombstone has none, so they are null, except for the size."""
    if definition is None:
        return {**dict.fromkeys(_DEFINITION), "data": None, "data_size": 0}
    return {
        **recurrence_columns(definition.recurrence),
        "max_count": definition.max_count,
        "jitter_ms": definition.jitter_ms,
        "catch_up": definition.policy,
        "late_by_ms": definition.late_by_ms,
        "catch_up_limit": definition.limit,
        "start": dump_spec(definition.start),
        "topic": definition.topic,
        "data": definition.data,
        "data_size": len(definition.data or ""),
    }
