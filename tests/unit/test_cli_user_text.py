"""Texts of users as the command line prints them: nothing in them acts on the terminal or breaks a line."""

import io
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import typer

from timer_service.cli.events import _event_lines
from timer_service.cli.output.outcomes import exit_not_found, print_outcome, rejection_text
from timer_service.cli.output.runs import graph_lines, run_table
from timer_service.cli.output.schedules import schedule_details, schedule_event_line, schedule_table
from timer_service.cli.output.signals import signal_details, signal_table
from timer_service.cli.output.text import one_line
from timer_service.cli.output.timers import timer_details, timer_event_line, timer_table
from timer_service.cli.output.workflows import worker_table, workflow_lines, workflow_table
from timer_service.client import (
    Backfill,
    CatchUp,
    CommandError,
    Outcome,
    Run,
    RunGraph,
    RunJob,
    Schedule,
    Signal,
    Timer,
    WorkerInfo,
    Workflow,
    WorkflowDetail,
    WorkflowEffect,
)
from timer_service.client.workflow_models import WorkflowError

EVIL = "a\u202eb\u2028c\x85d\x1b[2Je\nf\u200bg"
SAFE = r"a\u202eb\u2028c\x85d\x1b[2Je\nf\u200bg"
AT = datetime(2100, 1, 1, 9, 30, tzinfo=UTC)
STAMP = "2100-01-01T09:30:00.000Z"

TIMER = Timer(
    tenant="acme", call=EVIL, due_at=AT, state=EVIL, registered_at=AT, attempt=1, last_error=EVIL, correlation_id=EVIL
)
SIGNAL = Signal(
    tenant="acme",
    name=EVIL,
    status=EVIL,
    trigger_kind="event",
    created_at=AT,
    note=EVIL,
    trigger_spec={"kind": "work_item.status.transition", "to": [EVIL]},
    item=EVIL,
    last_error=EVIL,
)
SCHEDULE = Schedule(
    tenant="acme",
    name=EVIL,
    status=EVIL,
    cron=EVIL,
    zone=EVIL,
    created_at=AT,
    fired_count=1,
    jitter=timedelta(0),
    catch_up=CatchUp(policy=EVIL, late_by=timedelta(minutes=1), limit=1),
    last_error=EVIL,
    end_reason=EVIL,
    data=EVIL,
)
RUN = Run(
    tenant="acme",
    name=EVIL,
    status=EVIL,
    created_at=AT,
    open_jobs=1,
    unresolved_groups=1,
    code="CYCLE",
    path=[EVIL],
)
JOBS = [
    RunJob(name=EVIL, status=EVIL, needs=[]),
    RunJob(name="b", status="pending", needs=[{"job": EVIL, "ifFailed": "skip"}]),
    RunJob(name="c", status="pending", needs=[], reason=EVIL),
]
WORKFLOW = Workflow(
    tenant="acme",
    name=EVIL,
    type=EVIL,
    queue=EVIL,
    status=EVIL,
    created_at=AT,
    attempt=1,
    retries=0,
    effects=1,
    messages=1,
    worker_id=EVIL,
    reason=EVIL,
)
EFFECT = WorkflowEffect(key=EVIL, kind=EVIL, status=EVIL, error=WorkflowError(type=EVIL, message=EVIL))
WORKER = WorkerInfo(
    worker_id=EVIL, name=EVIL, queue=EVIL, types=[EVIL], slots=1, first_seen_at=AT, seen_at=AT, online=True
)
FIRED = {"tenantId": EVIL, "scheduleId": EVIL, "slotAt": STAMP, "firedAt": STAMP, "cause": EVIL, "missedSince": EVIL}
BACKFILLED = {
    "tenantId": EVIL,
    "scheduleId": EVIL,
    "from": EVIL,
    "to": EVIL,
    "count": 1,
    "skipped": 1,
    "reason": EVIL,
    "nextSlotAt": EVIL,
}
BACKFILL = Backfill(command_id=EVIL, from_at=AT, to_at=AT, limit=9, count=1, skipped=1, last_error=EVIL)
REACHED = {"tenantId": EVIL, "serviceCallId": EVIL, "dueAt": STAMP, "reachedAt": STAMP, "data": EVIL}
CANCELLED = {"tenantId": EVIL, "prefix": EVIL, "count": 1}
ABOUT_BURIED = {"about": {"runId": EVIL}, "addedAt": STAMP, "attempt": 1}
BURIED = {"tenantId": EVIL, "eventId": EVIL, "eventType": EVIL, "lastError": EVIL, **ABOUT_BURIED}


