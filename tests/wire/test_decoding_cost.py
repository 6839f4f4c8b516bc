"""What hostile commands of 1 MiB cost before they are rejected: memory, faults, and time of the event loop."""

import asyncio
import math
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.harness.builders import command_address, raw_command, schedule_timer
from timer_service.app.slices import SLICES
from timer_service.core.intake.decoder import decode
from timer_service.core.intake.rejection import Rejected
from timer_service.core.ports import turns as turns_module
from timer_service.core.values.address import MAX_MESSAGE_BYTES, kebab
from timer_service.core.values.codec import MAX_BRACKETS, MAX_FIELDS
from timer_service.core.values.errors import Code
from timer_service.core.values.raw_command import RawCommand

PAYLOADS = {payload.type: payload for each in SLICES for payload in each.commands}
HEADERS = {f"{number:04}": "" for number in range(8_000)}
"""64 KiB of headers."""
RUN = '"tenantId":"acme","runId":"r",'
TIMER = '"serviceCallId":"x","dueAt":"2030-01-01T00:00:00Z",'


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Callable[[], int]]:
    """Yield a function that returns how often another task of the event loop has run since the block began."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    yield lambda: turns
    counting.cancel()


def filled(message_type: str, before: str, unit: str, after: str) -> RawCommand:
    """Return a command of 1 MiB whose payload repeats `unit`. `{}` in it becomes a number."""
    start = f'{{"type":"{message_type}","tenantId":"acme","payload":{{{before}'
    end = f"{after}}}}}"
    room = MAX_MESSAGE_BYTES - len(start) - len(end)
    units: list[str] = []
    while (room := room - len(text := unit.replace("{}", f"{len(units):x}")) - 1) > 0:
        units.append(text)
    body = (start + ",".join(units) + end).encode()
    return raw_command(body, address=command_address("acme", kebab(message_type)))


async def decode_rejected(command: RawCommand) -> Rejected:
    """Return the rejection of a command."""
    (rejected,) = await decode([command], PAYLOADS)
    assert isinstance(rejected, Rejected)
    return rejected


HOSTILE = {
    "data of zeros": ("ScheduleTimer", TIMER + '"data":[', "0", "]"),
    "data of objects": ("ScheduleTimer", TIMER + '"data":[', "{ }", "]"),
    "deep data": ("ScheduleTimer", TIMER + '"data":[', "[" * 150 + "]" * 150, "]"),
    "huge numbers": ("ScheduleTimer", TIMER + '"data":[', "9" * 4000, "]"),
    "unknown fields": ("ScheduleTimer", TIMER, '"{}":0', ""),
    "needs of zeros": ("StartRun", RUN + '"jobs":[{"name":"a","needs":[', "0", "]}]"),
    "jobs of zeros": ("StartRun", RUN + '"jobs":[', "0", "]"),
    "unknown fields of a job": ("StartRun", RUN + '"jobs":[{"name":"a",', '"{}":0', "}]"),
    "unknown fields of a need": ("StartRun", RUN + '"jobs":[{"name":"a","needs":[{"job":"a",', '"{}":0', "}]}]"),
    "jobs of a group": ("ResolveGroup", RUN + '"groupName":"g","jobs":[', '{"name":0}', "]"),
    "trigger": ("CreateWorkSignal", '"signalId":"s","triggerKind":"event","triggerSpec":{', '"{}":0', "}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
async def test_memory_of_a_hostile_command(name: str) -> None:
    """A hostile command takes at most 25 times its bytes, and has at most 20 faults."""
    command = filled(*HOSTILE[name])
    tracemalloc.start()
    try:
        rejected = await decode_rejected(command)
        rejected.letter(MAX_MESSAGE_BYTES)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rejected.rejection.code in {Code.INVALID_PAYLOAD, Code.TOO_LARGE}
    assert len(rejected.rejection.faults) <= 20
    assert peak < 25 * len(command.body), f"{peak / len(command.body):.1f} times"
    assert kept < 2.5 * len(command.body), f"{kept / len(command.body):.1f} times"


@pytest.mark.parametrize(
    ("objects", "code"), [(MAX_BRACKETS - 100, "payload.data"), (MAX_BRACKETS, "arrays and objects")]
)
async def test_most_objects(objects: int, code: str) -> None:
    """A command with too many arrays and objects is rejected before it is parsed."""
    rejected = await decode_rejected(raw_command(schedule_timer(data=[{}] * objects)))
    assert rejected.rejection.code is Code.TOO_LARGE
    assert code in rejected.rejection.message


@pytest.mark.parametrize(("fields", "faults"), [(MAX_FIELDS - 2, 20), (MAX_FIELDS, 1)])
async def test_most_fields(fields: int, faults: int) -> None:
    """Unknown fields are listed up to 20. A payload with more than 1,000 fields has one fault: their number."""
    unknown: dict[str, Any] = {f"field-{number}": 0 for number in range(fields - 1)}
    rejected = await decode_rejected(raw_command(schedule_timer(**unknown)))
    assert (rejected.rejection.code, len(rejected.rejection.faults)) == (Code.INVALID_PAYLOAD, faults)


async def test_other_tasks_run_between_large_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run before each command of 64 KiB, and after about 64 KiB of small commands. Headers count too."""
    monkeypatch.setattr(turns_module, "LONG_SECONDS", math.inf)  # a pause on a slow machine has many turns

    async def measured(batch: list[RawCommand]) -> int:
        async with counted_turns() as turns:
            assert len(await decode(batch, PAYLOADS)) == len(batch)
            return turns()

    assert await measured([raw_command(b'"' + b"x" * 70_000 + b'"')] * 10) >= 10
    assert 10 <= await measured([raw_command(schedule_timer(data="x" * 900))] * 1000) <= 100
    assert await measured([raw_command(b"", headers=HEADERS)] * 10) >= 9
