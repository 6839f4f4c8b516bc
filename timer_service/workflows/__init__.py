"""Workflows: functions of the users that continue after any crash. Workers execute them and store each result.

The states of a workflow. One that is not started can have messages, and a cancel for the slots of schedules. A start or
a retry whose concurrency key is busy can lead to `queued`, and from there to `waiting`::

                start        claim              report: complete, fail; deadline; cancel
    not started     --> waiting --> running ----------------------------> completed, failed, cancelled
                         ^   ^        |  |                                            |
                         |   +--------+  | park, and only a message ends the wait     | retry
                         |   park,       v                                            |
                         |   release   parked                                         |
                         +---------------+--------------------------------------------+
                            message
"""

from timer_service.core.service.slice import Slice
from timer_service.workflows.commands.handler import LOOP, handle
from timer_service.workflows.commands.rules import Outcome
from timer_service.workflows.deadline_worker import DeadlineWorker
from timer_service.workflows.key_worker import KeyWorker
from timer_service.workflows.keys import KEY_LOOP
from timer_service.workflows.messages import (
    CancelWorkflow,
    RetryWorkflow,
    SendToWorkflow,
    StartWorkflow,
    WorkflowBlocked,
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowFailed,
)
from timer_service.workflows.queries import QUERIES
from timer_service.workflows.store import COUNTED, USAGES
from timer_service.workflows.tasks.lanes import OVERDUE
from timer_service.workflows.tasks.requests import POLL_TASKS, REQUESTS
from timer_service.workflows.upkeep import TIMED, delete_settled
from timer_service.workflows.views import WorkflowView

SLICE = Slice(
    name="workflows",
    commands=(StartWorkflow, SendToWorkflow, CancelWorkflow, RetryWorkflow),
    outcomes=Outcome,
    handle=handle,
    handle_when_off=handle,
    queries=QUERIES,
    workers={LOOP: DeadlineWorker, KEY_LOOP: KeyWorker},
    wakes=("outbox", LOOP, KEY_LOOP),
    leased=(),
    counted=COUNTED,
    overdue=OVERDUE,
    timed=TIMED,
    events=(WorkflowCompleted, WorkflowFailed, WorkflowCancelled, WorkflowBlocked),
    views={"workflow": WorkflowView},
    requests=(POLL_TASKS, *REQUESTS),
    usages=USAGES,
    delete_settled=delete_settled,
)
