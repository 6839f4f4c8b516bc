"""What the command line prints of each resource: `recorded_cli_output.txt` has the text, reviewed as text.

The user's texts in it have characters that act on a terminal. To record again: `RECORD=1 pytest <this file>`.
"""

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import typer

from timer_service.cli import dead_letters, events, runs, schedules, signals, timers, workflows
from timer_service.cli.output import format_distance, format_duration, format_time, one_line, print_table, style
from timer_service.cli.resources import Rows, event_line, print_counts, rejection_text
from timer_service.client import (
    CommandError,
    Counts,
    DeadLetter,
    NoAnswerError,
    Outcome,
    ParkedEvent,
    Run,
    RunGraph,
    RunJob,
    Schedule,
    Signal,
    Timer,
    Workflow,
    WorkflowDetail,
    WorkflowEffect,
    WorkflowEndedError,
)
from timer_service.client.events import read_event
from timer_service.client.names import OutcomeName
from timer_service.client.workflow_models import WorkflowError

RECORDED = Path(__file__).with_name("recorded_cli_output.txt")
Document = Mapping[str, Any]
EVIL = "a\u202eb\u2028c\x85d\x1b[2Je\nf\u200bg"
AT, THEN = "2100-01-01T09:30:00.000Z", "2020-01-01T00:00:00.004Z"
ACME = {"tenantId": "acme", "createdAt": THEN}
NINE = datetime(2027, 3, 29, 7, tzinfo=UTC)
"""09:00 in Berlin, one day after the clock went forward."""

