"""The worker that matches transitions with waiting signals where the command did not.

The slice was off then, too many signals wait for one work item, or a late command made a signal wait.
"""

from collections.abc import Sequence
from functools import partial

from timer_service.core.database import Transaction
from timer_service.core.loop import Pass
from timer_service.core.slice import WorkerParts
from timer_service.core.transactions import in_transaction
from timer_service.signals import firing_store, store
from timer_service.signals.firings import Firing, evaluate
from timer_service.signals.items import Transition
from timer_service.signals.signals import Signal

_EVENTS = 100
_SIGNALS = 1000
"""Bounds of one pass: the most firings it can make, and so how long commands and claims wait for it."""


class Evaluation:
    """A worker whose ticks evaluate some transitions each; a restart continues where the last tick ended."""

    def __init__(self, parts: WorkerParts) -> None:
        self._database = parts.database
        self._wake = partial(parts.wake, "firings")
        self._seen_tenant = ""

    async def tick(self, now: int) -> Pass:
        """Match unevaluated transitions with waiting signals. A command that leaves some wakes the loop."""
        events, found = await in_transaction(self._database, lambda tx: self._evaluate_next(tx, now))
        if found:
            self._wake(now)
        return Pass(events, now if events else None)

    async def _evaluate_next(self, tx: Transaction, now: int) -> tuple[int, int]:
        """Evaluate the next transitions; return how many, and how many firings they led to."""
        events = await self._next_events(tx)
        return len(events), await self._evaluate(tx, events, now) if events else 0

    async def _next_events(self, tx: Transaction) -> list[Transition]:
        """Lock the next transitions, the same share of each tenant; with very many tenants, passes take turns."""
        tenants = await store.waiting_tenants(tx, self._seen_tenant, _EVENTS)
        if self._seen_tenant and not tenants:
            tenants = await store.waiting_tenants(tx, "", _EVENTS)
        self._seen_tenant = tenants[-1] if len(tenants) == _EVENTS else ""
        return await store.next_events(tx, tenants, _EVENTS // len(tenants)) if tenants else []

    async def _evaluate(self, tx: Transaction, events: Sequence[Transition], now: int) -> int:
        share = _SIGNALS // len(events)
        signals = await store.waiting_signals(tx, {(event.key, event.evaluated_to) for event in events}, share)
        evaluated: list[Transition] = []
        found: list[Firing] = []
        for event in events:
            mine = _next_of(event, signals, share)
            firings, _ = evaluate(event, mine)  # a signal that can't be matched must not hold up the queue
            found += firings
            evaluated.append(_advanced(event, mine, now) if len(mine) == share else event._replace(evaluate_at=None))
        await store.note_evaluated(tx, evaluated)
        await firing_store.add(tx, found, now)
        return len(found)


def _next_of(event: Transition, signals: Sequence[Signal], share: int) -> list[Signal]:
    """Return the next signals of a transition; others were read for other transitions, also of the same item."""
    behind = {
        signal.key: signal
        for signal in signals
        if signal.item == event.key and signal.key.signal_id > event.evaluated_to
    }
    return [behind[key] for key in sorted(behind)][:share]


def _advanced(event: Transition, signals: Sequence[Signal], now: int) -> Transition:
    """Return a transition with more signals to come, behind all others that wait to be evaluated."""
    return event._replace(evaluate_at=now, evaluated_to=signals[-1].key.signal_id)
