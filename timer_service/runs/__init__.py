"""Runs: job graphs. A job becomes ready when everything it needs has finished; the users' workers execute it."""

from functools import partial

from timer_service.core.slice import Slice
from timer_service.runs.handler import PAYLOADS, handle
from timer_service.runs.messages import JobReady, JobSkipped, RunCompleted, RunRejected, RunStuck
from timer_service.runs.queries import QUERIES, RunView
from timer_service.runs.retention import delete_settled
from timer_service.runs.row_counts import COUNTED
from timer_service.runs.rules import Outcome
from timer_service.runs.sweep import Sweep

SLICE = Slice(
    name="runs",
    commands=PAYLOADS,
    outcomes=Outcome,
    handle=partial(handle, evaluating=True),
    handle_when_off=partial(handle, evaluating=False),
    queries=QUERIES,
    workers={"sweep": Sweep},
    wakes=("sweep", "outbox"),
    leased=(),
    counted=COUNTED,
    events=(JobReady, JobSkipped, RunRejected, RunCompleted, RunStuck),
    views={"run": RunView},
    delete_settled=delete_settled,
)
