"""The worker that matches transitions with waiting signals if the command of the transition did not match them.

A command leaves transitions to this worker in four cases:

- The slice is disabled.
- Too many signals wait for the work item, or one of them has a long trigger.
- The trigger of a signal raises an error.
- A late command makes a signal wait for transitions that are stored already.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from timer_service.core.due.loop import Pass
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.service.slice import Parts
from timer_service.signals import firing_store, store
from timer_service.signals.firing_store import key_of
from timer_service.signals.firings import Firing, evaluate
from timer_service.signals.items import ItemKey, Transition
from timer_service.signals.signal import Waiting

_MAX_TRANSITIONS = 100
_MAX_FIRINGS = 1000
"""The limits of one pass. They also limit how long commands and claims wait for the pass."""
_LOCKED_PAUSE_MS = 1000
"""How long to wait for firings that another transaction has locked."""


class _Evaluated(NamedTuple):
    """A transition, the same with its progress, and the firings that were found for it."""

    before: Transition
    after: Transition
    firings: Sequence[Firing]


class _Progress(NamedTuple):
    """What a pass has done."""

    locked: int
    """How many transitions it looked at."""
    evaluated: int
    """How many of them it evaluated."""
    firings: int


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
        """Match unevaluated transitions with waiting signals. Wake the firings loop if there are new firings."""
        done = await in_transaction(self._database, lambda tx: self._evaluate_next(tx, now))
        if done.firings:
            self._wake(now)
        if not done.locked:
            return Pass(0)
        return Pass(done.evaluated, now if done.evaluated else now + _LOCKED_PAUSE_MS)

    async def _evaluate_next(self, tx: Transaction, now: int) -> _Progress:
        """Evaluate the next transitions.

        A transition with a firing that another transaction has locked waits at the end of the queue.
        """
        transitions = await self._lock_next(tx)
        if not transitions:
            return _Progress(0, 0, 0)
        evaluated = await self._evaluate(tx, transitions, now)
        if len(evaluated) < len(transitions):  # the next tenants come first in the next pass
            self._seen_tenant = evaluated[-1].after.key.tenant_id
        locked = await firing_store.find_locked_by_others(tx, (firing for each in evaluated for firing in each.firings))
        free: list[_Evaluated] = []
        blocked: list[Transition] = []
        for each in evaluated:
            if locked.isdisjoint(map(key_of, each.firings)):
                free.append(each)
            else:
                blocked.append(each.before._replace(evaluate_at=now))
        firings = [firing for each in free for firing in each.firings]
        await store.save_progress(tx, [*(each.after for each in free), *blocked])
        await firing_store.add(tx, firings, now)
        return _Progress(len(transitions), len(free), len(firings))

    async def _lock_next(self, tx: Transaction) -> list[Transition]:
        """Lock the next transitions, the same number for each tenant, in the order of the tenants.

        If there are more tenants than transitions in one pass, the next pass continues with the next tenants.
        """
        tenants = await store.find_waiting_tenants(tx, self._seen_tenant, _MAX_TRANSITIONS)
        if self._seen_tenant and not tenants:
            tenants = await store.find_waiting_tenants(tx, "", _MAX_TRANSITIONS)
        self._seen_tenant = tenants[-1] if len(tenants) == _MAX_TRANSITIONS else ""
        if not tenants:
            return []
        transitions = await store.lock_next_transitions(tx, tenants, _MAX_TRANSITIONS // len(tenants))
        return sorted(transitions, key=lambda transition: transition.key.tenant_id)

    async def _evaluate(self, tx: Transaction, transitions: Sequence[Transition], now: int) -> list[_Evaluated]:
        """Match transitions with their next signals until the time is up."""
        share = _MAX_FIRINGS // len(transitions)
        cursors = {(transition.key, transition.evaluated_to) for transition in transitions}
        waiting = _by_item(await store.find_waiting(tx, cursors, share))
        transaction_time = TransactionTime(self._monotonic)
        evaluated: list[_Evaluated] = []
        for transition in transitions:
            candidates = _after(waiting.get(transition.key, ()), transition.evaluated_to)[:share]
            firings: list[Firing] = []
            matched = 0
            while matched < len(candidates) and await transaction_time.is_left():
                firings += await _match(tx, transition, candidates[matched])
                matched += 1
            is_cut = matched < len(candidates)
            if not is_cut and matched < share:
                evaluated.append(_Evaluated(transition, transition._replace(evaluate_at=None), firings))
            elif matched:
                evaluated.append(_Evaluated(transition, _requeue(transition, candidates[matched - 1], now), firings))
            if is_cut:
                break
        return evaluated


async def _match(tx: Transaction, transition: Transition, waiting: Waiting) -> Sequence[Firing]:
    """Return the firing of a signal on a transition, if any. A signal that fails is skipped: the queue must move on."""
    signal = waiting.signal or (await store.find(tx, [waiting.key])).get(waiting.key)
    firings, _ = evaluate(transition, [] if signal is None else [signal])
    return firings


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
