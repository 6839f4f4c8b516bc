"""Runs: job graphs. A job becomes ready when everything it needs has finished; the users' workers execute it."""

from functools import partial

from timer_service.core.service.slice import Slice
from timer_service.runs import announcements, store
from timer_service.runs.announcer import LOOP, Announcer
from timer_service.runs.handler import USAGES, handle
from timer_service.runs.messages import (
    CancelRun,
    JobReady,
    JobSkipped,
    ReportJobStatus,
    ResolveGroup,
    RetryRun,
    RunCompleted,
    RunRejected,
    RunStuck,
    StartRun,
)
from timer_service.runs.queries import QUERIES, RunView
from timer_service.runs.retention import delete_settled
from timer_service.runs.rules import Outcome
from timer_service.runs.sweep import TIMED, Sweep

SLICE = Slice(
    name="runs",
    commands=(StartRun, ResolveGroup, ReportJobStatus, CancelRun, RetryRun),
    outcomes=Outcome,
    handle=partial(handle, evaluating=True),
    handle_when_off=partial(handle, evaluating=False),
    queries=QUERIES,
    workers={"sweep": Sweep, LOOP: Announcer},
    wakes=("sweep", LOOP, "outbox"),
    leased=(),
    counted=(*store.COUNTED, announcements.COUNTED),
    timed=(*TIMED, announcements.TIMED),
    events=(JobReady, JobSkipped, RunRejected, RunCompleted, RunStuck),
    views={"run": RunView},
    usages=USAGES,
    delete_settled=delete_settled,
)
