"""The timers slice: a `ScheduleTimer` command leads to a `DueTimeReached` event, or to `TimerExpired` if it is late."""

from timer_service.core.slice import Slice
from timer_service.timers.events import timer_event
from timer_service.timers.handler import handle
from timer_service.timers.messages import (
    CancelTimer,
    DueTimeReached,
    RetryTimer,
    ScheduleTimer,
    TimerExpired,
    TimerView,
)
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
    workers={"timers": lambda parts: parts.relay(TIMERS, timer_event)},
    wakes=("timers",),
    leased=(TIMERS,),
    counted=COUNTED,
    events=(DueTimeReached, TimerExpired),
    views={"timer": TimerView},
    usages=USAGES,
    delete_settled=delete_settled,
)