def event(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "timestampMs": 0, "payload": payload}


def printed(call: Any) -> Iterator[str]:
    """Yield the lines that a function prints on both outputs."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output), suppress(typer.Exit):
        call()
    yield output.getvalue().removesuffix("\n")


def outcome_lines() -> Iterator[str]:
    outcome = Outcome(command_id="1", name="created")
    yield from printed(
        lambda: print_outcome(outcome, EVIL, state=EVIL, explanations={}, has_effect=False, as_json=False)
    )
    yield from printed(lambda: exit_not_found(EVIL))


LINES: dict[str, Iterable[str]] = {
    "timer": timer_details(TIMER, AT),
    "timers": timer_table([TIMER], AT, None),
    "timers on a terminal": timer_table([TIMER], AT, 80),
    "timer event": [timer_event_line(event("DueTimeReached", REACHED))],
    "cancelled timers": [timer_event_line(event("TimersCancelled", CANCELLED))],
    "signal": signal_details(SIGNAL),
    "signals": signal_table([SIGNAL], 80),
    "signal that never fires": signal_details(SIGNAL.model_copy(update={"trigger_error": EVIL})),
    "schedule": schedule_details(SCHEDULE, AT),
    "schedules": schedule_table([SCHEDULE], AT, 80),
    "schedule event": [schedule_event_line(event("ScheduleFired", FIRED))],
    "backfilled schedule": [schedule_event_line(event("ScheduleBackfilled", BACKFILLED))],
    "backfill": schedule_details(SCHEDULE.model_copy(update={"backfills": [BACKFILL]}), AT),
    "ended schedule": [schedule_event_line(event("ScheduleEnded", FIRED | {"reason": EVIL}))],
    "run": graph_lines(RunGraph(RUN, {EVIL: 1}, {EVIL: False}, JOBS), 80),
    "runs": run_table([RUN], AT, 80),
    "workflow": workflow_lines(
        WorkflowDetail(
            workflow=WORKFLOW, has_workers=True, input=EVIL, result=EVIL, failure=EFFECT.error, effects=[EFFECT]
        ),
        AT,
        80,
    ),
    "workflows": workflow_table([WORKFLOW], AT, 80),
    "workers": worker_table([WORKER], AT, 80),
    "buried events": _event_lines([BURIED]),
    "rejection": [rejection_text(CommandError("NO", EVIL, [{"path": f"payload.{EVIL}", "reason": EVIL}]))],
    "rejection without fields": [rejection_text(CommandError("NO", EVIL))],
}


@pytest.fixture(autouse=True)
def no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize("what", LINES)
def test_text_of_users_is_escaped(what: str) -> None:
    """Each line is printable, and shows the text of the user with its invisible characters escaped."""
    lines = [*LINES[what]]
    assert [line for line in lines if not line.isprintable()] == []
    assert SAFE in "".join(lines)


def test_outcomes_are_escaped() -> None:
    """What a command says about its own arguments is escaped, too."""
    lines = [*outcome_lines()]
    assert len(lines) == 2
    assert all(line.isprintable() and SAFE in line for line in lines)


def test_text_that_is_kept() -> None:
    """Every printable character is printed as it is, in any language."""
    text = "注文-4713 “naïve” 🎉 C:\\new"
    assert one_line(text) == text