TIMER: Document = {
    "tenantId": "acme",
    "serviceCallId": "注文-4713",
    "state": "Scheduled",
    "dueAt": AT,
    "registeredAt": THEN,
    "attempt": 0,
    "data": {"a": EVIL},
}
FAILED = {**TIMER, "serviceCallId": EVIL, "state": "Failed", "attempt": 20, "lastError": EVIL, "correlationId": EVIL}
SIGNAL: Document = {
    **ACME,
    "signalId": EVIL,
    "status": "active",
    "triggerKind": "event",
    "workItemId": "item",
    "note": EVIL,
    "triggerSpec": {"kind": "work_item.status.transition", "to": ["blocked", EVIL]},
}
NOON = {**SIGNAL, "signalId": "noon", "status": "fired", "lastFiredAt": AT, "lastError": EVIL, "workItemId": None}
NOON |= {"triggerSpec": {"kind": "time.at", "at": "2100-01-01T12:00:00+02:00"}}
BROKEN = {**SIGNAL, "signalId": "broken", "status": "paused", "triggerError": "kind: must be one of these"}
FIRING: Document = {
    **ACME,
    "firingId": "f1",
    "signalId": "ask",
    "dedupeKey": "event-9",
    "status": "enqueued",
    "dueAt": AT,
    "attempt": 1,
    "workItemId": "ticket-7",
    "taskId": "task-f1",
}
GIVEN_UP = {**FIRING, "firingId": "f2", "status": "failed", "lastError": EVIL}
TASK: Document = {**ACME, "taskId": "t1", "workItemId": "ticket-7", "signalId": EVIL, "firingId": "f1"}
SCHEDULE: Document = {
    **ACME,
    "scheduleId": "report",
    "status": "active",
    "cron": "0 9 * * MON-FRI",
    "zone": "Europe/Berlin",
    "catchUp": {"policy": "last", "lateBy": "PT1M", "limit": 100},
    "jitter": "PT5M",
    "firedCount": 3,
    "maxCount": 20,
    "nextSlotAt": AT,
    "missedSince": THEN,
    "lastSlotAt": THEN,
    "data": {"to": EVIL},
}
SPAN = {"from": THEN, "to": AT, "limit": 100, "count": 7}
PAUSED = {**SCHEDULE, "scheduleId": EVIL, "status": "paused", "cron": None, "every": "PT1H30M", "nextSlotAt": None}
PAUSED |= {"start": {"type": "order", "queue": EVIL, "input": [1], "deadlineIn": "PT1H", "concurrencyKey": EVIL}}
PAUSED |= {"lastSkippedAt": AT, "lastSkipReason": "busy", "lastError": EVIL, "upcoming": [AT], "zone": None}
PAUSED |= {
    "backfills": [
        {**SPAN, "commandId": "1", "skipped": 1, "lastSlotAt": THEN},
        {**SPAN, "commandId": "2", "skipped": 0, "lastError": EVIL, "retryAt": AT},
    ]
}
ENDED = {**SCHEDULE, "scheduleId": "old", "status": "ended", "endReason": "max_count", "nextSlotAt": None}
RUN: Document = {**ACME, "runId": EVIL, "status": "running", "openJobs": 2, "unresolvedGroups": 1}
REJECTED = {**RUN, "runId": "circle", "status": "rejected", "code": "CYCLE", "path": [EVIL, "b"]}
JOBS: list[Document] = [
    {"name": EVIL, "status": "success", "needs": []},
    {"name": "b", "status": "pending", "needs": [{"job": EVIL, "ifFailed": "run"}, {"group": "g"}]},
    {"name": "c", "status": "skipped", "needs": [{"job": "b"}], "reason": EVIL},
    {"name": "d", "status": "pending", "needs": [{"job": "c", "ifFailed": "run"}], "readyAt": AT, "always": True},
]
WORKFLOW: Document = {
    **ACME,
    "workflowId": EVIL,
    "type": "order",
    "queue": EVIL,
    "status": "failed",
    "attempt": 1,
    "retries": 0,
    "effects": 2,
    "messages": 2,
    "code": "STEP_FAILED",
    "step": EVIL,
    "dueAt": AT,
    "endedAt": AT,
}
HELD = {
    **WORKFLOW,
    "workflowId": "w3",
    "status": "running",
    "workerId": "worker-1",
    "endedAt": None,
    "code": None,
    "step": None,
}
OPEN = {**WORKFLOW, "workflowId": "w2", "status": "waiting", "blockedBy": EVIL, "endedAt": None, "messages": 1}
WAITING: list[Document] = [
    {
        **HELD,
        "workflowId": "w4",
        "status": "parked",
        "workerId": None,
        "step": None,
        "dueAt": None,
        "waitsFor": ["a", EVIL],
    },
    {**HELD, "workflowId": "w5", "status": "waiting", "workerId": None, "step": None, "dueAt": AT},
    {**HELD, "workflowId": "w6", "status": "waiting", "workerId": None, "step": None, "dueAt": THEN},
    {
        **HELD,
        "workflowId": "w7",
        "status": "waiting",
        "workerId": None,
        "step": None,
        "dueAt": THEN,
        "hasWorkers": False,
    },
    {
        **WORKFLOW,
        "workflowId": "w8",
        "failure": {"type": "StepFailed", "message": EVIL},
        "step": "charge",
        "reason": None,
    },
    {**WORKFLOW, "workflowId": "w9", "failure": {"type": "ValueError", "message": EVIL}, "step": None, "reason": None},
    {**HELD, "workflowId": "w10", "status": "queued", "workerId": None, "step": None, "queuedBehind": "w6"},
]
EFFECTS: list[Document] = [
    {"key": EVIL, "kind": "step", "status": "done", "seq": 1, "result": EVIL, "dueAt": AT},
    {"key": "b", "kind": "step", "status": "open", "failures": 2, "dueAt": AT, "error": {"type": "E", "message": EVIL}},
]
WORKER: Document = {"workerId": "1", "name": EVIL, "queue": EVIL, "types": [EVIL, "b"], "slots": 5, "online": True}
LETTER: Document = {
    "sequence": 7,
    "tenantId": "acme",
    "message": "schedule-timer",
    "code": "INTERNAL",
    "reason": EVIL,
    "storedAt": AT,
    "sourceSequence": 9,
    "size": 1,
    "headers": {"Name": EVIL},
    "body": EVIL,
}
BURIED: Document = {
    "tenantId": "acme",
    "eventId": EVIL,
    "eventType": "JobReady",
    "about": {"runId": EVIL},
    "addedAt": AT,
    "attempt": 1,
    "lastError": EVIL,
}


PARKED: Document = {
    "tenantId": "acme",
    "consumer": "orders",
    "eventId": EVIL,
    "eventType": "DueTimeReached",
    "about": {"serviceCallId": EVIL},
    "parkedAt": AT,
    "reason": EVIL,
    "attempts": 5,
    "event": {"id": EVIL, "payload": {"data": EVIL}},
}
EVENT = {
    "id": "1",
    "type": "JobNew",
    "tenantId": "acme",
    "timestampMs": 1,
    "payload": {"tenantId": "acme", "runId": EVIL, "data": [EVIL]},
}


def rows(listed: Rows, *documents: Document) -> Callable[[], None]:
    return lambda: listed.print(documents, None, as_json=False)


def detail(workflow: Document, **more: Any) -> WorkflowDetail:
    effects = [WorkflowEffect.read(each) for each in EFFECTS]
    return WorkflowDetail(workflow=Workflow.read(workflow), has_workers=False, effects=effects, **more)


