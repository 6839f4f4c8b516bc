"""What the command line prints."""

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.cells import cell_len

from timer_service.cli.output.lists import Listing, print_list
from timer_service.cli.output.outcomes import rejection_text
from timer_service.cli.output.runs import graph_lines, run_table
from timer_service.cli.output.signals import signal_table
from timer_service.cli.output.text import format_distance, format_time, style
from timer_service.cli.output.timers import timer_table
from timer_service.client import CommandError, Run, RunGraph, RunJob, Signal, State, Timer
from timer_service.core.codec import plain_words

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
    assert "message size exceeds maximum allowed [2J (10054)" in " ".join(" ".join(lines).split())


def test_timers_in_a_pipe() -> None:
    """Without a terminal, each timer is one line."""
    timers = [a_timer("x" * 200), a_timer("short", state=State.FAILED, error=ERROR)]
    _, first, second = plain(timer_table(timers, LATER, None))
    assert first.startswith("x" * 200 + "  Scheduled  ")
    assert second.endswith("message size exceeds maximum allowed [2J (10054)")


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
    assert "(a note)" in text
    assert "nothing: kind: must be one of these" in text
    assert "2100-01-01T10:00:00Z (error: refused)" in text


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
