"""Events that could not be published: users list them and have them published again. A slice over the core's outbox."""

from timer_service.core.outbox import COUNTED, OUTBOX, stored_message
from timer_service.core.slice import Slice
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
)