def schedule_states() -> None:
    for each in (SCHEDULE, PAUSED, ENDED):
        typer.echo(one_line(schedules.state_text(Schedule.read(each))))


CASES: dict[str, Callable[[], None]] = {
    "timers list": rows(timers.LIST, TIMER, FAILED),
    "timers count": lambda: print_counts(Counts.read({"counts": {"Failed": 7}, "overdue": 3, "exact": False})),
    "timers get": lambda: timers.print_timer(Timer.read(FAILED)),
    "signals list": rows(signals.LIST, SIGNAL, NOON, BROKEN),
    "signals get": lambda: signals.print_signal(Signal.read(NOON)),
    "signals firings": rows(signals.FIRINGS, FIRING, GIVEN_UP),
    "signals tasks": rows(signals.TASKS, TASK),
    "schedules list": rows(schedules.LIST, SCHEDULE, PAUSED, ENDED),
    "schedules get": lambda: schedules.print_schedule(Schedule.read(SCHEDULE)),
    "schedules get, paused": lambda: schedules.print_schedule(Schedule.read(PAUSED)),
    "schedules put": schedule_states,
    "runs list": rows(runs.LIST, RUN, REJECTED),
    "runs get": lambda: runs.print_graph(
        RunGraph(Run.read({**REJECTED, "attempt": 2}), {EVIL: 1}, {EVIL: False}, [RunJob.read(each) for each in JOBS])
    ),
    "workflows list": rows(workflows.LIST, WORKFLOW, OPEN, HELD, *WAITING),
    "workflows get": lambda: workflows.print_workflow(detail(WORKFLOW, failure=WorkflowError(type="E", message=EVIL))),
    "workflows get, running": lambda: workflows.print_workflow(detail(HELD)),
    "workflows get, open": lambda: workflows.print_workflow(detail(OPEN, input=EVIL, result=None)),
    "workflows workers": rows(workflows.WORKERS, {**WORKER, "firstSeenAt": THEN, "seenAt": THEN}),
    "dead-letters list": rows(dead_letters.LETTERS, LETTER),
    "dead-letters show": lambda: dead_letters.print_letter(DeadLetter.read(LETTER)),
    "events list": rows(events.EVENTS, BURIED),
    "events parked": rows(events.PARKED, PARKED),
    "events show": lambda: events.print_parked(ParkedEvent.read(PARKED)),
    "watch": lambda: typer.echo(event_line(read_event(json.dumps(EVENT).encode()))),
}


@pytest.fixture(autouse=True)
def machine_in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_recorded_output(capsys: pytest.CaptureFixture[str]) -> None:
    """Each resource is listed, shown and watched in the recorded words, and no text of a user acts on the terminal."""
    sections = []
    for name, show in CASES.items():
        show()
        printed = capsys.readouterr().out
        assert [line for line in printed.splitlines() if not line.isprintable()] == [], name
        distance = re.sub(r"(in )?\d+ d( \d+ h)?( ago)?", "<distance>", printed)
        spaced = re.sub(r"(?<=\S) {2,}", "  ", distance)
        sections.append(f"# {name}\n{spaced}")
    if os.environ.get("RECORD"):
        RECORDED.write_text("\n".join(sections), "utf-8")
    assert "\n".join(sections) == RECORDED.read_text("utf-8")


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns are aligned, also in wide characters. Nothing is cut: a long cell moves its own line only."""
    print_table(("ID", "N", "WHY"), [("注文", "1", "x"), ("y" * 50, "2", "z"), ("id", "3", "")], {})
    assert capsys.readouterr().out.splitlines() == [
        f"ID{' ' * 38}  N  WHY",
        f"注文{' ' * 36}  1  x",
        f"{'y' * 50}  2  z",
        f"id{' ' * 38}  3",
    ]


def test_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty list says so on stderr. With --json it is a list."""
    for as_json, printed in ((False, ("", "no buried events\n")), (True, ("[]\n", ""))):
        events.EVENTS.print([], None, as_json=as_json)
        assert capsys.readouterr() == printed


