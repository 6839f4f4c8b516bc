"""One transaction of the worker of backfills: it fires a portion of each locked backfill, and ends those that are done.

A backfill with `start` starts workflows in it. It raises `DatabaseBlockedError` if one of them is locked.
"""

from collections.abc import Sequence
from typing import NamedTuple

from timer_service.core.due.isolate import Failed
from timer_service.core.events import outbox
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.requests.computing import Steps
from timer_service.schedules.backfill import store
from timer_service.schedules.backfills import Backfill, BackfillKey
from timer_service.schedules.events import backfilled_event
from timer_service.schedules.firings import Firing, Start, fire
from timer_service.schedules.messages import BackfillEnd, FiringCause
from timer_service.schedules.room import COSTLY, Room
from timer_service.schedules.schedule import Key
from timer_service.schedules.slot_worker import Done


class Portion(NamedTuple):
    """The next slots of a backfill, as many as its share of the transaction allows."""

    before: Backfill
    slots: Sequence[int] = ()
    next_slot: int | None = None
    """The first slot that is left and due; None if none is."""
    is_deleted: bool = False
    """Whether the schedule was deleted. No slot fires then."""

    def end(self, after: Backfill) -> BackfillEnd | None:
        """Return why the backfill, as it is after the portion, has ended; None if it goes on."""
        if self.is_deleted:
            return BackfillEnd.DELETED
        if self.next_slot is None:
            return BackfillEnd.DONE
        return None if after.left else BackfillEnd.LIMIT


async def fire_portions(tx: Transaction, rows: Sequence[Row], now: int, *, start: Start) -> Done[BackfillKey]:
    """Fire the next slots of locked backfills of different tenants."""
    done = Done[BackfillKey]()
    portions = await _find_portions(tx, rows, done, now)
    data = await store.load_data(tx, [each.before.key for each in portions if each.slots and each.before.data_size])
    firings = [_firing(each, data.get(each.before.key)) for each in portions]
    if any(each.start is not None for each in firings):  # a command may have locked a workflow
        await tx.wait_briefly()
    all_fired = await fire(tx, firings, start, now)
    events = [event for each in all_fired for event in each.events]
    going_on: list[Backfill] = []
    ended: list[BackfillKey] = []
    for portion, fired in zip(portions, all_fired, strict=True):
        done.fired[portion.before.key] = fired
        after = portion.before.after(portion.slots, len(fired.not_started))
        if (end := portion.end(after)) is None:
            going_on.append(after)
        else:
            ended.append(after.key)
            events.append(backfilled_event(after, end, now))
    await store.save(tx, going_on)
    await store.delete(tx, ended)
    await outbox.add(tx, events, now)
    return done


async def _find_portions(tx: Transaction, rows: Sequence[Row], done: Done[BackfillKey], now: int) -> list[Portion]:
    """Return the portions of the backfills in `rows`. Record in `done` those that cannot be read or computed."""
    portions: list[Portion] = []
    room = Room({row["tenant_id"] for row in rows})
    created = await store.find_created(tx, [Key(row["tenant_id"], row["schedule_id"]) for row in rows])
    for row in rows:
        key = store.key_of(row)
        try:
            backfill = store.read_backfill(row)
            created_by = created.get(backfill.schedule)
            if created_by is None or created_by > key.position:  # it was deleted, and may be put again
                portion = Portion(backfill, is_deleted=True)
            else:
                portion = await room.compute(key.tenant_id, _next_portion(backfill, room, now))
        except Exception as error:  # noqa: BLE001 - a damaged row, or whatever the parser or the zone data raise
            done.failed.append(Failed(key, error))
        else:
            portions.append(portion)
    return portions


def _next_portion(backfill: Backfill, room: Room, now: int) -> Steps[Portion]:
    """Return the next slots of a backfill: those that are left, and for which the tenant has room; at least one."""
    tenant, size = backfill.key.tenant_id, backfill.data_size
    slots: list[int] = []
    for slot in backfill.slots(now):
        if len(slots) == backfill.left or (slots and not room.most_slots(tenant, size, COSTLY)):
            return Portion(backfill, slots, slot)
        room.use(tenant, 1, size, COSTLY)
        slots.append(slot)
        yield
    return Portion(backfill, slots)


def _firing(portion: Portion, data: str | None) -> Firing:
    backfill = portion.before
    return Firing(
        schedule=backfill.schedule,
        slots=portion.slots,
        cause=FiringCause.BACKFILL,
        position=backfill.key.position,
        origin=backfill.cause,
        start=backfill.start,
        topic=backfill.topic,
        data=data,
    )
