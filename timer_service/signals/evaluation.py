"""Holds what has happened to work items against the signals that wait for it, where the command did not do so itself.

Because the feature was off then, because too many signals wait for one work item, or because a command that was
delivered late made a signal active.
"""

import logging
from collections.abc import Sequence
from functools import partial

from timer_service.core.database import Transaction
from timer_service.core.loop import Pass
from timer_service.core.slice import WorkerParts
from timer_service.core.transactions import in_transaction
from timer_service.signals import firing_store, rules, store
from timer_service.signals.rules import Firing, Signal, Transition

log = logging.getLogger(__name__)

_EVENTS = 100
_SIGNALS = 1000
"""Bounds of one pass: the most firings it can make, and so how long commands and claims wait for it."""


class Evaluation:
    """A worker whose ticks evaluate some events each; what is done is kept, so that a restart goes on behind it."""

    def __init__(self, parts: WorkerParts) -> None:
        self._database = parts.database
        self._wake = partial(parts.wake, "firings")

    async def tick(self, now: int) -> Pass:
        """Match the oldest unevaluated transitions with waiting signals. A command that leaves some wakes the loop."""
        events, found = await in_transaction(self._database, lambda tx: self._evaluate_next(tx, now))
        if found:
            self._wake(now)
        return Pass(events, now if events else None)

    async def _evaluate_next(self, tx: Transaction, now: int) -> tuple[int, int]:
        """Evaluate the next events; return how many, and how many firings they led to."""
        events = await store.next_events(tx, _EVENTS)
        return len(events), len(await self._evaluate(tx, events, now)) if events else 0

    async def _evaluate(self, tx: Transaction, events: Sequence[Transition], now: int) -> list[Firing]:
        share = _SIGNALS // len(events)
        signals = await store.waiting(tx, {(event.item, event.evaluated_to) for event in events}, share)
        evaluated, found = [], []
        for event in events:
            mine = _next_of(event, signals, share)
            found += [rules.firing_on(signal, event) for signal in mine if _matches(signal, event)]
            evaluated.append(_advanced(event, mine, now) if len(mine) == share else event._replace(evaluate_at=None))
        await store.note_evaluated(tx, evaluated)
        await firing_store.add(tx, found, now)
        return found


def _next_of(event: Transition, signals: Sequence[Signal], share: int) -> list[Signal]:
    """Return the signals an event is to be held against next; others were read for events of the same item."""
    behind = {
        signal.key: signal
        for signal in signals
        if signal.item == event.item and signal.key.signal_id > event.evaluated_to
    }
    return [behind[key] for key in sorted(behind)][:share]


def _advanced(event: Transition, signals: Sequence[Signal], now: int) -> Transition:
    """Return an event with more signals to come, behind all others that wait to be evaluated."""
    return event._replace(evaluate_at=now, evaluated_to=signals[-1].key.signal_id)


def _matches(signal: Signal, event: Transition) -> bool:
    try:
        return rules.matches(signal, event)
    except Exception:
        log.exception("signal can't be held against an event", extra={"signal_id": signal.key.signal_id})
        return False
