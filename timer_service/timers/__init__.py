"""The timers slice: a `ScheduleTimer` command leads to a `DueTimeReached` event at its due time."""

from timer_service.core.slice import Slice
from timer_service.timers.events import due_time_reached
from timer_service.timers.handler import handle
from timer_service.timers.messages import CancelTimer, DueTimeReached, RetryTimer, ScheduleTimer, TimerView
from timer_service.timers.queries import QUERIES
from timer_service.timers.rules import Outcome
from timer_service.timers.store import COUNTED, TIMERS, delete_settled
from timer_service.timers.usage import USAGES

SLICE = Slice(
    name="timers",
    commands=(ScheduleTimer, CancelTimer, RetryTimer),
    outcomes=Outcome,
    handle=handle,
    queries=QUERIES,
    workers={"timers": lambda parts: parts.relay(TIMERS, due_time_reached)},
    wakes=("timers",),
    leased=(TIMERS,),
    counted=COUNTED,
    events=(DueTimeReached,),
    views={"timer": TimerView},
    usages=USAGES,
    delete_settled=delete_settled,
)
