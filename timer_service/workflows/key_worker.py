"""The worker of concurrency keys: it starts queued workflows whose turn it is, and cancels those that are replaced.

One pass finds the workflows because of which a key may be free, and handles their keys in one transaction. It waits for
no lock: a key that another transaction decides about, or one of whose workflows is locked, is handled a moment later.
If the process dies before the commit, the keys are still due. Each tenant has an equal share of a pass.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from timer_service.core.due.due_rows import DueRows
from timer_service.core.due.isolate import Failed, Retries, isolate_in_transactions
from timer_service.core.due.loop import Pass
from timer_service.core.events import outbox
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.core.service.workflow_start import WhenBusy
from timer_service.workflows import store
from timer_service.workflows.events import events_of
from timer_service.workflows.keys import MOST_TURNS, REPLACED, KeyName, Queued, Turns, name_of, next_turns
from timer_service.workflows.messages import WorkflowStatus
from timer_service.workflows.workflow import Key, Workflow

MOST_WORKFLOWS = 500
"""How many workflows one pass looks at."""
_LOCKED_PAUSE_MS = 50
"""How long to wait if other transactions have locked all keys that are due."""


class DueKey(NamedTuple):
    """A concurrency key to look at, and the workflows because of which."""

    name: KeyName
    because_of: Sequence[Key]


class KeyWorker:
    """A worker that handles many concurrency keys in each tick."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._database = parts.database
        self._rows = DueRows(store.KEYS)
        self._retries = Retries[Key]("workflows")

    async def tick(self, now: int) -> Pass:
        """Start and cancel workflows whose keys are due at `now`. The pass counts the keys."""
        reader = self._database.reader
        next_at = await self._rows.next_available(reader)
        if next_at is None or next_at > now:
            return Pass(0, next_at)
        tenants, _ = await self._rows.turns.next_due(reader, now, MOST_WORKFLOWS)
        found = await self._rows.find(reader, tenants, now, MOST_WORKFLOWS // max(len(tenants), 1))
        handled = await self._handle_each(_group(map(store.read_workflow, found)), now)
        return Pass(handled, await self._rows.next_available(reader) if handled else now + _LOCKED_PAUSE_MS)

    async def _handle_each(self, due: Sequence[DueKey], now: int) -> int:
        """Handle keys together. Postpone those whose handling fails, also alone. Return how many of both there were."""
        handled: list[int] = []
        isolated = await isolate_in_transactions(self._database, due, partial(self._handle, now=now), handled.append)
        if failed := [Failed(row, each.error) for each in isolated.failed for row in each.item.because_of]:
            await in_transaction(self._database, partial(self._postpone, failed=failed, now=now))
        return sum(handled) + len(isolated.failed)

    async def _postpone(self, tx: Transaction, *, failed: Sequence[Failed[Key]], now: int) -> None:
        """Look at keys later that failed alone, unless another instance has handled them."""
        still_due = set(map(store.key_of, await self._rows.select_keys(tx, [each.item for each in failed], now)))
        await self._rows.postpone(tx, self._retries.of([each for each in failed if each.item in still_due], now))

    async def _handle(self, tx: Transaction, due: Sequence[DueKey], now: int) -> int:
        """Handle keys. Return how many: the others are locked, or have just changed."""
        locked = set(await store.lock_keys(tx, [each.name for each in due], wait=False))
        wanted = [key for each in due if each.name in locked for key in each.because_of]
        before = store.by_key(await self._rows.select_keys(tx, wanted, now))
        ready = [each for each in due if each.name in locked and before.keys() >= set(each.because_of)]
        turns = await _decide(tx, ready, before)
        changing = {key for each in turns.values() for key in (*each.starts, *each.replaced)}
        before |= await store.lock_some(tx, changing - before.keys())
        after: dict[Key, Workflow] = {}
        looked_at: set[Key] = set()
        handled = 0
        for each in ready:
            changed = _apply(turns[each.name], before, now)
            if changed is None:
                continue
            handled += 1
            after |= changed
            if not turns[each.name].has_more:
                looked_at.update(each.because_of)
        for key, workflow in after.items():
            after[key] = workflow._replace(key_due_at=None if key in looked_at else before[key].key_due_at)
        await store.save(tx, {key: before[key] for key in after}, after)
        await store.looked_at_keys(tx, looked_at - after.keys())
        await outbox.add(tx, events_of(before, after, now), now)
        if after:
            tx.on_commit(partial(self._wake, list(after.values()), now))
        return handled

    def _wake(self, changed: Sequence[Workflow], now: int) -> None:
        """Offer the workflows that were started to workers, and wake the relay for the events of the others."""
        for each in changed:
            if each.available_at is not None:
                self._parts.offer(each.lane, each.available_at)
        if not all(each.is_open for each in changed):
            self._parts.wake("outbox", now)


async def _decide(tx: Transaction, due: Sequence[DueKey], before: Mapping[Key, Workflow]) -> dict[KeyName, Turns]:
    """Return what is to be done about locked keys."""
    queued = await store.find_queued(tx, [each.name for each in due], MOST_TURNS)
    uses = await store.find_uses(tx, queued)
    replacing = {each.name: _replacing(before[key] for key in each.because_of) for each in due}
    oldest = await store.find_oldest(tx, [name for name, found in replacing.items() if found], MOST_TURNS)
    return {
        name: next_turns(uses[name].started, oldest.get(name, ()), queued[name], each) if name in queued else Turns()
        for name, each in replacing.items()
    }


def _replacing(workflows: Iterable[Workflow]) -> list[Queued]:
    """Return those among workflows that are queued to replace others, in order."""
    queued = sorted((each.key_place, each.key, each.definition) for each in workflows if each.key_place is not None)
    found = [Queued(key, each.concurrency) for _, key, each in queued if each is not None and each.concurrency]
    return [each for each in found if each.concurrency.when_busy is WhenBusy.REPLACE]


def _apply(turns: Turns, before: Mapping[Key, Workflow], now: int) -> dict[Key, Workflow] | None:
    """Return the workflows of a key after its turns; None if one of them is locked, or is no longer as it was read."""
    changed: list[Workflow] = []
    for key in turns.starts:
        if (each := before.get(key)) is None or each.status is not WorkflowStatus.QUEUED:
            return None
        changed.append(each.take_key(now))
    for key in turns.replaced:
        if (each := before.get(key)) is None or not each.is_open:
            return None
        changed.append(each.end(WorkflowStatus.CANCELLED, now)._replace(reason=REPLACED))
    return {each.key: each for each in changed}


def _group(workflows: Iterable[Workflow]) -> list[DueKey]:
    """Return the keys of workflows, in the order in which they are due."""
    by_name: dict[KeyName, list[Key]] = {}
    for each in workflows:
        if (name := name_of(each)) is not None:
            by_name.setdefault(name, []).append(each.key)
    return [DueKey(name, keys) for name, keys in by_name.items()]
