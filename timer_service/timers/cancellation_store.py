"""Reads and writes of cancellations: rows of `timer_cancellations` to values and back, and the timers of a page."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from timer_service.core.due.row_counts import CountedRows
from timer_service.core.due.unfinished_commands import statements_of
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.service.clock_repair import SLACK_MS, TimedRows
from timer_service.core.values.errors import ConflictError
from timer_service.core.values.message import Position, Trace
from timer_service.timers.cancellations import (
    SECOND_PASS_MS,
    Cancellation,
    CancellationKey,
    CancelledPage,
    PrefixPositions,
)
from timer_service.timers.rules import Key

_SQL = load_sql("timer_service.timers", "cancellations.sql")
_PLAIN_COLUMNS = tuple(name for name in Cancellation._fields if name not in {"key", "trace"})
_COLUMNS = ("tenant_id", "position_epoch", "position_sequence", *Trace._fields, *_PLAIN_COLUMNS)
_SQL["add"] = _SQL["add"].format(columns=", ".join(_COLUMNS), values=", ".join(f":{name}" for name in _COLUMNS))
_SQL |= statements_of("timer_cancellations", _COLUMNS)
_FIRST_READ = 64
"""How many timers are read first. Then twice as many each time, so that much data is seen after a few timers."""
_MOST_PREFIXES = 20_000
"""How many prefixes one transaction looks for. On SQLite, 20,000 take 0.25 s."""

LEAST_TIMERS = 2
"""A page repeats the last timer of the page before. With room for only one, a pass would not end."""

DUE_TENANTS = _SQL["due_tenants"]
"""The statement that finds the tenants with due cancellations, for `TenantTurns`."""

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


async def is_any_newer(reader: Reader, position: Position) -> bool:
    """Return whether a cancellation is newer than a position. This is one look into an index."""
    return bool(await reader.fetch(_SQL["any_newer"], _position(position)))


async def find_newer(
    reader: Reader, keys: Collection[Key], position: Position
) -> tuple[PrefixPositions, frozenset[Key]]:
    """Return the newest cancellation of each prefix of some timers, or none if none is newer than a position.

    Also return the timers that were not looked for, because there were too many prefixes. Timers of tenants that have
    prefixes of few lengths come first.
    """
    if not await is_any_newer(reader, position):
        return PrefixPositions(), frozenset()
    lengths = await _prefix_lengths(reader, {key.tenant_id for key in keys})
    prefixes: set[tuple[str, str]] = set()
    in_turn = sorted(keys, key=lambda key: (len(lengths[key.tenant_id]), key))
    for index, (tenant, call) in enumerate(in_turn):
        if len(prefixes) >= _MOST_PREFIXES:
            left = frozenset(in_turn[index:])
            break
        prefixes |= {(tenant, call[:length]) for length in lengths[tenant] if length <= len(call)}
    else:
        left = frozenset()
    named = [{"tenant_id": tenant, "prefix": each} for tenant, each in sorted(prefixes)]
    rows = await reader.fetch_each(_SQL["newest_of_prefix"], named)
    return PrefixPositions((_key(row), row["prefix"]) for row in rows), left


async def _prefix_lengths(reader: Reader, tenants: Collection[str]) -> Mapping[str, Collection[int]]:
    """Return the different lengths of the prefixes that each tenant has cancelled."""
    lengths: dict[str, list[int]] = {tenant: [] for tenant in tenants}
    for row in await reader.fetch_each(_SQL["prefix_lengths"], [{"tenant_id": tenant} for tenant in sorted(tenants)]):
        lengths[row["tenant_id"]].append(row["length"])
    return lengths


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


async def lock_due(tx: Transaction, tenants: Collection[str], now: int) -> list[Cancellation]:
    """Lock the oldest due cancellation of each tenant, in the order of the tenants.

    A tenant whose oldest one is locked by another instance is skipped.
    """
    rows = await tx.fetch_each(_SQL["lock_due"], [{"tenant_id": tenant, "now": now} for tenant in sorted(tenants)])
    return [_cancellation(row) for row in rows]


async def read_page(reader: Reader, cancellation: Cancellation, limit: int, most_data: int) -> CancelledPage:
    """Return the ids of the next timers of a cancellation, whatever their state, up to `limit`, in order.

    The timers to cancel have at most `most_data` characters of data, because they are written with it. A page has at
    least two timers: the first one may be the last one of the page before.
    """
    calls: list[str] = []
    at_once = _FIRST_READ
    while len(calls) < limit:
        begin = calls[-1] if calls else cancellation.next_call_id
        wanted = min(at_once, limit - len(calls)) + len(calls[-1:])
        page = {**_key_columns(cancellation.key), "from": begin, "end": cancellation.end, "limit": wanted}
        rows = await reader.fetch(_SQL["page"], page)
        before = len(calls)
        for row in (row for row in rows if row["service_call_id"] not in calls[-1:]):
            most_data -= row["size"]
            if most_data < 0 and len(calls) >= LEAST_TIMERS:
                return CancelledPage(calls, is_last=False)
            calls.append(row["service_call_id"])
        if len(rows) < wanted:
            return CancelledPage(calls, is_last=True)
        if len(calls) == before:  # SQLite: damaged ids, which are all read as the last one
            limit += 1
        at_once *= 2
    return CancelledPage(calls, is_last=False)


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
