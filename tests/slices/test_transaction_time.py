"""How long one transaction applies commands."""

from typing import Any

import pytest

from tests.harness.clock import ManualClock, after, iso
from tests.harness.in_process import InProcess
from tests.harness.memory_broker import MemoryBroker
from tests.harness.transactions import recording_route
from timer_service import runs, signals, timers
from timer_service.app.slices import SCHEDULES
from timer_service.core.ports import turns
from timer_service.core.ports.database import Database
from timer_service.core.service.slice import Slice

COMMANDS: dict[str, tuple[Slice, str, dict[str, Any]]] = {
    "timers": (timers.SLICE, "CancelTimer", {"serviceCallId": "{}"}),
    "prefixes of timers": (timers.SLICE, "CancelTimers", {"prefix": "{}"}),
    "schedules": (SCHEDULES, "PutSchedule", {"scheduleId": "{}", "every": "PT1M"}),
    "signals": (
        signals.SLICE,
        "CreateWorkSignal",
        {"signalId": "{}", "triggerKind": "time", "triggerSpec": {"kind": "time.at", "at": iso(after(hours=1))}},
    ),
    "runs": (runs.SLICE, "CancelRun", {"runId": "{}"}),
    "transitions": (signals.SLICE, "TransitionWorkItem", {"workItemId": "{}", "to": "blocked"}),
}


async def wake_nothing(*_: object) -> None:
    """Wake no loop."""


@pytest.mark.parametrize("name", COMMANDS)
async def test_handlers_stop_in_time(
    name: str, store: Database, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each command takes too long, each has its own transaction, in their order. All are applied."""
    monkeypatch.setattr(turns, "TRANSACTION_SECONDS", -1)
    slice_, kind, fields = COMMANDS[name]
    process = InProcess(store, memory_broker, clock, slice_)
    route, applied = recording_route(slice_, wake_nothing)
    process.reader = process.parts.reader([route], wake_nothing)
    names = ["a", "b", "c"]
    for each in names:
        values: dict[str, Any] = {key: each if value == "{}" else value for key, value in fields.items()}
        process.send(kind, **values)
    await process.consume()
    assert [[name for name in names if f"'{name}'" in repr(payload)] for (payload,) in applied] == [["a"], ["b"], ["c"]]
