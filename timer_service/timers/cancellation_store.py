"""Reads and writes of cancellations: rows of `timer_cancellations` to values and back, and the timers of a page."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from timer_service.core.clock_repair import SLACK_MS, TimedRows
from timer_service.core.database import Reader, Row, Transaction
from timer_service.core.errors import ConflictError
from timer_service.core.message import Position, Trace
from timer_service.core.row_counts import CountedRows
from timer_service.core.sql import load_sql
from timer_service.timers.cancellations import SECOND_PASS_MS, Cancellation, CancellationKey, PrefixPositions

_SQL = load_sql("timer_service.timers", "cancellations.sql")
_PLAIN_COLUMNS = tuple(name for name in Cancellation._fields if name not in {"key", "trace"})
_COLUMNS = ("tenant_id", "position_epoch", "position_sequence", *Trace._fields, *_PLAIN_COLUMNS)
_SQL["add"] = _SQL["add"].format(columns=", ".join(_COLUMNS), values=", ".join(f":{name}" for name in _COLUMNS))
_SQL["lock_due"] = _SQL["lock_due"].format(columns=", ".join(_COLUMNS))

TIMED = TimedRows(
    table="timer_cancellations",
    key=("tenant_id", "position_epoch", "position_sequence"),
    instant="available_at",
    is_wrong=f"available_at - {SECOND_PASS_MS + SLACK_MS} > :now",
    repair="available_at = :now",
)
"""The cancellations that wait for their next page."""

COUNTED = (CountedRows("timer_cancellations", "Waiting", "available_at IS NOT NULL"),)
"""The cancellations that the gauges count."""


async def find_newer(reader: Reader, tenants: Collection[str], position: Position) -> PrefixPositions:
    """Return the cancellations of some tenants that are newer than a position. Normally, there are none."""
    newer_than = _position(position)
    if not await reader.fetch(_SQL["any_newer"], newer_than):
        return PrefixPositions()
    rows = await reader.fetch_each(_SQL["newer"], [{"tenant_id": tenant, **newer_than} for tenant in sorted(tenants)])
    return PrefixPositions((_key(row), row["prefix"]) for row in rows)


async def find(reader: Reader, keys: Collection[CancellationKey]) -> set[CancellationKey]:
    """Return the keys that exist."""
    return {_key(row) for row in await reader.fetch_each(_SQL["find"], [_key_columns(key) for key in sorted(keys)])}


async def add(tx: Transaction, cancellations: Collection[Cancellation]) -> None:
    """Add cancellations. Raises `ConflictError` if another instance has just added one of them."""
    rows = [_parameters(each) for each in sorted(cancellations, key=lambda each: each.key)]
    if await tx.executemany(_SQL["add"], rows) != len(rows):
        raise ConflictError("another instance has added the same cancellation")


async def next_available(reader: Reader) -> int | None:
    """Return when the next page of a cancellation may be read, or None."""
    (row,) = await reader.fetch(_SQL["next_available"])
    at: int | None = row["at"]
    return at


async def lock_due(tx: Transaction, now: int, limit: int) -> list[Cancellation]:
    """Lock up to `limit` due cancellations that no other instance has locked, longest available first."""
    return [_cancellation(row) for row in await tx.fetch(_SQL["lock_due"], {"now": now, "limit": limit})]


async def read_page(reader: Reader, cancellation: Cancellation, limit: int) -> list[str]:
    """Return the ids of the next timers of a cancellation, whatever their state, up to `limit`, in order."""
    page = {
        "tenant_id": cancellation.key.tenant_id,
        "from": cancellation.next_call_id,
        "end": cancellation.end,
        "limit": limit,
    }
    return [row["service_call_id"] for row in await reader.fetch(_SQL["page"], page)]


async def cancel_page(tx: Transaction, cancellation: Cancellation, calls: Sequence[str], now: int) -> int:
    """Cancel the timers of a page that are older than the cancellation. Return how many these are."""
    if not calls:
        return 0
    page = {**_key_columns(cancellation.key), "from": calls[0], "to": calls[-1], "now": now}
    return await tx.execute(_SQL["cancel"], page)


async def save(tx: Transaction, cancellations: Collection[Cancellation]) -> None:
    """Write how far some cancellations are. They are locked."""
    await tx.executemany(_SQL["save"], [_parameters(each) for each in sorted(cancellations, key=lambda each: each.key)])


async def delete_finished(tx: Transaction, before: int, limit: int) -> int:
    """Delete up to `limit` cancellations that were finished before the instant `before`; return how many."""
    return await tx.execute(_SQL["delete_finished"], {"before": before, "limit": limit})


def _cancellation(row: Row) -> Cancellation:
    plain = {name: row[name] for name in _PLAIN_COLUMNS}
    return Cancellation(key=_key(row), trace=Trace(row["traceparent"], row["tracestate"]), **plain)


def _key(row: Row) -> CancellationKey:
    return CancellationKey(row["tenant_id"], Position(row["position_epoch"], row["position_sequence"]))


def _key_columns(key: CancellationKey) -> Mapping[str, Any]:
    return {"tenant_id": key.tenant_id, **_position(key.position)}


def _position(position: Position) -> Mapping[str, int]:
    return {"position_epoch": position.epoch, "position_sequence": position.sequence}


def _parameters(cancellation: Cancellation) -> Mapping[str, Any]:
    plain = {name: getattr(cancellation, name) for name in _PLAIN_COLUMNS}
    return {**_key_columns(cancellation.key), **cancellation.trace._asdict(), **plain}
