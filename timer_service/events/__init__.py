"""The events slice: users list the buried events of the outbox and retry them. The outbox itself is in the core.

Consumers of users park events that they give up. Users list these, and resubmit them to the same consumer or drop them.
"""

from dataclasses import replace
from datetime import timedelta

from timer_service.core.due.loop import Worker
from timer_service.core.events.outbox import COUNTED, DEAD_LETTERS, OUTBOX, stored_dead_letter, stored_message
from timer_service.core.limits import event_allowances
from timer_service.core.limits.event_allowances import EventCharging
from timer_service.core.ports.database import Transaction
from timer_service.core.service.slice import Parts, Slice
from timer_service.events import store
from timer_service.events.batch import Outcome
from timer_service.events.handler import handle
from timer_service.events.messages import DropEvent, ParkEvent, ResubmitEvent, RetryEvent
from timer_service.events.queries import QUERIES

_EVER = 2**31
"""How many attempts a dead letter has: it is never given up."""
_PARKED_FOR = timedelta(days=30)
"""As long as the stream of dead letters keeps these: nobody may have looked at a parked event."""


def _dead_letter_relay(parts: Parts) -> Worker:
    """Return what publishes dead letters. They count for no limit, and no event waits while they cannot be stored."""
    alone = replace(parts, publishing=parts.dead_letters, max_attempts=_EVER)
    return alone.relay(DEAD_LETTERS, stored_dead_letter, limited=False)


async def _delete_old(tx: Transaction, before: int, limit: int) -> int:
    """Delete old parked events, and the rows of tenants that have used no events; up to `limit` of each."""
    return await store.delete_old(tx, before, limit) + await event_allowances.delete_empty(tx, before, limit)


SLICE = Slice(
    name="events",
    commands=(RetryEvent, ParkEvent, ResubmitEvent, DropEvent),
    outcomes=Outcome,
    handle=handle,
    queries=QUERIES,
    workers={
        "outbox": lambda parts: parts.relay(OUTBOX, stored_message),
        "dead-letters": _dead_letter_relay,
        "event-limits": lambda parts: EventCharging(parts.database, parts.allowances),
    },
    wakes=("outbox",),
    leased=(OUTBOX, DEAD_LETTERS),
    counted=(*COUNTED, store.COUNTED),
    usages=(event_allowances.USAGE, store.PARKED),
    delete_settled=_delete_old,
    kept_at_least=_PARKED_FOR,
)
