"""Reads and writes of work items, their transitions and signals."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate

from timer_service.core.database import Reader, Transaction
from timer_service.core.errors import ConflictError
from timer_service.core.message import Position
from timer_service.core.sql import load_sql
from timer_service.signals import firing_store
from timer_service.signals.batch import MAX_INLINE_SIGNALS, Batch, Change, LoadedRows
from timer_service.signals.items import ItemKey, Transition, WorkItem
from timer_service.signals.rows import (
    item_parameters,
    read_item,
    read_signal,
    read_transition,
    signal_parameters,
    state_parameters,
    transition_parameters,
)
from timer_service.signals.signal import (
    History,
    Key,
    Signal,
    SignalCommand,
    Status,
    starts_waiting,
)

_SQL = load_sql("timer_service.signals", "store.sql")
_FIND_LOCKED = f"{_SQL['find']}\n/* for update */"
_NO_HISTORY = History()


async def load(tx: Transaction, changes: Sequence[Change], now: int, *, evaluating: bool) -> Batch:
    """Return the values that the changes can affect, and lock their rows: first the work items, then the signals.

    This includes the work items of all definitions of each signal, because a late command can make an older definition
    the current one. While the work items are locked, no other transaction can add transitions to them.
    """
    keys = {change.key for change in changes if isinstance(change, SignalCommand)}
    named = {item for change in changes for item in _named_items(change)}
    items = await lock_items(tx, named | _items_of((await find(tx, keys)).values()), now)
    signals = await find_locked(tx, keys)
    if not _items_of(signals.values()) <= items.keys():
        raise ConflictError("another instance changed the work item of a signal")
    transitions = {(change.key, change.event_id) for change in changes if isinstance(change, Transition)}
    waiting: defaultdict[ItemKey, list[Signal]] = defaultdict(list)
    cursors = {(item, "") for item, _ in transitions} if evaluating else set()
    for signal in await find_active_signals(tx, cursors, MAX_INLINE_SIGNALS + 1):
        if signal.item is not None:
            waiting[signal.item].append(signal)
    return Batch(LoadedRows(items, signals, waiting, await find_known_transitions(tx, transitions), evaluating))


async def count_changes(tx: Transaction, changes: Sequence[Change], most_signals: int) -> int:
    """Return how many of the first changes one transaction can apply: their transitions meet at most `most_signals`.

    It is at least one. The signals are counted only if there are many transitions.
    """
    transitions = [change for change in changes if isinstance(change, Transition)]
    if len(transitions) * (MAX_INLINE_SIGNALS + 1) <= most_signals:
        return len(changes)
    items = [{**item._asdict(), "limit": MAX_INLINE_SIGNALS} for item in {change.key for change in transitions}]
    rows = await tx.fetch_each(_SQL["count_waiting"], items)
    waiting = Counter({ItemKey(row["tenant_id"], row["work_item_id"]): row["count"] for row in rows if row["count"]})
    waiting.update(item for change in changes if isinstance(change, SignalCommand) for item in _named_items(change))
    met = accumulate(waiting[change.key] if isinstance(change, Transition) else 0 for change in changes)
    return max(1, sum(total <= most_signals for total in met))


async def save(tx: Transaction, before: Batch, after: Batch, now: int) -> int | None:
    """Write the values that differ between two states of a batch. Return the next wake-up of a worker, or None."""
    known = before.loaded
    await put_items(tx, [item for key, item in after.items.items() if item != known.items[key]])
    await save_signals(tx, known.signals, after.signals)
    pairs = [(known.signals.get(key), signal) for key, signal in after.signals.items()]
    requeued = await requeue_newer_transitions(
        tx, [signal for old, signal in pairs if starts_waiting(old, signal)], now
    )
    transitions = [transition for by_id in after.transitions.values() for transition in by_id.values()]
    await add_transitions(tx, transitions)
    await firing_store.fail_unsettled(tx, after.ended, now)
    firings = [firing for by_id in after.firings.values() for firing in by_id.values()]
    await firing_store.add(tx, firings, now)
    is_left = bool(requeued) or any(transition.evaluate_at is not None for transition in transitions)
    wakes = [firing.due_at for firing in firings if firing.failed is None]
    return min([*wakes, now] if is_left and known.evaluating else wakes, default=None)


async def save_signals(tx: Transaction, before: Mapping[Key, Signal], after: Mapping[Key, Signal]) -> None:
    """Write the signals that differ. The rows of `before` are locked.

    Raises `ConflictError` if another instance has created one of the new signals since the read.
    """
    changed = [signal for key, signal in sorted(after.items()) if before.get(key) != signal]
    new = [signal for signal in changed if signal.key not in before]
    known = [signal for signal in changed if signal.key in before]
    same_definition = [signal for signal in known if _keeps_definition(before[signal.key], signal)]
    new_definition = [signal for signal in known if not _keeps_definition(before[signal.key], signal)]
    if await tx.executemany(_SQL["add"], list(map(signal_parameters, new))) != len(new):
        raise ConflictError("a signal was created by another instance")
    await tx.executemany(_SQL["put"], list(map(signal_parameters, new_definition)))
    await tx.executemany(_SQL["move"], list(map(state_parameters, same_definition)))


def _keeps_definition(before: Signal, after: Signal) -> bool:
    return (before.state.defined, before.created_at) == (after.state.defined, after.created_at)


def _named_items(change: Change) -> set[ItemKey]:
    if not isinstance(change, SignalCommand):
        return {change.key}
    item_id = change.step.definition and change.step.definition.work_item_id
    return {ItemKey(change.key.tenant_id, item_id)} if item_id else set()


def _items_of(signals: Iterable[Signal]) -> set[ItemKey]:
    return {item for signal in signals for item in signal.items}


async def lock_items(tx: Transaction, keys: Collection[ItemKey], now: int) -> dict[ItemKey, WorkItem]:
    """Return work items and lock them until the transaction ends.

    The lock also protects their transitions and waiting signals. An unknown work item is inserted first, to be locked.
    Rows are locked in the order of their keys, so that instances cannot deadlock.
    """
    parameters = [key._asdict() for key in sorted(keys)]
    await tx.executemany(_SQL["insert_item"], [{**key, "now": now} for key in parameters])
    return {item.key: item for item in map(read_item, await tx.fetch_each(_SQL["find_item"], parameters))}


async def put_items(tx: Transaction, items: Iterable[WorkItem]) -> None:
    """Write locked work items."""
    await tx.executemany(_SQL["put_item"], list(map(item_parameters, items)))


async def find_known_transitions(
    tx: Transaction, transitions: Iterable[tuple[ItemKey, str]]
) -> frozenset[tuple[ItemKey, str]]:
    """Return the transitions that are stored already. A transition is given by its work item and event id."""
    parameters = [{**item._asdict(), "event_id": event_id} for item, event_id in transitions]
    rows = await tx.fetch_each(_SQL["find_event"], parameters)
    return frozenset((ItemKey(row["tenant_id"], row["work_item_id"]), row["event_id"]) for row in rows)


async def add_transitions(tx: Transaction, transitions: Iterable[Transition]) -> None:
    """Insert new transitions."""
    await tx.executemany(_SQL["add_event"], list(map(transition_parameters, transitions)))


async def requeue_newer_transitions(tx: Transaction, signals: Iterable[Signal], now: int) -> int:
    """Queue the stored transitions that are newer than `since` of a signal; return the number of transitions.

    Such transitions exist only if the command that made the signal wait was delivered after them.
    """
    since: dict[ItemKey, Position] = {}
    for signal in signals:
        if signal.item is not None and not signal.state.is_timed:
            since[signal.item] = min(signal.state.since, since.get(signal.item, signal.state.since))
    newer = [
        {**item._asdict(), "now": now, "since_epoch": oldest.epoch, "since_sequence": oldest.sequence}
        for item, oldest in sorted(since.items())
    ]
    return await tx.executemany(_SQL["evaluate_again"], newer)


async def find_waiting_tenants(tx: Transaction, after: str, limit: int) -> list[str]:
    """Return the next tenants after `after` that have unevaluated transitions."""
    rows = await tx.fetch(_SQL["waiting_tenants"], {"after": after, "limit": limit})
    return [row["tenant_id"] for row in rows]


async def lock_next_transitions(tx: Transaction, tenants: Sequence[str], limit: int) -> list[Transition]:
    """Lock and return the unevaluated transitions that have waited longest, at most `limit` for each tenant.

    Transitions that another instance has locked are skipped.
    """
    shares = [{"tenant_id": tenant, "limit": limit} for tenant in tenants]
    return [read_transition(row) for row in await tx.fetch_each(_SQL["next_events"], shares)]


async def save_progress(tx: Transaction, transitions: Iterable[Transition]) -> None:
    """Write how far the evaluation of transitions has come."""
    parameters = [
        {
            **transition.key._asdict(),
            "event_id": transition.event_id,
            "evaluate_at": transition.evaluate_at,
            "evaluated_to": transition.evaluated_to,
        }
        for transition in transitions
    ]
    await tx.executemany(_SQL["note_evaluated"], parameters)


async def find_active_signals(reader: Reader, cursors: Collection[tuple[ItemKey, str]], limit: int) -> list[Signal]:
    """Return the next active signals of work items, without their histories.

    A cursor is a work item and a signal id. It leads to at most `limit` signals of the work item after that id.
    """
    parameters = [{**item._asdict(), "after": after, "limit": limit} for item, after in cursors]
    return [read_signal(row, _NO_HISTORY) for row in await reader.fetch_each(_SQL["waiting"], parameters)]


async def find(reader: Reader, keys: Collection[Key]) -> dict[Key, Signal]:
    """Return the signals that exist among `keys`."""
    rows = await reader.fetch_each(_SQL["find"], [key._asdict() for key in keys])
    return {signal.key: signal for signal in map(read_signal, rows)}


async def find_locked(tx: Transaction, keys: Collection[Key]) -> dict[Key, Signal]:
    """Like `find`, but lock the rows until the transaction ends."""
    rows = await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in sorted(keys)])
    return {signal.key: signal for signal in map(read_signal, rows)}


async def find_locked_by_others(tx: Transaction, keys: Collection[Key]) -> set[Key]:
    """Return the signals that another transaction has locked. Never waits."""
    named = [key._asdict() for key in sorted(keys)]
    free = {Key(row["tenant_id"], row["signal_id"]) for row in await tx.fetch_each(_SQL["find_free"], named)}
    return (await find(tx, keys)).keys() - free


async def page(
    reader: Reader, tenant_id: str, *, item: str | None, statuses: Sequence[Status], after: str, limit: int
) -> list[Signal]:
    """Return the next signals after the id `after` in order of their ids, from one snapshot of the table."""
    if item is not None:  # excludes tombstones; one index must answer each condition
        conditions = [f"work_item_id = :work_item_id AND status = '{status}'" for status in statuses]
    elif len(statuses) < len(Status):
        conditions = [f"trigger_kind IS NOT NULL AND status = '{status}'" for status in statuses]
    else:
        conditions = ["trigger_kind IS NOT NULL"]
    pages = (_SQL["page"].format(where=condition) for condition in conditions)
    sql = "\nUNION ALL\n".join(f"SELECT * FROM ({page}) AS page" for page in pages)  # noqa: S608 - no user input
    parameters = {"tenant_id": tenant_id, "work_item_id": item, "after": after, "limit": limit}
    if item is None:
        del parameters["work_item_id"]
    rows = await reader.fetch(sql, parameters)
    return sorted((read_signal(row, _NO_HISTORY) for row in rows), key=lambda signal: signal.key)[:limit]


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete settled rows that are older than the instant `before`, up to `limit` of each kind.

    These are settled firings, evaluated transitions, ended signals, and tombstones of signals. The tasks of these
    signals are deleted too. A fired signal and its task stay until the signal is resolved. Return the number of deleted
    rows, not counting tasks.
    """
    rows = await tx.fetch(_SQL["unused"], {"before": before, "limit": limit})
    unused = [{"tenant_id": row["tenant_id"], "signal_id": row["signal_id"]} for row in rows]
    await tx.executemany(_SQL["delete"], unused)
    await firing_store.delete_tasks(tx, [Key(**key) for key in unused])
    firings = await firing_store.delete_settled(tx, before, limit)
    return len(unused) + firings + await tx.execute(_SQL["delete_events"], {"before": before, "limit": limit})
