"""Reads and writes of timers: rows of `timer_schedules` to `Timer` values and back, and what limits count of them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from timer_service.core.due.lease import LeasedTable
from timer_service.core.due.long_texts import LONGEST_IN_ROW, LongTexts, TextKey
from timer_service.core.due.row_counts import CountedRows
from timer_service.core.limits.quotas import Amounts, Usage
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.positions import position_columns, read_position
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.errors import ConflictError
from timer_service.core.values.message import Command, Trace
from timer_service.timers.messages import State
from timer_service.timers.rules import Key, Requested, Schedule, Timer

_SQL = load_sql("timer_service.timers", "store.sql")
_PLAIN_COLUMNS = tuple(name for name in Schedule._fields if name != "trace")
_SCHEDULE_COLUMNS = (*_PLAIN_COLUMNS, *Trace._fields)
_VALUES = (
    *("state", "large_data", *_SCHEDULE_COLUMNS, "registered_at", "cancelled_at"),
    *("position_epoch", "position_sequence", "available_at", "attempt", "last_error"),
)
_COLUMNS = ("tenant_id", "service_call_id", *_VALUES)
_USUAL_COLUMNS = (
    *("tenant_id", "service_call_id", "state", "due_at", "event_id", "data", "causation_id", "registered_at"),
    *("position_epoch", "position_sequence", "available_at"),
)
_RARE_COLUMNS = ("large_data", "expires_at", "topic", "correlation_id", *Trace._fields)
"""Columns that are NULL in most new timers. SQLite takes 0.3 µs for each that an insert names."""
_DUE_AT = _USUAL_COLUMNS.index("due_at")
_EVENT_ID = _USUAL_COLUMNS.index("event_id")
_SETTLED_AT = "COALESCE(reached_at, cancelled_at, expired_at) AS settled_at"
_SQL["put"] = _SQL["put"].format(
    columns=", ".join(_COLUMNS),
    values=", ".join(f":{name}" for name in _COLUMNS),
    updates=", ".join(f"{name} = excluded.{name}" for name in _VALUES),
)
_ADD_USUAL, _ADD_ANY = (
    _SQL["add"].format(columns=", ".join(columns), values=", ".join(f":{name}" for name in columns))
    for columns in (_USUAL_COLUMNS, (*_USUAL_COLUMNS, *_RARE_COLUMNS))
)
_TEXTS = LongTexts("timer_schedules", "data", "large_data", "event_id")
_READ = (*(f"{_TEXTS.expression} AS data" if name == "data" else name for name in _COLUMNS), _SETTLED_AT)
for _name in (
    "find",
    "page_of_scheduled",
    "page_of_others",
):  # not `*`: a new column would break the prepared statements of older instances
    _SQL[_name] = _SQL[_name].replace("{columns}", ", ".join(_READ))
_FIND_LOCKED = f"{_SQL['find']}\n/* for update */"

TIMERS = LeasedTable(
    name="timer_schedules",
    key=("tenant_id", "service_call_id"),
    claimed=("tenant_id", "service_call_id", "large_data", *_SCHEDULE_COLUMNS),
    oldest_first="due_at",
    texts=_TEXTS,
    buried=State.FAILED,
    complete="state = CASE WHEN expires_at <= :at THEN 'Expired' ELSE 'Reached' END, "
    "reached_at = CASE WHEN expires_at <= :at THEN NULL ELSE :at END, "
    "expired_at = CASE WHEN expires_at <= :at THEN :at END",
    expires_at="expires_at",
)


_WHERE = {
    State.SCHEDULED: "available_at IS NOT NULL",
    State.REACHED: "state = 'Reached'",
    State.EXPIRED: "state = 'Expired'",
    State.CANCELLED: "state = 'Cancelled'",
    State.FAILED: "state = 'Failed'",
}
"""The WHERE clause for each state. It must equal the predicate of a partial index."""

_OF_TOPIC = {state: f"topic = :topic AND state = '{state}'" for state in State}
"""The WHERE clause for the timers with a topic in each state. One index has all of them."""

COUNTED = tuple(CountedRows(TIMERS.name, state, where) for state, where in _WHERE.items())
"""The timers that the gauges count."""

PENDING = Usage("pending_timers", _SQL["count_pending"])
STORED_DATA = Usage("stored_data", _SQL["sum_large_data"])


NewRow = tuple[tuple[Any, ...], tuple[Any, ...], str | None]
"""A new timer: the values of its usual columns, of its rare ones (often `_NO_RARE_VALUES`), and its long text."""


class Place(NamedTuple):
    """A place in a list that is ordered by due time, then by service call."""

    due_at: int
    service_call_id: str


async def find(reader: Reader, keys: Collection[Key]) -> dict[Key, Timer]:
    """Return the timers that exist among `keys`."""
    rows = await reader.fetch_each(_SQL["find"], [key._asdict() for key in keys])
    return {timer.key: timer for timer in map(_timer, rows)}


async def load(tx: Transaction, keys: Collection[Key]) -> dict[Key, Timer]:
    """Like `find`, but lock the rows until the transaction ends.

    Rows are locked in the order of their keys, so that two instances that handle the same timers cannot deadlock.
    """
    rows = await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in sorted(keys)])
    return {timer.key: timer for timer in map(_timer, rows)}


async def insert_new(tx: Transaction, new: Iterable[NewRow]) -> Sequence[Sequence[Any]]:
    """Insert rows of new timers. Return those that were inserted: the others exist already.

    The first two values of a row are its key. It is one statement: with two, the keys would not be in one order, so
    two instances could deadlock. Without this, all keys are read first, and then written as an upsert: 4 µs more for
    each timer on SQLite.
    """
    in_order = sorted(new, key=itemgetter(0))
    if all(rare is _NO_RARE_VALUES for _, rare, _ in in_order):
        return await tx.insert(_ADD_USUAL, [usual for usual, _, _ in in_order])
    inserted = await tx.insert(_ADD_ANY, [usual + rare for usual, rare, _ in in_order])
    keys = {tuple(row[:2]) for row in inserted}
    texts = {(usual[0], usual[_EVENT_ID]): text for usual, _, text in in_order if text and usual[:2] in keys}
    await _TEXTS.add(tx, texts)
    return inserted


def growth_by_rows(new: Iterable[NewRow], now: int) -> Mapping[str, Amounts]:
    """Return how much more each tenant has when the rows of new timers are inserted."""
    pending, data = Counter[str](), Counter[str]()
    for usual, _, text in new:
        tenant, is_pending = usual[0], usual[_DUE_AT] > now
        pending[tenant] += is_pending
        if text is not None:
            data[tenant] += len(text)
    return {tenant: {PENDING: pending[tenant], STORED_DATA: data[tenant]} for tenant in pending}


def growth(before: Timer | None, after: Timer | None, now: int) -> Amounts:
    """Return how much more a tenant has after a command on one of its timers than before."""
    return {
        PENDING: _is_pending(after, now) - _is_pending(before, now),
        STORED_DATA: _large_data(after) - _large_data(before),
    }


def _is_pending(timer: Timer | None, now: int) -> bool:
    """Return whether a timer fires later. One that is due does not count, because it fires now."""
    return timer is not None and timer.available_at is not None and timer.schedule.due_at > now


def _large_data(timer: Timer | None) -> int:
    """Return what the data of a timer counts in the limit `stored_data`."""
    return 0 if timer is None else timer.schedule.large_data or 0


def characters(timer: Timer) -> int:
    """Return how many characters of data a timer has."""
    return len(timer.schedule.data or "")


async def save(tx: Transaction, before: Mapping[Key, Timer], after: Mapping[Key, Timer]) -> None:
    """Write the timers of `after` that differ from `before`. `load` locked the rows of `before`.

    If a command changed nothing but the position of a timer, the claim of the timer stays. Every other write ends the
    claim. Raises `ConflictError` if a worker of another instance has changed one of the timers since `load`.
    """
    changed = [after[key] for key in sorted(after) if after[key] != before.get(key)]
    moved = [timer for timer in changed if _is_moved(before.get(timer.key), timer)]
    replaced = [timer for timer in changed if not _is_moved(before.get(timer.key), timer)]
    written = await tx.executemany(_SQL["move"], [_position_parameters(timer) for timer in moved])
    written += await tx.executemany(_SQL["put"], [_parameters(timer) for timer in replaced])
    if written != len(changed):
        raise ConflictError(f"{len(changed) - written} of {len(changed)} timers were changed by another instance")
    old, new = _long_texts(before[timer.key] for timer in replaced if timer.key in before), _long_texts(replaced)
    await _TEXTS.delete(tx, old.keys() - new.keys())
    await _TEXTS.add(tx, {key: new[key] for key in new.keys() - old.keys()})


def _long_texts(timers: Iterable[Timer]) -> dict[TextKey, str]:
    """Return the long texts of timers. A text is never changed: another text has another key."""
    schedules = ((timer.key.tenant_id, timer.schedule) for timer in timers)
    return {(tenant, each.event_id): each.data for tenant, each in schedules if each.data and each.large_data}


def _is_moved(before: Timer | None, after: Timer) -> bool:
    """Return whether the timers differ only in their positions."""
    return before is not None and after == before._replace(position=after.position)


async def page(
    reader: Reader,
    tenant_id: str,
    states: Collection[State],
    *,
    topic: str | None = None,
    place: Place,
    end: int,
    limit: int,
) -> list[Timer]:
    """Return timers of a tenant from one snapshot of the table: `states` are Scheduled alone, or other states.

    Scheduled timers are those after a place that are due before `end`, the next one first. Others are those before
    the place that are due at `end` or later, the latest first. `topic`: only timers with it.
    """
    is_scheduled = State.SCHEDULED in states
    sql = _SQL["page_of_scheduled" if is_scheduled else "page_of_others"]
    # One statement, because between two statements a timer could change its state and be read twice or not at all.
    pages = (sql.format(where=_WHERE[state] if topic is None else _OF_TOPIC[state]) for state in states)
    union = "\nUNION ALL\n".join(f"SELECT * FROM ({page}) AS page" for page in pages)  # noqa: S608 - no user input
    parameters = {"tenant_id": tenant_id, "topic": topic, **place._asdict(), "end": end, "limit": limit}
    rows = await reader.fetch(union, parameters) if states else []
    in_order = sorted(rows, key=lambda row: (row["due_at"], row["service_call_id"]), reverse=not is_scheduled)
    return [_timer(row) for row in in_order[:limit]]


async def count(
    reader: Reader, tenant_id: str, states: Sequence[State], due_before: int, limit: int
) -> dict[State, int]:
    """Return the number of timers in each state from one snapshot. Counting stops at `limit` for each state."""
    counts = (
        f"SELECT '{state}' AS state, count FROM ({_SQL['count'].format(where=_WHERE[state])}) AS counted"  # noqa: S608 - no user input
        for state in states
    )
    parameters = {"tenant_id": tenant_id, "due_before": due_before, "limit": limit}
    rows = await reader.fetch("\nUNION ALL\n".join(counts), parameters)
    return {State(row["state"]): row["count"] for row in rows}


async def oldest_due(reader: Reader, tenant_id: str) -> int | None:
    """Return the earliest due time of a tenant's Scheduled timers, or None if there is no such timer."""
    (row,) = await reader.fetch(_SQL["oldest_due"], {"tenant_id": tenant_id})
    due_at: int | None = row["due_at"]
    return due_at


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete up to `limit` timers that were settled before the instant `before`; return how many."""
    deleted = await tx.fetch(_SQL["delete_settled"], {"before": before, "limit": limit})
    await _TEXTS.delete(tx, [(row["tenant_id"], row["event_id"]) for row in deleted if row["large_data"] is not None])
    return len(deleted)


def _timer(row: Row) -> Timer:
    values = {name: row[name] for name in _PLAIN_COLUMNS}
    return Timer(
        key=Key(row["tenant_id"], row["service_call_id"]),
        state=State(row["state"]),
        position=read_position(row),
        registered_at=row["registered_at"],
        schedule=Schedule(**values, trace=Trace(row["traceparent"], row["tracestate"])),
        available_at=row["available_at"],
        settled_at=row["settled_at"],
        attempt=row["attempt"],
        last_error=row["last_error"],
    )


def _parameters(timer: Timer) -> Mapping[str, Any]:
    """Return the parameters of `put`. Commands settle a timer only by a cancel, so `settled_at` is its instant."""
    schedule = timer.schedule
    return {
        **_position_parameters(timer),
        "state": timer.state,
        "registered_at": timer.registered_at,
        "cancelled_at": timer.settled_at,
        "available_at": timer.available_at,
        "attempt": timer.attempt,
        "last_error": timer.last_error,
        **dict(zip(_SCHEDULE_COLUMNS, (*schedule[:-1], *schedule.trace), strict=True)),
        "data": None if schedule.large_data else schedule.data,
        "large_data": schedule.large_data,
    }


def _position_parameters(timer: Timer) -> Mapping[str, Any]:
    """Return the parameters of `move`: the key and the position."""
    tenant, call = timer.key
    return {"tenant_id": tenant, "service_call_id": call, **position_columns(timer.position)}


_SCHEDULED = State.SCHEDULED.value  # plain text: the driver of SQLite adapts other types, which takes longer
_NO_RARE_VALUES: tuple[Any, ...] = (None,) * len(_RARE_COLUMNS)
_NO_TRACE = Trace()


def new_row(key: tuple[str, str], command: Command, requested: Requested, now: int) -> NewRow:
    """Return the row of the timer that `rules.new_timer` makes, in half the time."""
    command_id, _, (epoch, sequence), correlation_id, trace, _, _ = command
    due_at, event_id, data, expires_at, topic = requested
    text = data if data is not None and len(data) > LONGEST_IN_ROW else None
    tenant, call = key
    in_row = data if text is None else None
    usual = (tenant, call, _SCHEDULED, due_at, event_id, in_row, command_id, now, epoch, sequence, due_at)
    if expires_at is None and topic is None and correlation_id is None and text is None and trace == _NO_TRACE:
        return usual, _NO_RARE_VALUES, None
    return usual, (None if text is None else len(text), expires_at, topic, correlation_id, *trace), text