@pytest.mark.parametrize("failed", ["not_found", "NO_ANSWER"])
async def test_retries_without_effect(failed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """If one of several events is not there, or gets no answer, the others are sent, and the exit code is 1."""
    retried, missing = Outcome(command_id="1", name="retried"), Outcome(command_id="2", name="not_found")
    outcomes = [missing if failed == "not_found" else NoAnswerError("lost"), retried]
    client: Any = SimpleNamespace(events=SimpleNamespace(retry=AsyncMock(side_effect=outcomes)))
    with pytest.raises(typer.Exit) as ended:
        await events.retry(client, "acme", ["a", "b"])
    error = f"{failed}: acme/a" + ("" if failed == "not_found" else ": lost")
    assert (ended.value.exit_code, capsys.readouterr()) == (1, ("retried: acme/b\n", f"{error}\n"))


async def test_interrupted_resubmit(capsys: pytest.CaptureFixture[str]) -> None:
    """If the user stops the command, it prints what it has sent."""
    get = AsyncMock(side_effect=[None, asyncio.CancelledError])
    client: Any = SimpleNamespace(dead_letters=SimpleNamespace(get=get))
    with pytest.raises(asyncio.CancelledError):
        await dead_letters.resubmit(client, "acme", [7, 8], as_json=True)
    assert [each["sequence"] for each in json.loads(capsys.readouterr().out)] == [7]


@pytest.mark.parametrize("name", ["started", "unchanged"])
async def test_end_of_a_workflow(name: OutcomeName, capsys: pytest.CaptureFixture[str]) -> None:
    """The error that `start --wait` prints, which the code of a tenant raised, does not act on the terminal."""
    started = Outcome(command_id="1", name=name, workflow=Workflow.read(OPEN))
    ended = WorkflowEndedError(Workflow.read(WORKFLOW), WorkflowError(type="E", message="\x1b[2J\n"))
    calls = SimpleNamespace(
        start=AsyncMock(return_value=started),
        get=AsyncMock(side_effect=NoAnswerError("later")),
        result=AsyncMock(side_effect=ended),
    )
    client: Any = SimpleNamespace(workflows=calls)
    with pytest.raises(typer.Exit) as exited:
        await workflows.start(client, wait=True, tenant="acme", workflow_id="order\u202e")
    assert exited.value.exit_code == 1
    waiting, failed = capsys.readouterr().err.splitlines()
    assert waiting == rf"{name}: acme/order\u202e. Waiting for its end."
    assert failed.endswith(r": E: \x1b[2J\n")


@pytest.mark.parametrize(
    ("at", "zone", "text"),
    [
        (NINE, "Europe/Berlin", "2027-03-29T07:00:00Z  Mon 2027-03-29 09:00:00 CEST"),
        (NINE, "UTC", "2027-03-29T07:00:00Z  Mon 2027-03-29 16:00:00 JST"),
        (NINE, "../passwd", "2027-03-29T07:00:00Z"),
        (datetime(9999, 12, 31, 23, tzinfo=UTC), None, "9999-12-31T23:00:00Z"),
    ],
)
def test_slots(at: datetime, zone: str | None, text: str) -> None:
    """A slot is shown in UTC and in the zone of its schedule, or else in this machine's zone, if it is known there."""
    assert schedules.slot_text(at, zone) == text


def test_durations_and_times() -> None:
    """A duration has all its units. All instants are printed in UTC, in the form that --at accepts."""
    assert format_duration(timedelta()) == "0 s"
    assert format_duration(timedelta(days=366, hours=1, minutes=2, milliseconds=1500)) == "366 d 1 h 2 min 1 s 500 ms"
    at = datetime.fromisoformat("2026-11-21T09:00:00.123+02:00")
    assert format_time(at) == "2026-11-21T07:00:00Z"
    assert format_time(at, milliseconds=True) == "2026-11-21T07:00:00.123Z"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "now"),
        (0.5, "in 500 ms"),
        (5.2, "in 5 s"),
        (2 * 3600 + 59 * 60 + 59, "in 2 h 59 min"),
        (-90, "1 min 30 s ago"),
    ],
)
def test_distances(seconds: float, text: str) -> None:
    """A distance has its two largest units."""
    assert format_distance(NINE + timedelta(seconds=seconds), NINE) == text


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR removes all terminal codes."""
    assert style("text", colour="red", bold=True) == "text"
    monkeypatch.delenv("NO_COLOR")
    assert style("text", colour="red") != "text"


def test_rejections() -> None:
    """A rejection names the fields as the user wrote them, and not in the words of the validation library."""
    errors = [
        {"path": "payload.jobs.0.need", "reason": "Extra inputs are not permitted"},
        {"path": f"payload.{EVIL}", "reason": "Field required"},
    ]
    error = CommandError("INVALID_PAYLOAD", "the payload is invalid", errors)
    assert rejection_text(error) == f"INVALID_PAYLOAD: jobs.0.need is not a known field; {one_line(EVIL)} is missing"
    assert rejection_text(CommandError("TOO_LARGE", EVIL)) == f"TOO_LARGE: {one_line(EVIL)}"
