"""Commands on signals and work items -> rules -> store, in the consumer's transaction."""

from collections.abc import Mapping, Sequence

from timer_service.core.consumer import CommandResult
from timer_service.core.database import Transaction
from timer_service.core.errors import ConflictError
from timer_service.core.message import Command
from timer_service.signals import firing_store, store
from timer_service.signals.batch import AT_ONCE, Batch, activated_keys, item_keys, signal_key
from timer_service.signals.messages import (
    ActivateWorkSignal,
    CancelWorkSignal,
    CreateWorkItem,
    CreateWorkSignal,
    PauseWorkSignal,
    ResolveWorkSignal,
    TransitionWorkItem,
)
from timer_service.signals.queries import signal_view
from timer_service.signals.rules import ItemKey, Key, Signal

PAYLOADS = (
    CreateWorkItem,
    TransitionWorkItem,
    CreateWorkSignal,
    PauseWorkSignal,
    ActivateWorkSignal,
    CancelWorkSignal,
    ResolveWorkSignal,
)


async def handle(
    tx: Transaction, commands: Sequence[Command], now: int, *, evaluating: bool
) -> Sequence[CommandResult]:
    """Apply commands in order, each seeing what those before it did, reading and writing each table once for all.

    With `evaluating`, transitions are held against the signals that wait for them; without, they are kept for later.
    """
    batch = await _load(tx, commands, now, evaluating=evaluating)
    known = set(batch.signals)
    outcomes = []
    for command in commands:
        verdict, signal, wake_at = batch.apply(command)
        wants_view = command.reply_to is not None and signal is not None and signal.definition is not None
        outcomes.append(
            CommandResult(verdict, wake_at, {"signal": signal_view(signal)} if signal and wants_view else None)
        )
    left = await _write(tx, batch, known)
    return [each._replace(wake_at=now) for each in outcomes] if left and evaluating else outcomes


async def _load(tx: Transaction, commands: Sequence[Command], now: int, *, evaluating: bool) -> Batch:
    keys = {key for command in commands if (key := signal_key(command)) is not None}
    activated = activated_keys(commands)
    items = await store.lock_items(tx, item_keys(commands) | _items_of(await store.find(tx, activated)), now)
    signals = await store.find_locked(tx, keys)
    if not _items_of({key: signals[key] for key in activated & signals.keys()}) <= items.keys():
        raise ConflictError("a signal came to wait for another work item meanwhile")
    moved = [(command, command.payload) for command in commands if isinstance(command.payload, TransitionWorkItem)]
    events = [(ItemKey(each.tenant_id, each.work_item_id), each.event_id or command.id) for command, each in moved]
    places = [(item, "") for item in {item for item, _ in events}]
    waiting = await store.waiting(tx, places, AT_ONCE + 1) if evaluating else []
    return Batch(
        now=now,
        evaluating=evaluating,
        items=items,
        signals=signals,
        waiting={signal.key: signal for signal in waiting},
        known_events=await store.known_events(tx, set(events)),
    )


def _items_of(signals: Mapping[Key, Signal]) -> set[ItemKey]:
    """Return the work items that signals wait for; those of signals to be activated are locked before them."""
    return {signal.item for signal in signals.values() if signal.item is not None}


async def _write(tx: Transaction, batch: Batch, known: set[Key]) -> bool:
    """Write what has changed; tell whether events are left to evaluate."""
    await store.put_items(tx, [batch.items[key] for key in batch.changed_items])
    await store.add(tx, [batch.signals[key] for key in batch.changed_signals - known])
    await store.put(tx, [batch.signals[key] for key in batch.changed_signals & known])
    again = await store.evaluate_again(tx, [batch.signals[key] for key in batch.awake], batch.now)
    await store.add_events(tx, batch.events)
    await firing_store.end(tx, batch.ended, batch.now)
    await firing_store.put_back(tx, batch.put_back)
    await firing_store.add(tx, batch.firings, batch.now)
    return again > 0 or any(event.evaluate_at is not None for event in batch.events)
