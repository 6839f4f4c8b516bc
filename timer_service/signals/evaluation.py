"""The worker that matches transitions with waiting signals if the command of the transition did not match them.

A command leaves transitions to this worker if the slice is disabled, if too many signals wait for the work item, or if
one of them has a long trigger.
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter

from timer_service.core.due.due_rows import DueRows
from timer_service.core.due.isolate import isolate_in_transactions
from timer_service.core.due.loop import Pass
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.service.slice import Parts
from timer_service.signals import firing_store, store
from timer_service.signals.firings import Firing, evaluate
from timer_service.signals.signal import Transition, Waiting

log = logging.getLogger(__name__)

_MAX_TRANSITIONS = 100
_MAX_FIRINGS = 1000
"""The limits of one pass. They also limit how long commands and claims wait for the pass."""
_ANY_TIME = 2**62
"""The instant of a transition only orders the queue, so each one is due, whatever the clock says."""


class Evaluation:
    """A worker that evaluates some transitions in each tick, for 50 ms at most.

    After a restart it continues where the last tick ended.
    """

    def __init__(self, parts: Parts, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = parts.database
        self._wake = partial(parts.wake, "firings")
        self._monotonic = monotonic
        self._rows = DueRows(store.UNEVALUATED)

    async def tick(self, now: int) -> Pass:
        """Match unevaluated transitions with waiting signals. Wake the firings loop if there are new firings.

        Tenants take turns. Transitions of a tenant whose transaction fails stay where they are.
        """
        tenants, _ = await self._rows.turns.next_due(self._database.reader, _ANY_TIME, _MAX_TRANSITIONS)
        counts: list[int] = []
        share = _MAX_TRANSITIONS // max(len(tenants), 1)
        evaluate_share = partial(self._evaluate_tenants, share=share, now=now)
        isolated = await isolate_in_transactions(self._database, tenants, evaluate_share, counts.append)
        for tenant, error in isolated.failed:
            log.error("transitions cannot be matched with signals", exc_info=error, extra={"tenant": tenant})
        evaluated = sum(counts)
        return Pass(evaluated, now if evaluated else None)

    async def _evaluate_tenants(self, tx: Transaction, tenants: Sequence[str], share: int, now: int) -> int:
        """Evaluate the next transitions of tenants, `share` of each. Return how many were evaluated."""
        due = await self._rows.find(tx, tenants, _ANY_TIME, share)
        keys = list(map(itemgetter(*store.UNEVALUATED.key), due))
        # Another instance may have evaluated some since, or have locked them: these are left out.
        locked = map(store.read_transition, await self._rows.select_keys(tx, keys, _ANY_TIME))
        # Tenants in the order of their turns, so that the next pass begins with those for whom there was no time.
        transitions = sorted(locked, key=lambda each: (tenants.index(each.key.tenant_id), each.evaluate_at or 0))
        if not transitions:
            return 0
        evaluated, firings = await self._evaluate(tx, transitions, now)
        if len(evaluated) < len(transitions):  # the next tenants come first in the next pass
            self._rows.turns.continue_after(evaluated[-1].key.tenant_id)
        await store.save_progress(tx, evaluated)
        await firing_store.add(tx, firings, now)
        if firings:
            tx.on_commit(partial(self._wake, now))
        return len(evaluated)

    async def _evaluate(
        self, tx: Transaction, transitions: Sequence[Transition], now: int
    ) -> tuple[list[Transition], list[Firing]]:
        """Match transitions with their next signals until the time is up.

        Return the transitions whose progress has changed, with their progress, and the firings.
        """
        most_signals = _MAX_FIRINGS // len(transitions)
        transaction_time = TransactionTime(self._monotonic)
        evaluated: list[Transition] = []
        firings: list[Firing] = []
        for transition in transitions:
            candidates = await store.find_waiting(tx, [(transition.key, transition.evaluated_to)], most_signals)
            matched = 0
            while matched < len(candidates) and await transaction_time.is_left():
                firings += await _match(tx, transition, candidates[matched])
                matched += 1
            if matched == len(candidates) < most_signals:  # no signal is left
                evaluated.append(transition._replace(evaluate_at=None))
                continue
            if matched:  # it goes to the end of the queue
                last = candidates[matched - 1].key.signal_id
                evaluated.append(transition._replace(evaluate_at=now, evaluated_to=last))
            if matched < len(candidates):  # the time is up
                break
        return evaluated, firings


async def _match(tx: Transaction, transition: Transition, waiting: Waiting) -> Sequence[Firing]:
    """Return the firing of a signal on a transition, if any. A long trigger is read here, one at a time."""
    signal = waiting.signal or (await store.find(tx, [waiting.key])).get(waiting.key)
    return evaluate(transition, [] if signal is None else [signal])
