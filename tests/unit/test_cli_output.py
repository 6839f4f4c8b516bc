"""What the command line prints."""

import json
import re
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.cells import cell_len

from timer_service.cli.output.lists import Listing, print_list
from timer_service.cli.output.outcomes import rejection_text
from timer_service.cli.output.runs import graph_lines, run_event_line, run_table
from timer_service.cli.output.schedules import schedule_details, schedule_event_line, schedule_table, slot_lines
from timer_service.cli.output.signals import firing_table, signal_event_line, signal_table
from timer_service.cli.output.text import format_distance, format_duration, format_time, style
from timer_service.cli.output.timers import timer_table
from timer_service.client import (
    Backfill,
    CatchUp,
    CommandError,
    Firing,
    Run,
    RunGraph,
    RunJob,
    Schedule,
    ScheduleStart,
    Signal,
    State,
    Timer,
)
from timer_service.core.values.codec import plain_words

LATER = datetime(2100, 1, 1, 9, 30, tzinfo=UTC)
PAST = datetime(2020, 1, 1, tzinfo=UTC)
ERROR = "message size exceeds maximum allowed\x1b[2J (10054)"


def plain(lines: Iterable[str]) -> list[str]:
    """Return lines without the terminal codes of the command line itself."""
    return [re.sub("\x1b\\[[0-9]*m", "", line) for line in lines]


def a_timer(call: str, *, state: State = State.SCHEDULED, error: str | None = None) -> Timer:
    return Timer(
        tenant="acme",
        call=call,
        due_at=LATER,
        state=state,
        registered_at=PAST,
        attempt=20 if error else 0,
        last_error=error,
    )


def a_signal(name: str, spec: dict[str, Any], **fields: Any) -> Signal:
    known = {"tenant": "acme", "trigger_kind": "event", "created_at": PAST, "status": "active"}
    return Signal(name=name, trigger_spec=spec, **{**known, **fields})


def a_run(name: str, **fields: Any) -> Run:
    known = {"tenant": "acme", "status": "running", "created_at": PAST, "open_jobs": 2, "unresolved_groups": 0}
    return Run(name=name, **{**known, **fields})


@pytest.mark.parametrize("width", [80, 120])
def test_timers_on_a_terminal(width: int) -> None:
    """Lines fit the terminal, an id is never cut, and an error is wrapped."""
    timers = [a_timer("x" * 200), a_timer("注文-4713"), a_timer("short", state=State.FAILED, error=ERROR)]
    head, long_id, *lines = plain(timer_table(timers, LATER - timedelta(minutes=3), width))
    assert head.startswith("CALL")
    assert long_id == "x" * 200
    assert max(map(cell_len, lines)) <= width
    assert "\x1b" not in "".join(lines)
    assert sum("2100-01-01T09:30:00Z  in 3 min" in line for line in lines) == 3
    assert "message size exceeds maximum allowed\\x1b[2J (10054)" in " ".join(" ".join(lines).split())


def test_timers_in_a_pipe() -> None:
    """Without a terminal, each timer is one line."""
    timers = [a_timer("x" * 200), a_timer("short", state=State.FAILED, error=ERROR)]
    _, first, second = plain(timer_table(timers, LATER, None))
    assert first.startswith("x" * 200 + "  Scheduled  ")
    assert second.endswith("message size exceeds maximum allowed\\x1b[2J (10054)")


