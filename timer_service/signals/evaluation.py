"""The worker that matches transitions with waiting signals if the command of the transition did not match them.

A command leaves transitions to this worker if the slice is disabled, if too many signals wait for the work item, or if
one of them has a long trigger.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from timer_service.core.due.isolate import isolate_in_transactions
from timer_service.core.due.loop import Pass
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.service.slice import Parts
from timer_service.signals import firing_store, store
from timer_service.signals.firings import Firing, evaluate
from timer_service.signals.signal import ItemKey, Transition, Waiting

log = logging.getLogger(__name__)

_MAX_TRANSITIONS = 100
_MAX_FIRINGS = 1000
"""The limits of one pass. They also limit how long commands and claims wait for the pass."""


class Evaluation:
    """A worker that evaluates some transitions in each tick, for 50 ms at most.

    After a restart it continues where the last tick ended.
    """

    def __init__(self, parts: Parts, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = parts.database
        self._wake = partial(parts.wake, "firings")
        self._monotonic = monotonic
        self._seen_tenant = ""

    async def tick(self, now: int) -> Pass:
        """Match unevaluated transitions with waiting signals. Wake the firings loop if there are new firings.

        Transitions of a tenant whose transaction fails stay where they are. Those of other tenants are matched.
        """
        tenants = await self._next_tenants()
        counts: list[int] = []
        share = _MAX_TRANSITIONS // max(len(tenants), 1)
        evaluate = partial(self._evaluate_tenants, share=share, now=now)
        isolated = await isolate_in_transactions(self._database, tenants, evaluate, counts.append)
        for tenant, error in isolated.failed:
            log.error("transitions cannot be matched with signals", exc_info=error, extra={"tenant": tenant})
        evaluated = sum(counts)
        return Pass(evaluated, now if evaluated else None)

    async def _next_tenants(self) -> list[str]:
        """Return the next tenants with unevaluated transitions.

        If there are more of them than transitions in one pass, the next pass continues with the next tenants.
        """
        reader = self._database.reader
        tenants = await store.find_waiting_tenants(reader, self._seen_tenant, _MAX_TRANSITIONS)
        if self._seen_tenant and not tenants:
            tenants = await store.find_waiting_tenants(reader, "", _MAX_TRANSITIONS)
        self._seen_tenant = tenants[-1] if len(tenants) == _MAX_TRANSITIONS else ""
        return tenants

    async def _evaluate_tenants(self, tx: Transaction, tenants: Sequence[str], share: int, now: int) -> int:
        """Evaluate the next transitions of tenants, `share` of each. Return how many were evaluated."""
        found = await store.lock_next_transitions(tx, tenants, share)
        transitions = sorted(found, key=lambda transition: transition.key.tenant_id)
        if not transitions:
            return 0
        evaluated, firings = await self._evaluate(tx, transitions, now)
        if len(evaluated) < len(transitions):  # the next tenants come first in the next pass
            self._seen_tenant = evaluated[-1].key.tenant_id
        await store.save_progress(tx, evaluated)
        await firing_store.add(tx, firings, now)
        if firings:
            tx.on_commit(partial(self._wake, now))
        return len(evaluated)

    async def _evaluate(
        self, tx: Transaction, transitions: Sequence[Transition], now: int
    ) -> tuple[list[Transition], list[Firing]]:
        """Match transitions with their next signals until the time is up. Return them with their progress."""
        share = _MAX_FIRINGS // len(transitions)
        cursors = {(transition.key, transition.evaluated_to) for transition in transitions}
        waiting = _by_item(await store.find_waiting(tx, cursors, share))
        transaction_time = TransactionTime(self._monotonic)
        evaluated: list[Transition] = []
        firings: list[Firing] = []
        for transition in transitions:
            candidates = _after(waiting.get(transition.key, ()), transition.evaluated_to)[:share]
            matched = 0
            while matched < len(candidates) and await transaction_time.is_left():
                firings += await _match(tx, transition, candidates[matched])
                matched += 1
            is_cut = matched < len(candidates)
            if not is_cut and matched < share:
                evaluated.append(transition._replace(evaluate_at=None))
            elif matched:
                evaluated.append(_requeue(transition, candidates[matched - 1], now))
            if is_cut:
                break
        return evaluated, firings


async def _match(tx: Transaction, transition: Transition, waiting: Waiting) -> Sequence[Firing]:
    """Return the firing of a signal on a transition, if any. A signal that fails is skipped: the queue must move on."""
    signal = waiting.signal or (await store.find(tx, [waiting.key])).get(waiting.key)
    return evaluate(transition, [] if signal is None else [signal])


def _by_item(waiting: Iterable[Waiting]) -> dict[ItemKey, list[Waiting]]:
    """Return signals in the order of their ids, each once, by work item."""
    by_item = defaultdict[ItemKey, list[Waiting]](list)
    for each in sorted({each.key: each for each in waiting}.values(), key=lambda each: each.key):
        by_item[each.item].append(each)
    return by_item


def _after(waiting: Sequence[Waiting], signal_id: str) -> list[Waiting]:
    return [each for each in waiting if each.key.signal_id > signal_id]


def _requeue(transition: Transition, last: Waiting, now: int) -> Transition:
    """Return the transition at the end of the queue, evaluated up to a signal."""
    return transition._replace(evaluate_at=now, evaluated_to=last.key.signal_id)
