"""One transaction of the worker of backfills: it fires a portion of each locked backfill, and ends those that are done.

A backfill with `start` starts workflows in it. It raises `DatabaseBlockedError` if one of them is locked.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from timer_service.core.events import outbox
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.service.workflow_start import Started, WorkflowStart
from timer_service.core.values.budget import MIB
from timer_service.core.values.message import Event
from timer_service.schedules.backfill import store
from timer_service.schedules.backfills import Backfill, BackfillKey
from timer_service.schedules.events import Skipped, backfill_events, backfilled_event, skipped_event
from timer_service.schedules.messages import BackfillEnd, FiringCause, SkipReason
from timer_service.schedules.schedule import Key
from timer_service.schedules.starts import Start, backfill_starts, reason_of

MOST_SLOTS = 250
MOST_DATA = 2 * MIB
MOST_COMPUTING_SECONDS = 0.02
"""The bounds of one transaction, shared equally by its backfills. Each may fire one slot whatever it costs."""
_PIECE_SECONDS = 0.005
"""How long slots are computed before other tasks get a turn."""


class Portion(NamedTuple):
    """The next slots of a backfill, as many as its share allows."""

    before: Backfill
    slots: Sequence[int]
    next_slot: int | None
    """The first slot that is left; None if none is."""
    is_deleted: bool = False
    """Whether the schedule was deleted. No slot fires then."""

    def end(self, after: Backfill) -> BackfillEnd | None:
        """Return why the backfill has ended after the portion, or None."""
        return BackfillEnd.DELETED if self.is_deleted else after.end(self.next_slot)


@dataclass(slots=True)
class Backfilled:
    """What one transaction has done."""

    handled: list[BackfillKey] = field(default_factory=list)
    """The backfills that had a portion."""
    failed: dict[BackfillKey, Exception] = field(default_factory=dict)
    """The backfills that this instance cannot read or compute, and the errors. They are not changed."""
    fired: int = 0
    started: list[Started] = field(default_factory=list)
    """The workflows that were started."""
    not_started: Counter[SkipReason] = field(default_factory=Counter)
    """How many slots started no workflow."""
    with_events: set[str] = field(default_factory=set)
    """The tenants of new events in the outbox."""


class _Share(NamedTuple):
    """What one backfill of a transaction may use."""

    slots: int
    data: int
    seconds: float

    def most_slots(self, backfill: Backfill) -> int:
        """Return how many slots of a backfill may fire. One always may."""
        return max(min(self.slots, backfill.left, self.data // max(backfill.data_size, 1)), 1)


async def fire_portions(tx: Transaction, rows: Sequence[Row], *, start: Start, now: int) -> Backfilled:
    """Fire the next slots of locked backfills, with equal shares of what a transaction may do."""
    done = Backfilled()
    portions = await _find_portions(tx, rows, done, now)
    data = await store.load_data(tx, [each.before.key for each in portions if each.slots and each.before.data_size])
    events: list[Event] = []
    starts: list[tuple[Portion, WorkflowStart]] = []
    for portion in portions:
        text = data.get(portion.before.key)
        try:
            if portion.before.start is None:
                events += backfill_events(portion.before, portion.slots, text, now)
            else:
                starts += [(portion, each) for each in backfill_starts(portion.before, portion.slots, text)]
        except Exception as error:  # noqa: BLE001 - damaged data
            done.failed[portion.before.key] = error
    skipped, more = await _start_all(tx, starts, done, start, now)
    events += more
    going_on: list[Backfill] = []
    ended: list[BackfillKey] = []
    for portion in portions:
        if portion.before.key in done.failed:
            continue
        done.handled.append(portion.before.key)
        missing = skipped[portion.before.key]
        done.fired += len(portion.slots) - missing
        after = portion.before.after(portion.slots, missing)
        if (end := portion.end(after)) is None:
            going_on.append(after)
        else:
            ended.append(after.key)
            events.append(backfilled_event(after, end, now))
    await store.save(tx, going_on)
    await store.delete(tx, ended)
    await outbox.add(tx, events, now)
    done.with_events = {event.tenant for event in events}
    return done


async def _find_portions(tx: Transaction, rows: Sequence[Row], done: Backfilled, now: int) -> list[Portion]:
    """Return the portions of the backfills in `rows`, and record those that cannot be read or computed."""
    share = _Share(MOST_SLOTS // len(rows), MOST_DATA // len(rows), MOST_COMPUTING_SECONDS / len(rows))
    created = await store.find_created(tx, [Key(row["tenant_id"], row["schedule_id"]) for row in rows])
    portions: list[Portion] = []
    for row in rows:
        key = store.key_of(row)
        try:
            backfill = store.read_backfill(row)
            created_by = created.get(backfill.schedule)
            if created_by is None or created_by > key.position:  # it was deleted, and may be put again
                portions.append(Portion(backfill, (), None, is_deleted=True))
            else:
                portions.append(await _next_portion(backfill, share, now))
        except Exception as error:  # noqa: BLE001 - a damaged row, or whatever the parser or the zone data raise
            done.failed[key] = error
    return portions


async def _next_portion(backfill: Backfill, share: _Share, now: int) -> Portion:
    """Return the next slots of a backfill. Other tasks run after each piece of computing."""
    most = share.most_slots(backfill)
    slots: list[int] = []
    seconds = piece = 0.0
    left = backfill.slots(now)
    while True:
        began = time.perf_counter()
        slot = next(left, None)
        took = time.perf_counter() - began
        seconds, piece = seconds + took, piece + took
        if slot is None or len(slots) == most or (slots and seconds > share.seconds):
            return Portion(backfill, tuple(slots), slot)
        slots.append(slot)
        if piece > _PIECE_SECONDS:
            piece = 0.0
            await asyncio.sleep(0)


async def _start_all(
    tx: Transaction, starts: Sequence[tuple[Portion, WorkflowStart]], done: Backfilled, start: Start, now: int
) -> tuple[Counter[BackfillKey], list[Event]]:
    """Start the workflows of slots. Return how many slots of each backfill started none, and their events."""
    skipped = Counter[BackfillKey]()
    events: list[Event] = []
    if not starts:
        return skipped, events
    await tx.wait_briefly()
    results = await start(tx, [wanted for _, wanted in starts], now)
    for (portion, wanted), started in zip(starts, results, strict=True):
        if started.lane is not None:
            done.started.append(started)
        if (reason := reason_of(started)) is not None:
            done.not_started[reason] += 1
            skipped[portion.before.key] += 1
            about = Skipped(wanted.created_at, FiringCause.BACKFILL, reason)
            events.append(skipped_event(portion.before.schedule, about, wanted, now))
    return skipped, events
