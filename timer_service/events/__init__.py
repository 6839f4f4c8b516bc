"""The events slice: users list the buried events of the outbox and retry them. The outbox itself is in the core."""

from timer_service.core.events.outbox import COUNTED, OUTBOX, stored_message
from timer_service.core.limits import event_allowances
from timer_service.core.service.slice import Slice
from timer_service.events.handler import Outcome, handle
from timer_service.events.messages import RetryEvent
from timer_service.events.queries import QUERIES

SLICE = Slice(
    name="events",
    commands=(RetryEvent,),
    outcomes=Outcome,
    handle=handle,
    queries=QUERIES,
    workers={"outbox": lambda parts: parts.relay(OUTBOX, stored_message)},
    wakes=("outbox",),
    leased=(OUTBOX,),
    counted=COUNTED,
    usages=(event_allowances.USAGE,),
    delete_settled=event_allowances.delete_empty,
)