def test_signals_on_a_terminal() -> None:
    """Long conditions are wrapped between words, ids are never cut, and text of users does not act on the terminal."""
    spec = {"kind": "work_item.status.transition", "to": [f"status-{number}" for number in range(20)] + ["\x1b[2J"]}
    signals = [
        a_signal("注文-4713", spec, item="item-1", note="a\nnote"),
        a_signal("broken", {}, status="paused", trigger_error="kind: must be one of these"),
        a_signal("noon", {"kind": "time.at", "at": "2100-01-01T12:00:00+02:00"}, last_error="refused"),
    ]
    lines = plain(signal_table(signals, 80))
    assert max(map(cell_len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
    text = " ".join(" ".join(lines).split())
    assert "item-1: status-0 or status-1 or" in text
    assert "(a\\nnote)" in text
    assert "nothing: kind: must be one of these" in text
    assert "2100-01-01T10:00:00Z (error: refused)" in text


def test_firings() -> None:
    """A firing shows its cause, and its task or the error of a firing that was given up."""
    known: dict[str, Any] = {"tenant": "acme", "signal": "ask", "due_at": LATER, "created_at": LATER, "attempt": 1}
    firings = [
        Firing(firing_id="f1", dedupe_key="event-9", status="enqueued", item="ticket-7", task_id="task-f1", **known),
        Firing(firing_id="f2", dedupe_key="at-1", status="failed", last_error="no\nroom", **known),
        Firing(firing_id="f3", dedupe_key="at-2", status="queued", **known),
    ]
    assert [line.split("Z  ")[-1] for line in plain(firing_table(firings, None))][1:] == [
        "ticket-7: event-9 (task-f1)",
        "at-1 (error: no\\nroom)",
        "at-2",
    ]


def test_runs_on_a_terminal() -> None:
    """A rejection is wrapped below its run if it does not fit beside it."""
    jobs = [f"job-{number:02}" for number in range(20)]
    lines = plain(run_table([a_run("push-1", status="rejected", code="CYCLE", path=jobs)], PAST, 80))
    assert max(map(cell_len, lines)) <= 80
    assert all(job in " ".join(lines) for job in jobs)


def test_graph_on_a_terminal() -> None:
    """Job names are never cut, and text of users does not act on the terminal."""
    name = "注文" * 60
    jobs = [
        RunJob(name=name, status="pending", needs=[{"job": "\x1b[2J", "ifFailed": "skip"}]),
        RunJob(name="\x1b[2J", status="success", needs=[]),
    ]
    graph = RunGraph(run=a_run("run-1"), counts={"pending": 2}, groups={}, jobs=jobs)
    lines = plain(graph_lines(graph, 80))
    assert f"2     {name}" in lines
    assert max(cell_len(line) for line in lines if name not in line) <= 80
    assert "\x1b" not in "".join(lines)


NINE = datetime(2027, 3, 29, 7, tzinfo=UTC)
"""09:00 in Berlin, one day after the clock went forward."""


def a_schedule(name: str, **fields: Any) -> Schedule:
    known = {
        "tenant": "acme",
        "status": "active",
        "jitter": timedelta(),
        "catch_up": CatchUp(policy="last", late_by=timedelta(minutes=1), limit=100),
        "created_at": PAST,
        "fired_count": 0,
    }
    recurrence = {} if "every" in fields else {"cron": "0 9 * * MON-FRI", "zone": "Europe/Berlin"}
    return Schedule(name=name, **{**known, **recurrence, **fields})


@pytest.fixture
def machine_in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("zone", "local"),
    [
        ("Europe/Berlin", "Mon 2027-03-29 09:00:00 CEST"),
        ("UTC", "Mon 2027-03-29 16:00:00 JST"),
        (None, "Mon 2027-03-29 16:00:00 JST"),
        ("Mars/Olympus", None),
        ("../passwd", None),
    ],
)
def test_slots(zone: str | None, local: str | None, machine_in_tokyo: None) -> None:
    """A slot is shown in UTC and in the zone of its schedule. Without one, this machine's zone is shown."""
    (line,) = slot_lines([NINE], zone, NINE - timedelta(hours=3))
    assert line == "  ".join(filter(None, ["2027-03-29T07:00:00Z", local, "in 3 h"]))


def test_slot_at_the_end_of_time(machine_in_tokyo: None) -> None:
    """A slot in the last hours of the year 9999 has no local time in a zone in which the year is 10000."""
    last = datetime(9999, 12, 31, 23, tzinfo=UTC)
    assert list(slot_lines([last], None, last)) == ["9999-12-31T23:00:00Z  now"]


def test_details_of_a_schedule() -> None:
    """Every field of a schedule is shown in words, and text of users does not act on the terminal."""
    schedule = a_schedule(
        "report",
        end_at=NINE + timedelta(days=30),
        max_count=20,
        jitter=timedelta(minutes=5),
        fired_count=3,
        next_slot_at=NINE,
        missed_since=NINE - timedelta(days=1),
        last_slot_at=NINE - timedelta(days=2),
        last_fired_at=NINE - timedelta(days=2) + timedelta(milliseconds=7),
        upcoming=[NINE],
        data={"to": "\x1b[2J"},
    )
    lines = list(schedule_details(schedule, NINE - timedelta(hours=3)))
    assert lines == [
        "acme/report",
        "  status        active",
        "  recurrence    0 9 * * MON-FRI in Europe/Berlin",
        "  ends          2027-04-28T07:00:00Z  Wed 2027-04-28 09:00:00 CEST  (in 30 d 3 h)",
        "  last slot     2027-03-27T07:00:00Z  Sat 2027-03-27 08:00:00 CET  (1 d 21 h ago)",
        "  fired at      2027-03-27T07:00:00.007Z",
        "  slots fired   3 of 20",
        "  missed since  2027-03-28T07:00:00Z  Sun 2027-03-28 09:00:00 CEST  (21 h ago)",
        "  catch up      last: slots up to 1 min late, or else the newest slot; at most 100",
        "  jitter        up to 5 min",
        "  created       2020-01-01T00:00:00.000Z",
        '  data          {"to": "\\u001b[2J"}',
        "upcoming:",
        "  2027-03-29T07:00:00Z  Mon 2027-03-29 09:00:00 CEST  in 3 h",
    ]


def test_details_of_a_schedule_that_does_not_fire() -> None:
    """A paused schedule shows its slots after a resume, an ended one its reason, and a failing one its error."""
    paused = list(schedule_details(a_schedule("report", status="paused", upcoming=[NINE]), NINE))
    assert paused[-2:] == ["upcoming, if it is resumed:", "  2027-03-29T07:00:00Z  Mon 2027-03-29 09:00:00 CEST  now"]
    ended = schedule_details(a_schedule("report", status="ended", end_reason="max_count", ended_at=NINE), NINE)
    assert {"  status       ended: max_count", "  ended        2027-03-29T07:00:00.000Z"} <= set(ended)
    failing = schedule_details(a_schedule("report", last_error="no zone\x1b[2J"), NINE)
    assert "  last error   no zone\\x1b[2J (tried again every minute)" in list(failing)
    start = ScheduleStart(type="order", queue="big", input=[1], deadline_in=timedelta(hours=1), concurrency_key="k")
    starting = schedule_details(a_schedule("report", start=start, last_skipped_at=NINE, last_skip_reason="busy"), NINE)
    lines = {" ".join(line.split()) for line in starting}
    assert {"workflow order in the queue big", "input [1]", "deadline in 1 h", "key k"} <= lines
    assert [line.endswith(": busy") for line in lines if line.startswith("last skipped")] == [True]


def test_details_of_backfills() -> None:
    """A schedule shows its open backfills: the range, how far they are, and the error."""
    span = {"from_at": NINE - timedelta(days=2), "to_at": NINE, "limit": 100}
    waiting = Backfill(command_id="1", count=0, skipped=0, **span)
    going_on = Backfill(command_id="2", count=7, skipped=1, last_slot_at=NINE - timedelta(days=1), **span)
    failing = Backfill(command_id="3", count=0, skipped=0, last_error="no zone", retry_at=NINE, **span)
    lines = list(schedule_details(a_schedule("report", backfills=[waiting, going_on, failing]), NINE))
    head = "  2027-03-27T07:00:00.000Z to 2027-03-29T07:00:00.000Z:"
    assert lines[-4:] == [
        "backfills:",
        f"{head} 0 slots of at most 100 fired",
        f"{head} 7 slots of at most 100 fired, 1 skipped; all up to 2027-03-28T07:00:00.000Z",
        f"{head} 0 slots of at most 100 fired (error: no zone; again at 2027-03-29T07:00:00.000Z)",
    ]


def test_schedules_on_a_terminal() -> None:
    """Lines fit the terminal, an id is never cut, and an error is wrapped."""
    schedules = [
        a_schedule("x" * 200, next_slot_at=NINE),
        a_schedule("tick", every=timedelta(minutes=90), status="paused"),
        a_schedule("broken", last_error=ERROR),
    ]
    _, long_id, *lines = plain(schedule_table(schedules, NINE - timedelta(minutes=3), 80))
    assert long_id == "x" * 200
    assert max(map(cell_len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
    text = " ".join(" ".join(lines).split())
    assert "active 2027-03-29T07:00:00Z in 3 min 0 9 * * MON-FRI in Europe/Berlin" in text
    assert "tick paused every 1 h 30 min" in text
    assert "(error: message size exceeds maximum allowed\\x1b[2J (10054))" in text


def test_events_of_schedules() -> None:
    """An event is one line: when, which schedule, its slot and how late it fired."""
    names = {"tenantId": "acme", "scheduleId": "report"}
    slot = {**names, "slotAt": "2027-03-29T07:00:00.000Z", "firedAt": "2027-03-29T07:00:00.004Z", "cause": "slot"}
    late = {**slot, "missedSince": "2027-03-28T07:00:00.000Z", "data": {"to": "team"}}
    fired = "2027-03-29T07:00:00.004Z  acme/report  slot 2027-03-29T07:00:00.000Z (+4 ms)"
    assert schedule_event_line({"type": "ScheduleFired", "payload": slot}) == fired
    assert schedule_event_line({"type": "ScheduleFired", "payload": late}) == (
        f'{fired}  missed since 2027-03-28T07:00:00.000Z  {{"to": "team"}}'
    )
    skipped = {**names, "slotAt": "2027-03-29T07:00:00.000Z", "skippedAt": "2027-03-29T07:00:00.004Z", "cause": "slot"}
    payload = {**skipped, "reason": "busy", "workflowId": "report/x\x1b"}
    assert schedule_event_line({"type": "ScheduleSkipped", "payload": payload}) == (
        "2027-03-29T07:00:00.004Z  acme/report  slot 2027-03-29T07:00:00.000Z skipped: busy  report/x\\x1b"
    )
    span = {"from": "2027-03-01T00:00:00.000Z", "to": "2027-03-29T00:00:00.000Z"}
    done = {**names, **span, "commandId": "1", "count": 28, "skipped": 0, "reason": "done"}
    head = "1970-01-01T00:00:00.001Z  acme/report  backfilled 2027-03-01T00:00:00.000Z to 2027-03-29T00:00:00.000Z"
    assert schedule_event_line({"type": "ScheduleBackfilled", "timestampMs": 1, "payload": done}) == (
        f"{head}: 28 slots (done)"
    )
    limited = {**done, "skipped": 2, "reason": "limit", "nextSlotAt": "2027-03-28T07:00:00.000Z"}
    assert schedule_event_line({"type": "ScheduleBackfilled", "timestampMs": 1, "payload": limited}) == (
        f"{head}: 28 slots, 2 skipped (limit; the next slot is 2027-03-28T07:00:00.000Z)"
    )
    ended = {"type": "ScheduleEnded", "timestampMs": 1, "payload": {**names, "reason": "max_count"}}
    assert schedule_event_line(ended) == "1970-01-01T00:00:00.001Z  acme/report  ended: max_count"


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(), "0 s"),
        (timedelta(milliseconds=1500), "1 s 500 ms"),
        (timedelta(days=366, hours=1, minutes=2), "366 d 1 h 2 min"),
    ],
)
def test_durations(duration: timedelta, text: str) -> None:
    """A duration has all its units."""
    assert format_duration(duration) == text


