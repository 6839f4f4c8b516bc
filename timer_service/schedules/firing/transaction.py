"""One transaction of the firing worker: it decides on locked schedules, writes their cursors and adds their events.

Schedules with `start` start workflows in it. It raises `DatabaseBlockedError` if one of them is locked.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from timer_service.core.due.isolate import Failed
from timer_service.core.events import outbox
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.values.error_text import error_text
from timer_service.schedules import store
from timer_service.schedules.decision import Decision, decide_in_steps, settle
from timer_service.schedules.events import ended_event
from timer_service.schedules.firings import Firing, Start, fire
from timer_service.schedules.messages import FiringCause, Status
from timer_service.schedules.room import Room
from timer_service.schedules.schedule import Key, Schedule, has_old_rules
from timer_service.schedules.slot_worker import Done

log = logging.getLogger(__name__)

_LEAVE_MS = 10_000
"""For how long a due schedule is left to others. Each of them gets a hint, and polls every 5 s by default."""
_REMEMBER_MS = 60_000
"""For how long a schedule is remembered after it was met. A pass that comes later leaves it to others again."""


class LeftToOthers:
    """The due schedules that this instance cannot compute, and leaves to the other instances for ten seconds.

    An instance may lack a time zone, or a newer version may have written a schedule. Another instance can then fire it
    in time, so it is not changed. See docs/decisions/0059.
    """

    def __init__(self, *, exclusive: bool) -> None:
        """`exclusive`: there are no other instances."""
        self._leave_ms = 0 if exclusive else _LEAVE_MS
        self._met: dict[tuple[Key, int], int] = {}
        """When this instance met a schedule that has been due since an instant."""

    def own(self, rows: Sequence[Row], now: int) -> list[Row]:
        """Return the due schedules that are not left to others."""
        self._met = {due: at for due, at in self._met.items() if now - at < _REMEMBER_MS}
        left = {due for due, at in self._met.items() if now - at < self._leave_ms}
        return [row for row in rows if _due(row) not in left] if left else list(rows)

    def leave(self, row: Row, reason: str, now: int) -> bool:
        """Leave a schedule to others for ten seconds. Return False if they have had these."""
        if now - self._met.setdefault(_due(row), now) >= self._leave_ms:
            return False
        about = {"tenant": row["tenant_id"], "schedule_id": row["schedule_id"], "reason": reason}
        log.warning("leaving a schedule to other instances", extra=about)
        return True


def _due(row: Row) -> tuple[Key, int]:
    """Return a schedule and since when it is due: it is left to others again at its next slot."""
    return store.key_of(row), row["available_at"]


@dataclass(slots=True)
class FiredSchedules(Done[Key]):
    """What one transaction has done."""

    decided: list[tuple[Schedule, Decision]] = field(default_factory=list)
    """Schedules before the transaction, with the decisions on them."""
    left: int = 0
    """How many schedules it has left to other instances."""
    is_whole: bool = True
    """Whether no bound was reached."""

    @property
    def handled(self) -> int:
        """The number of schedules."""
        return len(self.fired) + len(self.failed) + self.left


async def fire_schedules(
    tx: Transaction, rows: Sequence[Row], now: int, *, to_others: LeftToOthers, start: Start
) -> FiredSchedules:
    """Fire the due slots of locked schedules in order, as many as the bounds allow.

    A schedule that this instance cannot compute is left to others, or has failed. The others are not affected.
    """
    done = FiredSchedules()
    own = to_others.own(rows, now)
    await _decide(own, to_others, done, now)
    with_data = {store.key_of(row) for row in own if row["data_size"]}
    fires = [before.key for before, decision in done.decided if decision.slots]
    data = await store.load_data(tx, [key for key in fires if key in with_data])
    firings = [_firing(before, decision, data.get(before.key)) for before, decision in done.decided]
    if any(each.start is not None for each in firings):  # a command may have locked a workflow
        await tx.wait_briefly()
    fired = await fire(tx, firings, start, now)
    done.fired = dict(zip((each.schedule for each in firings), fired, strict=True))
    after = [
        settle(before, decision, now, each.not_started) if each.not_started else decision.schedule
        for (before, decision), each in zip(done.decided, fired, strict=True)
    ]
    events = [event for each in fired for event in each.events]
    events += [ended_event(each, now) for each in after if each.status is Status.ENDED]
    await store.advance(tx, after)
    await outbox.add(tx, events, now)
    return done


async def _decide(rows: Sequence[Row], to_others: LeftToOthers, done: FiredSchedules, now: int) -> None:
    """Record each schedule in `done`: decided, left to others or failed. Those without room stay due."""
    room = Room({row["tenant_id"] for row in rows})
    for row, most, cost in room.in_order(rows):
        tenant, size = row["tenant_id"], row["data_size"]
        if not most:
            done.is_whole = False
            continue
        slots = 0
        try:
            schedule = store.read_schedule(row)
            if has_old_rules(schedule) and to_others.leave(row, "its slot has other rules of the time zone", now):
                done.left += 1
                room.use(tenant, slots, size, cost)
                continue
            decision = await room.compute(tenant, decide_in_steps(schedule, now, most))
        except Exception as error:  # noqa: BLE001 - a damaged row, or whatever the parser or the zone data raise
            if to_others.leave(row, error_text(error), now):
                done.left += 1
            else:
                done.failed.append(Failed(store.key_of(row), error))
        else:
            slots = len(decision.slots)
            done.decided.append((schedule, decision))
        room.use(tenant, slots, size, cost)


def _firing(schedule: Schedule, decision: Decision, data: str | None) -> Firing:
    assert schedule.definition is not None  # noqa: S101 - only schedules are active
    return Firing(
        schedule=schedule.key,
        slots=decision.slots,
        cause=FiringCause.SLOT,
        position=schedule.defined_by,
        origin=schedule.cause,
        start=schedule.definition.start,
        topic=schedule.definition.topic,
        data=data,
        missed_since=decision.missed_since,
    )
