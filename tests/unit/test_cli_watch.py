"""What the commands `watch` print."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from timer_service.cli.output.runs import run_event_line
from timer_service.cli.output.schedules import schedule_event_line
from timer_service.cli.output.signals import signal_event_line
from timer_service.cli.output.timers import timer_event_line
from timer_service.cli.watch import print_events

Event = Mapping[str, Any]
STRANGE: list[Event] = [
    {"type": "X", "payload": {}},
    {"type": "X", "timestampMs": 10**30, "payload": {"runId": "r", "tenantId": "acme", "text": "\x1b[2J"}},
]
READY: Event = {
    "type": "JobReady",
    "timestampMs": 0,
    "payload": {"tenantId": "acme", "runId": "r", "jobName": "j", "readyAt": "1970-01-01T00:00:00.000Z"},
}


async def watched(*events: Event) -> AsyncIterator[Event]:
    for event in events:
        yield event


@pytest.mark.parametrize("to_line", [timer_event_line, signal_event_line, run_event_line, schedule_event_line])
async def test_strange_events_do_not_end_a_watch(
    to_line: Callable[[Event], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A message that is no event of the service, as anyone can publish without accounts, is named on stderr."""
    await print_events(watched(*STRANGE), to_line, "acme", as_json=False)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[1:] == [f"Cannot be read as an event: {json.dumps(each)}" for each in STRANGE]


async def test_events_after_a_strange_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The events after it are printed. With --json, all are."""
    await print_events(watched(*STRANGE, READY), run_event_line, "acme", as_json=False)
    assert capsys.readouterr().out == f"{run_event_line(READY)}\n"
    await print_events(watched(*STRANGE), run_event_line, "acme", as_json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == STRANGE