def test_times() -> None:
    """All instants are printed in UTC, in the form that --at accepts."""
    at = datetime.fromisoformat("2026-11-21T09:00:00.123+02:00")
    assert format_time(at) == "2026-11-21T07:00:00Z"
    assert format_time(at, milliseconds=True) == "2026-11-21T07:00:00.123Z"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "now"),
        (0.5, "in 500 ms"),
        (5.2, "in 5 s"),
        (59.9, "in 59 s"),
        (200, "in 3 min 20 s"),
        (7200, "in 2 h"),
        (2 * 3600 + 59 * 60 + 59, "in 2 h 59 min"),
        (200_000, "in 2 d 7 h"),
        (86_400 + 59, "in 1 d"),
        (-3, "3 s ago"),
        (-90, "1 min 30 s ago"),
    ],
)
def test_distances(seconds: float, text: str) -> None:
    """A distance has its two largest units."""
    now = datetime(2026, 11, 21, tzinfo=UTC)
    assert format_distance(now + timedelta(seconds=seconds), now) == text


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR removes all terminal codes."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert style("text", colour="red") != "text"
    monkeypatch.setenv("NO_COLOR", "1")
    assert style("text", colour="red", bold=True) == "text"
    assert "\x1b" not in "".join(timer_table([a_timer("call-1", state=State.FAILED)], PAST, 80))


