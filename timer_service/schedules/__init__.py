"""The schedules slice: a `PutSchedule` command leads to a `ScheduleFired` event at each slot of its recurrence.

With `start`, each slot starts a workflow instead. The slice gets the function that starts it (docs/decisions/0035).

The states of a schedule. A tombstone (`deleted`) only remembers the pause and the cursor::

                 put                      the last slot fires or is skipped
    none, deleted --> active or paused ------------------------------------> ended
       ^                |    ^   pause: paused    |                            |
       |                |    |   resume: active   | put that starts again      |
       |                |    +--------------------+----------------------------+
       +---- delete ----+------------------------------------------------------+
"""

from functools import partial

from timer_service.core.service.slice import Slice
from timer_service.core.service.workflow_start import StartWorkflows
from timer_service.schedules import backfills
from timer_service.schedules.backfill import store as backfill_store
from timer_service.schedules.backfill.worker import BackfillWorker
from timer_service.schedules.firing.worker import LOOP, FiringWorker
from timer_service.schedules.handler import handle
from timer_service.schedules.messages import (
    BackfillSchedule,
    DeleteSchedule,
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
    ScheduleBackfilled,
    ScheduleEnded,
    ScheduleFired,
    ScheduleSkipped,
    TriggerSchedule,
)
from timer_service.schedules.queries import QUERIES
from timer_service.schedules.rules import Outcome
from timer_service.schedules.store import COUNTED, LIVE, SCHEDULES, TIMED, delete_settled
from timer_service.schedules.views import ScheduleView


def build_slice(start: StartWorkflows) -> Slice:
    """Return the slice. `start` starts the workflows of slots and triggers, in their transactions."""
    return Slice(
        name="schedules",
        commands=(PutSchedule, PauseSchedule, ResumeSchedule, DeleteSchedule, TriggerSchedule, BackfillSchedule),
        outcomes=Outcome,
        handle=partial(handle, start=start),
        handle_when_off=partial(handle, start=start),
        queries=QUERIES,
        workers={LOOP: partial(FiringWorker, start=start), backfills.LOOP: partial(BackfillWorker, start=start)},
        wakes=(LOOP, "outbox"),
        leased=(),
        counted=(*COUNTED, backfill_store.COUNTED),
        due=(SCHEDULES,),
        timed=(*TIMED, backfill_store.TIMED),
        events=(ScheduleFired, ScheduleSkipped, ScheduleEnded, ScheduleBackfilled),
        views={"schedule": ScheduleView},
        usages=(LIVE, backfill_store.OPEN),
        delete_settled=delete_settled,
    )
