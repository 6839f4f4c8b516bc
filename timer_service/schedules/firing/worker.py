"""The worker that fires due slots.

One pass is one transaction: it selects due schedules, decides which slots fire, writes the cursors and adds the events
to the outbox. If the process dies before the commit, the slots are still due, with the same event ids.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from timer_service.core.due.blame import Blame, blame
from timer_service.core.due.due_rows import DueRows
from timer_service.core.due.loop import Pass
from timer_service.core.intake.backlog import RECHECK_MS
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.core.service.workflow_start import StartWorkflows
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import DatabaseBlockedError
from timer_service.schedules import store
from timer_service.schedules.firing.left_to_others import LeftToOthers
from timer_service.schedules.firing.locked_parts import LockedParts
from timer_service.schedules.firing.pass_order import PassOrder
from timer_service.schedules.firing.transaction import MOST_SLOTS, Fired, fire
from timer_service.schedules.gate import FiringGate
from timer_service.schedules.schedule import Key
from timer_service.schedules.store import SCHEDULES

log = logging.getLogger(__name__)

LOOP = "schedules"
"""The loop of this worker."""
_LEAST_ROWS = 50
_LOCKED_ROWS_PAUSE_MS = 5
"""How long to wait before the next pass if another instance has locked all due schedules."""
_LEFT_ROWS_PAUSE_MS = 50
"""The same if they are left to other instances. Schedules that become due meanwhile wait for so long."""
_SHORTEST_WAIT_MS = 100
_LONGEST_WAIT_MS = 10_000
"""The bounds of the time until a schedule is tried again whose workflow another transaction has locked."""
_LONGEST_LOCKED_SECONDS = 1
"""If a pass has waited for locks for longer, it ends. If it has found no locked schedule until then, it fails.

