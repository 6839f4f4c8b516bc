"""Cancellations of many timers by the prefix of their ids: values, and the rows of `timer_cancellations`.

The command adds one row. `cancellation_worker` then cancels the timers, and deletes the row with the last of them.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from timer_service.core.due.due_rows import DueTable
from timer_service.core.due.row_counts import CountedRows
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.positions import position_columns, read_position
from timer_service.core.ports.sql import load_sql
from timer_service.core.service.clock_repair import SLACK_MS, TimedRows
from timer_service.core.values.delays import LONGEST
from timer_service.core.values.message import Command, Event, Position, Trace
from timer_service.timers.messages import CancelTimers, TimersCancelled

LOOP = "cancellations"
"""The loop of the worker that cancels the timers."""
_LAST_CHARACTER = "\U0010ffff"
_SURROGATES = range(0xD800, 0xE000)
_LONGEST_ID = 200


class Cancellation(NamedTuple):
    """One CancelTimers, and how far its pass over the timers is."""

    tenant_id: str
    position: Position
    """Of the command."""
    prefix: str
    command_id: str
    correlation_id: str | None
    trace: Trace
    next_call_id: str
    """Where the next page begins."""
    available_at: int
    """When the pass may begin. It stays during a pass, so a pass that has begun remains the oldest of its tenant."""
    cancelled_count: int = 0
    """How many timers were cancelled."""

    def after_page(self, calls: Sequence[str], cancelled_count: int) -> "Cancellation":
        """Return the cancellation after a page with the timers `calls`, of which `cancelled_count` were cancelled."""
        return self._replace(
            next_call_id=calls[-1] if calls else self.next_call_id,
            cancelled_count=self.cancelled_count + cancelled_count,
        )

    def event(self, now: int) -> Event:
        """Return the event of a finished cancellation. Its id depends on the command, so it is always the same."""
        cause = "\0".join((self.tenant_id, "timers-cancelled", *map(str, self.position)))
        payload = {
            "tenantId": self.tenant_id,
            "commandId": self.command_id,
            "prefix": self.prefix,
            "count": self.cancelled_count,
        }
        return Event(
            hashlib.blake2b(cause.encode(), digest_size=16).hexdigest(),
            TimersCancelled.type,
            self.tenant_id,
            payload,
            now,
            self.correlation_id,
            self.command_id,
            self.trace,
        )


def new_cancellation(command: Command, now: int) -> Cancellation:
    """Return the cancellation of a CancelTimers."""
    payload = command.payload
    assert isinstance(payload, CancelTimers)  # noqa: S101 - the caller passes no other command
    return Cancellation(
        command.tenant,
        command.position,
        payload.prefix,
        command.id,
        command.correlation_id,
        command.trace,
        next_call_id=payload.prefix,
        available_at=now,
    )


def prefix_end(prefix: str) -> str:
    """Return the end of the range of ids with a prefix: the least text that is greater than all of them.

    It is the prefix with the next character in place of the last one. Code points have the order of bytes in UTF-8.
    """
    kept = prefix.rstrip(_LAST_CHARACTER)  # which has no next character
    if not kept:
        return _LAST_CHARACTER * (_LONGEST_ID + 1)
    following = ord(kept[-1]) + 1
    if following in _SURROGATES:  # these are no characters
        following = _SURROGATES.stop
    return kept[:-1] + chr(following)


TABLE = "timer_cancellations"
_SQL = load_sql("timer_service.timers", "cancellations.sql")
_KEY = ("tenant_id", "position_epoch", "position_sequence")
_PLAIN_COLUMNS = tuple(name for name in Cancellation._fields if name not in {"tenant_id", "position", "trace"})
_COLUMNS = (*_KEY, *Trace._fields, *_PLAIN_COLUMNS)
_SQL["add"] = _SQL["add"].format(columns=", ".join(_COLUMNS), values=", ".join(f":{name}" for name in _COLUMNS))

CANCELLATIONS = DueTable(TABLE, _KEY, order=("available_at", *_KEY[1:]), columns=_COLUMNS)

TIMED = TimedRows(
    table=TABLE,
    instant="available_at",
    is_wrong=f"available_at - {LONGEST // timedelta(milliseconds=1) + SLACK_MS} > :now",
    repair="available_at = :now",
)
"""The cancellations that wait for their next page."""

COUNTED = CountedRows(TABLE, "Waiting", "TRUE")
"""The cancellations that the gauges count."""


async def add(tx: Transaction, cancellations: Collection[Cancellation]) -> None:
    """Add cancellations."""
    await tx.executemany(_SQL["add"], [_parameters(each) for each in cancellations])


async def read_page(reader: Reader, cancellation: Cancellation, limit: int) -> Sequence[str]:
    """Return the ids of the next timers of a cancellation, whatever their state, in order, up to `limit` (at least 2).

    The first one is the last timer of the page before.
    """
    bounds = {"from": cancellation.next_call_id, "end": prefix_end(cancellation.prefix), "limit": limit}
    rows = await reader.fetch(_SQL["page"], {"tenant_id": cancellation.tenant_id, **bounds})
    return [row["service_call_id"] for row in rows]


async def cancel_page(tx: Transaction, cancellation: Cancellation, calls: Sequence[str], now: int) -> int:
    """Cancel the timers of a page that are older than the cancellation. Return how many these are."""
    if not calls:
        return 0
    page = {**_key(cancellation), "from": calls[0], "to": calls[-1], "now": now}
    return await tx.execute(_SQL["cancel"], page)


async def save(tx: Transaction, cancellations: Collection[Cancellation]) -> None:
    """Write how far some cancellations are. They are locked."""
    await tx.executemany(_SQL["save"], [_parameters(each) for each in cancellations])


async def delete(tx: Transaction, cancellations: Collection[Cancellation]) -> None:
    """Delete some cancellations. They are locked."""
    await tx.executemany(_SQL["delete"], list(map(_key, cancellations)))


def read_cancellation(row: Row) -> Cancellation:
    """Return the cancellation in a row."""
    trace = Trace(row["traceparent"], row["tracestate"])
    plain = {name: row[name] for name in _PLAIN_COLUMNS}
    return Cancellation(row["tenant_id"], read_position(row), trace=trace, **plain)


def _key(cancellation: Cancellation) -> Mapping[str, Any]:
    return {"tenant_id": cancellation.tenant_id, **position_columns(cancellation.position)}


def _parameters(cancellation: Cancellation) -> Mapping[str, Any]:
    plain = {name: getattr(cancellation, name) for name in _PLAIN_COLUMNS}
    return {**_key(cancellation), **cancellation.trace._asdict(), **plain}
