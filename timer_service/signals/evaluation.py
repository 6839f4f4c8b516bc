"""The worker that matches transitions with waiting signals if the command of the transition did not match them.

A command leaves transitions to this worker in four cases:

- The slice is disabled.
- Too many signals wait for the work item.
- The trigger of a signal raises an error.
- A late command makes a signal wait for transitions that are stored already.
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
from timer_service.signals.signal import Signal

_MAX_TRANSITIONS = 100
_MAX_FIRINGS = 1000
"""The limits of one pass. They also limit how long commands and claims wait for the pass."""


class Evaluation:
    """A worker that evaluates some transitions in each tick. After a restart it continues where the last tick ended."""

    def __init__(self, parts: WorkerParts) -> None:
        self._database = parts.database
        self._wake = partial(parts.wake, "firings")
        self._seen_tenant = ""

    async def tick(self, now: int) -> Pass:
        """Match unevaluated transitions with waiting signals. Wake the firings loop if there are new firings."""
        transitions, firings = await in_transaction(self._database, lambda tx: self._evaluate_next(tx, now))
        if firings:
            self._wake(now)
        return Pass(transitions, now if transitions else None)

    async def _evaluate_next(self, tx: Transaction, now: int) -> tuple[int, int]:
        """Evaluate the next transitions. Return the number of transitions and the number of firings."""
        transitions = await self._lock_next(tx)
        return len(transitions), await self._evaluate(tx, transitions, now) if transitions else 0

    async def _lock_next(self, tx: Transaction) -> list[Transition]:
        """Lock the next transitions, the same number for each tenant.

        If there are more tenants than transitions in one pass, the next pass continues with the next tenants.
        """
        tenants = await store.find_waiting_tenants(tx, self._seen_tenant, _MAX_TRANSITIONS)
        if self._seen_tenant and not tenants:
            tenants = await store.find_waiting_tenants(tx, "", _MAX_TRANSITIONS)
        self._seen_tenant = tenants[-1] if len(tenants) == _MAX_TRANSITIONS else ""
        return await store.lock_next_transitions(tx, tenants, _MAX_TRANSITIONS // len(tenants)) if tenants else []

    async def _evaluate(self, tx: Transaction, transitions: Sequence[Transition], now: int) -> int:
        share = _MAX_FIRINGS // len(transitions)
        cursors = {(transition.key, transition.evaluated_to) for transition in transitions}
        signals = await store.find_active_signals(tx, cursors, share)
        evaluated: list[Transition] = []
        found: list[Firing] = []
        for transition in transitions:
            candidates = _next_signals(transition, signals, share)
            firings, _ = evaluate(transition, candidates)  # skips a signal that fails, so that the queue moves on
            found += firings
            has_more = len(candidates) == share
            evaluated.append(
                _requeue(transition, candidates, now) if has_more else transition._replace(evaluate_at=None)
            )
        await store.save_progress(tx, evaluated)
        await firing_store.add(tx, found, now)
        return len(found)


def _next_signals(transition: Transition, signals: Sequence[Signal], share: int) -> list[Signal]:
    """Return the next signals of a transition. `signals` also holds the signals of other transitions."""
    remaining = {
        signal.key: signal
        for signal in signals
        if signal.item == transition.key and signal.key.signal_id > transition.evaluated_to
    }
    return [remaining[key] for key in sorted(remaining)][:share]


def _requeue(transition: Transition, signals: Sequence[Signal], now: int) -> Transition:
    """Return the transition at the end of the queue, evaluated up to the last of `signals`."""
    return transition._replace(evaluate_at=now, evaluated_to=signals[-1].key.signal_id)