@pytest.mark.parametrize("as_json", [False, True])
def test_more_rows(*, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """A page that is not the last one has a warning with the cursor on stderr."""
    rows = [{"name": "one"}]
    print_list(Listing(rows, "CURSOR"), "timers", lambda _: ["one"], as_json=as_json)
    output, errors = capsys.readouterr()
    assert (json.loads(output) == rows) if as_json else (output == "one\n")
    assert errors == "There are more timers. Add --all for all of them, or --cursor CURSOR for the next page.\n"


@pytest.mark.parametrize(("as_json", "expected"), [(False, ("", "no timers\n")), (True, ("[]\n", ""))])
def test_empty_list(*, as_json: bool, expected: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """An empty list says so on stderr; as JSON it is an empty array."""
    print_list(Listing([], None), "timers", lambda _: ["head"], as_json=as_json)
    assert tuple(capsys.readouterr()) == expected


def test_rejections() -> None:
    """A rejection names the fields as the user wrote them, and not in the words of the validation library."""
    errors = [
        {"path": "payload.jobs.0.need", "reason": "Extra inputs are not permitted"},
        {"path": "payload.jobs.1.name", "reason": "Field required"},
        {"path": "payload.groups", "reason": "Input should be a valid list"},
    ]
    error = CommandError("INVALID_PAYLOAD", "the payload is invalid", errors)
    assert rejection_text(error) == (
        "INVALID_PAYLOAD: jobs.0.need is not a known field; jobs.1.name is missing; groups must be a valid list"
    )
    assert rejection_text(CommandError("TOO_LARGE", "too many bytes")) == "TOO_LARGE: too many bytes"


def test_plain_words() -> None:
    """Messages of the validation library are reworded; other messages are not changed."""
    assert plain_words("Value error, 'x' is not one of 'a'") == "'x' is not one of 'a'"
    assert plain_words("Input should be a valid integer, unable to parse string as an integer") == (
        "must be a valid integer"
    )
    assert plain_words("must be 1 to 64 letters") == "must be 1 to 64 letters"


AT = "2100-01-01T09:30:00.000Z"
EVENTS_OF_RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "acme/push-1/lint  ready": ("JobReady", {"jobName": "lint"}),
    "acme/push-1/lint  skipped: upstream_failed": ("JobSkipped", {"jobName": "lint", "reason": "upstream_failed"}),
    "acme/push-1  ended: failed (2 success, 1 failed)": (
        "RunCompleted",
        {"status": "failed", "counts": {"success": 2, "failed": 1, "skipped": 0}},
    ),
    "acme/push-1  rejected: CYCLE a b a": ("RunRejected", {"code": "CYCLE", "path": ["a", "b", "a"]}),
    "acme/push-1  stuck: a\\x1b[2J": ("RunStuck", {"jobs": ["a\x1b[2J"]}),
}


@pytest.mark.parametrize("line", EVENTS_OF_RUNS)
def test_lines_of_runs(line: str) -> None:
    """Each event of a run is one line that names the run, the job and what happened."""
    message_type, payload = EVENTS_OF_RUNS[line]
    about = {"tenantId": "acme", "runId": "push-1", **payload}
    event = {"type": message_type, "timestampMs": round(LATER.timestamp() * 1000), "payload": about}
    assert run_event_line(event) == f"{AT}  {line}"


def test_lines_of_signals() -> None:
    """The events of a signal name its work item and its task, or the error of a firing that was given up."""
    about = {"tenantId": "acme", "signalId": "ask", "workItemId": "ticket"}
    fired = {"type": "work.signal.fired", "payload": {**about, "firedAt": AT, "taskId": "t1"}}
    assert signal_event_line(fired) == f"{AT}  acme/ask  ticket  fired  task t1"
    failed = {"type": "work.signal.failed", "payload": {**about, "failedAt": AT, "error": "no\nroom"}}
    assert signal_event_line(failed) == f"{AT}  acme/ask  ticket  failed: no\\nroom"
    at_an_instant = {"type": "work.signal.fired", "payload": {"tenantId": "acme", "signalId": "ask", "firedAt": AT}}
    assert signal_event_line(at_an_instant) == f"{AT}  acme/ask  fired"
