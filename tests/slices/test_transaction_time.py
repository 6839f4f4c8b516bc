"""How long one transaction decodes and applies commands."""

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any, ClassVar, Self

import pytest
from pydantic import model_validator

from tests.harness.builders import command_address
from tests.harness.clock import ManualClock, after, iso
from tests.harness.in_process import InProcess
from tests.harness.transactions import recording_route
from timer_service import signals, timers
from timer_service.adapters.memory import MemoryBroker
from timer_service.app.slices import SCHEDULES
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.service.slice import Slice
from timer_service.core.values.message import Command, TenantPayload

COMMANDS: dict[str, tuple[Slice, str, dict[str, Any]]] = {
    "timers": (timers.SLICE, "ScheduleTimer", {"serviceCallId": "{}", "dueAt": iso(after(hours=1))}),
    "prefixes of timers": (timers.SLICE, "CancelTimers", {"prefix": "{}"}),
    "schedules": (SCHEDULES, "PutSchedule", {"scheduleId": "{}", "every": "PT1M"}),
    "signals": (
        signals.SLICE,
        "CreateWorkSignal",
        {"signalId": "{}", "triggerKind": "time", "triggerSpec": {"kind": "time.at", "at": iso(after(hours=1))}},
    ),
    "transitions": (signals.SLICE, "TransitionWorkItem", {"workItemId": "{}", "to": "blocked"}),
}


@pytest.mark.parametrize("name", COMMANDS)
async def test_handlers_stop_in_time(
    name: str, store: Database, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """If each command takes a second, each has its own transaction, in their order. All are applied."""
    slice_, kind, fields = COMMANDS[name]
    process = InProcess(store, memory_broker, clock, slice_)
    slow = partial(slice_.handle, quotas=Quotas(), monotonic=count().__next__)  # type: ignore[call-arg]
    route, applied = recording_route(slice_, process._woken, handle=slow)
    process.reader = process.parts.reader([route], process._wake_outbox)
    names = ["a", "b", "c"]
    for each in names:
        values: dict[str, Any] = {key: each if value == "{}" else value for key, value in fields.items()}
        process.send(kind, **values)
    await process.consume()
    assert [[name for name in names if f"'{name}'" in repr(payload)] for (payload,) in applied] == [
        ["a"],
        ["b"],
        ["c"],
    ]


class Slow(TenantPayload):
    """A command that takes 20 ms to decode."""

    type: ClassVar[str] = "Slow"
    clock: ClassVar[ManualClock]

    @model_validator(mode="after")
    def _take_time(self) -> Self:
        self.clock.advance(milliseconds=20)
        return self


async def test_decoding_stops_in_time(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """Commands that were decoded for 50 ms are applied first. The rest waits, and its tenants take turns."""
    Slow.clock = clock
    transactions: list[list[str]] = []

    async def handle(_tx: Transaction, commands: Sequence[Command], _now: int) -> list[CommandResult]:
        transactions.append([each.tenant for each in commands])
        return [CommandResult("done")] * len(commands)

    async def wake(_at: int, _loop: str | None) -> None:
        pass

    process = InProcess(store, memory_broker, clock, timers.SLICE)
    process.reader = process.parts.reader([Route((Slow,), handle, wake)], process._wake_outbox)
    for number in range(12):
        tenant = "late" if number == 11 else "acme"
        body = b'{"type":"Slow","payload":{},"tenantId":"%s"}' % tenant.encode()
        memory_broker.send(command_address(tenant, "slow"), body, message_id=str(number))
    await process.consume()
    assert transactions == [["acme"] * 4, ["acme"] * 4, ["late", *["acme"] * 3]]
