"""How long one transaction decodes and applies commands."""

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any, ClassVar, Self

import pytest
from pydantic import model_validator

from tests.harness.builders import command_address
from tests.harness.clock import ManualClock, after, iso
from tests.harness.history import MemoryHistory
from tests.harness.in_process import InProcess
from tests.harness.transactions import recording_route
from timer_service import runs, signals, timers
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
    "runs": (runs.SLICE, "StartRun", {"runId": "{}", "jobs": [{"name": "job"}]}),
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
    process.consumer = process.parts.consumer([route])
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
    """Commands that were decoded for 50 ms are applied first. After 150 ms the rest is put back; tenants take turns."""
    Slow.clock = clock
    transactions: list[int] = []

    async def handle(_tx: Transaction, commands: Sequence[Command], _now: int) -> list[CommandResult]:
        transactions.append(len(commands))
        return [CommandResult("done")] * len(commands)

    async def wake(_at: int, _loop: str | None) -> None:
        pass

    process = InProcess(store, memory_broker, clock, timers.SLICE)
    consumer = process.parts.consumer([Route((Slow,), handle, wake)])
    for number in range(12):
        tenant = "late" if number == 11 else "acme"
        body = b'{"type":"Slow","payload":{},"tenantId":"%s"}' % tenant.encode()
        memory_broker.send(command_address(tenant, "slow"), body, message_id=str(number))
    subscription = await memory_broker.subscribe(MemoryHistory())
    await consumer.handle(subscription, await subscription.next_batch(100))
    assert transactions == [4, 4]
    assert [each.message_id for each in await subscription.next_batch(100)] == ["11", "8", "9", "10"]


@pytest.mark.parametrize(("milliseconds", "handled"), [(100, 1), (60, 2), (200, 1)])
async def test_costly_parts_fit_into_the_time_of_a_batch(
    milliseconds: int, handled: int, store: Database, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """One large command of a batch is handled, and another one only if as much time is left as the last one took."""
    applied = 0

    async def handle(_tx: Transaction, commands: Sequence[Command], _now: int) -> list[CommandResult]:
        nonlocal applied
        applied += len(commands)
        clock.advance(milliseconds=milliseconds)
        return [CommandResult("done")] * len(commands)

    async def wake(_at: int, _loop: str | None) -> None:
        pass

    process = InProcess(store, memory_broker, clock, timers.SLICE)
    consumer = process.parts.consumer([Route(timers.SLICE.commands, handle, wake)])
    for number in range(3):
        body = b'{"type":"CancelTimer","tenantId":"acme","payload":{"serviceCallId":"a"}}'.ljust(600_000)
        memory_broker.send(command_address("acme", "cancel-timer"), body, message_id=str(number))
    subscription = await memory_broker.subscribe(MemoryHistory())
    _, left = await consumer.handle(subscription, await subscription.next_batch(100))
    assert (applied, left) == (handled, 3 - handled)
