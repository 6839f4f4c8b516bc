"""The timers slice: a `ScheduleTimer` command leads to a `DueTimeReached` event, or to `TimerExpired` if it is late."""

from timer_service.core.service.slice import Slice
from timer_service.timers import cancellations, store
from timer_service.timers.cancellation_worker import CancellationWorker
from timer_service.timers.events import timer_event
from timer_service.timers.handler import handle
from timer_service.timers.messages import (
    CancelTimer,
    CancelTimers,
    DueTimeReached,
    RetryTimer,
    ScheduleTimer,
    TimerExpired,
    TimersCancelled,
    TimerView,
)
from timer_service.timers.queries import QUERIES
from timer_service.timers.rules import Outcome
from timer_service.timers.store import PENDING, STORED_DATA, TIMERS

SLICE = Slice(
    name="timers",
    commands=(ScheduleTimer, CancelTimer, CancelTimers, RetryTimer),
    outcomes=Outcome,
    handle=handle,
    queries=QUERIES,
    workers={"timers": lambda parts: parts.relay(TIMERS, timer_event), cancellations.LOOP: CancellationWorker},
    wakes=("timers",),
    leased=(TIMERS,),
    counted=(*store.COUNTED, cancellations.COUNTED),
    timed=(cancellations.TIMED,),
    events=(DueTimeReached, TimerExpired, TimersCancelled),
    views={"timer": TimerView},
    usages=(PENDING, STORED_DATA),
    delete_settled=store.delete_settled,
)