The whole database may be slow then.
"""
_MOST_PARTS = 64
"""If so many parts of a failed pass fail too, and none succeeds, the fault is not in the schedules."""

_Select = Callable[[Transaction], Awaitable[list[Row]]]


class _Failed(NamedTuple):
    """A transaction that failed, and the schedules that it had selected."""

    error: Exception
    selected: Sequence[Key]
    starting: frozenset[Key]
    """Those of them that start workflows."""

    @property
    def met_lock(self) -> bool:
        """Whether a workflow may be locked. A schedule is not: another statement that waits means a slow database."""
        return bool(self.starting) and blame(self.error) is Blame.BLOCKED

    @property
    def met_broken(self) -> bool:
        """Whether a schedule may be at fault."""
        return blame(self.error) is Blame.COMMAND


class FiringWorker:
    """A worker that fires the due slots of many schedules in each tick."""

    def __init__(self, parts: Parts, start: StartWorkflows) -> None:
        self._database = parts.database
        self._metrics = parts.metrics
        self._start = partial(start, quotas=parts.quotas)
        self._offer = parts.offer
        self._wake_loop = parts.wake
        self._wake = partial(parts.wake, "outbox")
        self._rows = DueRows(SCHEDULES, parts.allowances.over)
        self._gate = FiringGate(parts.broker, parts.publishing, parts.database, parts.allowances.over)
        self._order = PassOrder()
        self._to_others = LeftToOthers(exclusive=parts.database.exclusive)
        self._hint = partial(parts.broker.hint, LOOP)
        self._limit = MOST_SLOTS
        """How many schedules to select: not many more than one pass can handle."""

    async def tick(self, now: int) -> Pass:
        """Fire the slots that are due at `now`. The pass counts the schedules.

        While the broker is away or has no room, nothing fires, so that the outbox does not fill up. After that, each
        schedule follows its policy.
        """
        if not await self._gate.is_open(now):
            return Pass(0, now + RECHECK_MS)
        fired = await self._fire(lambda tx: self._rows.select(tx, now, self._limit, self._order.rests), now)
        if isinstance(fired, _Failed):
            return Pass(await self._fire_after(fired, now), await self._next_at(now))
        self._limit = min(2 * self._limit, MOST_SLOTS) if fired.is_whole else max(2 * fired.handled, _LEAST_ROWS)
        return Pass(fired.handled, await self._next_at(now, _pause_ms(fired)))

    async def _next_at(self, now: int, pause_ms: int = 0) -> int | None:
        """Return when the next schedule is due. `pause_ms`: how long to wait if there are due ones."""
        at = await self._rows.next_available(self._database.reader)
        return now + pause_ms if at is not None and at <= now else at

    async def _fire(self, select: _Select, now: int) -> Fired | _Failed:
        """Select and fire schedules in one transaction."""
        rows: list[Row] = []

        async def fire_selected(tx: Transaction) -> Fired:
            nonlocal rows
            rows = []
            rows = await select(tx)
            if not rows:
                return Fired()
            return await fire(tx, rows, self._order, self._to_others, start=self._start, now=now)

        try:
            fired = await in_transaction(self._database, fire_selected)
        except Exception as error:  # noqa: BLE001 - `blame` knows every error
            starting = frozenset(store.key_of(row) for row in rows if row["start"] is not None)
            return _Failed(error, [store.key_of(row) for row in rows], starting)
        self._record(fired, now)
        if fired.newly_left:
            self._to_others.record(fired.newly_left, now)
            await self._hint(now)
        return fired

    async def _fire_keys(self, keys: Sequence[Key], now: int) -> Fired | _Failed:
        return await self._fire(partial(self._rows.select_keys, keys=keys, now=now), now)

    async def _fire_after(self, failed: _Failed, now: int) -> int:
        """Fire the schedules of a failed pass in smaller transactions, or raise its error if that cannot help.

        Return the number of handled schedules.
        """
        if failed.met_lock:
            return await self._fire_around_locks(failed, now)
        if not failed.met_broken or not failed.selected:
            raise failed.error
        log.warning("pass failed; firing its schedules in parts", exc_info=failed.error)
        return await self._fire_in_parts(failed.selected, now)

    async def _fire_around_locks(self, failed: _Failed, now: int) -> int:
        """Fire the schedules of a pass that met a lock of another transaction. The locked ones wait.

        Those that start no workflow come first. Return the number of handled schedules. If many are locked, the rest
        stays due, and the next pass goes on with it.
        """
        starting = [key for key in failed.selected if key in failed.starting]
        others = [key for key in failed.selected if key not in failed.starting]
        handled = await self._fire_part(others, now) if others else 0
        parts = LockedParts(starting)
        while (part := parts.take()) is not None:
            if parts.seconds > _LONGEST_LOCKED_SECONDS:
                if not parts.locked:
                    raise failed.error
                break
            try:
                handled += await self._fire_part(part, now)
            except DatabaseBlockedError:
                parts.divide(part)
        if parts.locked:
            await in_transaction(self._database, partial(self._defer, keys=parts.locked, now=now))
        return handled + len(parts.locked)

    async def _fire_part(self, keys: Sequence[Key], now: int) -> int:
        """Fire schedules of a pass that met a lock. If one is broken, they stay due, and 0 is returned.

        The next pass divides them, without the locked schedules.
        """
        fired = await self._fire_keys(keys, now)
        if isinstance(fired, Fired):
            return fired.handled
        if not fired.met_broken:
            raise fired.error
        log.warning("part of a pass failed", exc_info=fired.error)
        return 0

    async def _defer(self, tx: Transaction, *, keys: Sequence[Key], now: int) -> None:
        """Let schedules wait whose workflows are locked: as long again as they are late, within bounds."""
        rows = await self._rows.select_keys(tx, keys, now)
        waits = {store.key_of(row): min(max(now - row["slot_at"], _SHORTEST_WAIT_MS), _LONGEST_WAIT_MS) for row in rows}
        await store.defer(tx, {key: now + wait for key, wait in waits.items()})
        log.warning("the workflows of schedules are locked; trying them again later", extra={"count": len(rows)})

    async def _fire_in_parts(self, keys: Sequence[Key], now: int) -> int:
        """Fire schedules of a failed transaction, in parts that are halved until each broken schedule is alone.

        A broken schedule gets the error and waits a minute. If no part succeeds, the environment is at fault: raise the
        error, and change no schedule. A part that meets a lock stays due. Return the number of handled schedules.
        """
        parts, handled, successes = [keys], 0, 0
        broken: dict[Key, str] = {}
        while parts:
            failed: list[Sequence[Key]] = []
            error: Exception | None = None
            for part in parts:
                fired = await self._fire_keys(part, now)
                if isinstance(fired, Fired):
                    handled += fired.handled
                    successes += 1
                elif fired.met_broken:
                    error = fired.error
                    failed.append(part)
                elif not fired.met_lock:
                    raise fired.error
            is_last = len(parts) >= min(_MOST_PARTS, len(keys))
            if error is not None and not successes and is_last and len(keys) > 1:
                raise error
            broken |= {part[0]: error_text(error) for part in failed if len(part) == 1 and error is not None}
            parts = [half for part in failed if len(part) > 1 for half in _halves(part)]
        for key, reason in broken.items():
            _log_failure(key, reason)
        if broken:
            await in_transaction(self._database, partial(self._postpone, errors=broken, now=now))
        return handled + len(broken)

    async def _postpone(self, tx: Transaction, *, errors: Mapping[Key, str], now: int) -> None:
        rows = await self._rows.select_keys(tx, list(errors), now)  # without those that another instance has locked
        await store.postpone(tx, {key: errors[key] for key in map(store.key_of, rows)}, now)

    def _record(self, fired: Fired, now: int) -> None:
        """Count what a transaction has committed, and wake the relay."""
        slots = [(each.before, slot) for each in fired.firings for slot in each.decision.fired]
        for schedule, slot in slots:
            self._metrics.fired_late(SCHEDULES.name, (now - schedule.due_of(slot)) / 1000)
        self._record_starts(fired, now)
        if skipped := sum(each.decision.skipped for each in fired.firings):
            self._metrics.slots_missed(skipped)
        for name, count in (
            ("fired", len(slots)),
            ("failed", len(fired.failed) + len(fired.unreadable)),
            ("left", len(fired.newly_left)),
        ):
            if count:
                self._metrics.settled(SCHEDULES.name, name, count)
        for schedule in fired.failed:
            _log_failure(schedule.key, schedule.last_error)
        for key, reason in fired.unreadable.items():
            _log_failure(key, reason)
        for key, _, reason in fired.newly_left:
            log.warning("this instance cannot compute a schedule; leaving it to others", extra=_about(key, reason))
        if fired.firings:
            self._wake(now)

    def _record_starts(self, fired: Fired, now: int) -> None:
        """Count the slots that started no workflow, and offer the workflows that were started to workers."""
        for reason, count in fired.not_started.items():
            self._metrics.slots_not_started(reason, count)
        for key in fired.taken:
            about = {"tenant": key.tenant_id, "schedule_id": key.schedule_id}
            log.warning("a slot started no workflow: there is another one with its id", extra=about)
        for started in fired.started:
            if started.lane is not None:
                self._offer(started.lane, now)
            if started.loop is not None:
                self._wake_loop(started.loop, now)


def _pause_ms(fired: Fired) -> int:
    """Return how long to wait before the next pass if schedules are still due."""
    if fired.handled or fired.newly_left:
        return 0
    return _LEFT_ROWS_PAUSE_MS if fired.left else _LOCKED_ROWS_PAUSE_MS


def _halves(keys: Sequence[Key]) -> tuple[Sequence[Key], Sequence[Key]]:
    half = len(keys) // 2
    return keys[:half], keys[half:]


def _log_failure(key: Key, reason: str | None) -> None:
    log.error(
        "the next slot of a schedule cannot be computed or fired; trying it again in a minute",
        extra=_about(key, reason),
    )


def _about(key: Key, reason: str | None) -> dict[str, str | None]:
    return {"tenant": key.tenant_id, "schedule_id": key.schedule_id, "reason": reason}
