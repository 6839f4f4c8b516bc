"""The commands of a batch are handled in bounded transactions. What a handler leaves waits for its turn."""

from collections.abc import Sequence
from functools import partial

import pytest

from tests.harness.builders import cancel_timer, schedule_timer
from tests.harness.clock import NOW
from tests.harness.reading import catch_up
from tests.harness.timers import Timers
from tests.harness.transactions import recording_route
from timer_service.core.intake.batch import MOST_DATA
from timer_service.core.intake.route import CommandResult, Handle
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.core.values.message import Command, CommandPayload
from timer_service.timers import SLICE

LARGE = "x" * 60_000


def record(timers: Timers, handle: Handle) -> list[list[CommandPayload]]:
    """Give the timers a reader with this handler. Return a list that gets what each of its transactions applied."""
    route, applied = recording_route(SLICE, timers.wake, handle=handle)
    timers.read_for(route)
    return applied


def names(applied: Sequence[Sequence[CommandPayload]]) -> list[str]:
    """Return the calls that each transaction applied, in order."""
    return [" ".join(each.service_call_id for each in payloads) for payloads in applied]  # type: ignore[attr-defined]


def applying(timers: Timers, at_once: int) -> Handle:
    """Return a handler that applies the first commands, and leaves the others."""

    async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        return await timers.handle(tx, commands[:at_once], now)

    return handle


def send(timers: Timers, calls: str) -> None:
    """Send a ScheduleTimer for each call. Its first letter is its tenant."""
    for call in calls.split():
        timers.send(schedule_timer(call, tenant=call[0]), tenant=call[0])


@pytest.mark.slow
async def test_timers_with_much_data(timers: Timers) -> None:
    """Small commands on timers with much data are applied in transactions that hold a limited number of bytes."""
    for number in range(600):
        timers.send(schedule_timer(f"call-{number:03}", due_at=NOW + 60_000, data=LARGE))
    await timers.consume()
    await timers.stop_reading()
    applied = record(timers, partial(SLICE.handle, quotas=Quotas()))
    for number in range(600):
        timers.send(cancel_timer(f"call-{number:03}"), message="cancel-timer")
    await timers.consume()
    assert max(map(len, applied)) == MOST_DATA // (len(LARGE) + 2)
    assert timers.outcomes() == {"scheduled": 600, "cancelled": 600}


async def test_tenants_take_turns_in_what_was_left(timers: Timers) -> None:
    """The commands that a handler leaves are applied later: the tenants take turns, each tenant's are in order."""
    applied = record(timers, applying(timers, 1))
    send(timers, "a1 a2 a3 a4 b1 b2 c1")
    await timers.consume()
    found = names(applied)
    assert sorted(found[:4]) == ["a1", "a2", "b1", "c1"]
    assert [each for each in found if each < "b"] == ["a1", "a2", "a3", "a4"]
    assert (len(found), timers.outcomes()) == (7, {"scheduled": 7})


async def test_new_commands_behind_those_that_were_left(timers: Timers) -> None:
    """While commands of a tenant wait, its next ones wait behind them."""
    applied = record(timers, applying(timers, 2))
    send(timers, "a1 a2 a3 a4 a5")
    assert await timers.reader.begin()
    await timers.reader.turn()
    send(timers, "a6 b1")
    await timers.consume()
    assert [each for each in " ".join(names(applied)).split() if each != "b1"] == ["a1", "a2", "a3", "a4", "a5", "a6"]
    assert timers.outcomes() == {"scheduled": 7}


async def test_an_outage_while_commands_wait(timers: Timers) -> None:
    """If the database fails while the commands that were left are handled, they wait. Each is applied once."""
    calls = 0

    async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        nonlocal calls
        calls += 1
        results = await applying(timers, 1)(tx, commands, now)
        if 1 < calls < 4:
            raise DatabaseUnavailableError("gone")
        return results

    timers.read_with(handle)
    send(timers, "a1 a2 b1")
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError):
            await catch_up(timers.reader)
    assert timers.outcomes() == {"scheduled": 1}
    await timers.consume()
    assert (timers.outcomes(), timers.broker.dead_letters) == ({"scheduled": 3}, [])


async def test_a_handler_that_applies_nothing(timers: Timers) -> None:
    """A handler that applies nothing is a fault. It does not stop other tenants' commands."""

    async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        if any(each.tenant == "a" for each in commands):
            return []
        return await timers.handle(tx, commands, now)

    timers.read_with(handle)
    send(timers, "b1 a1 b2")
    await timers.consume()
    assert timers.outcomes() == {"scheduled": 2}
    timers.clock.advance(seconds=1)
    await timers.consume()
    (letter,) = timers.broker.dead_letters
    assert letter.headers["Timer-Error-Code"] == "INTERNAL"


async def test_a_new_timer_behind_too_much_data(timers: Timers) -> None:
    """New timers are added first. If one is behind a command without room, the transaction is repeated without it."""
    for number in range(40):
        timers.send(schedule_timer(f"call-{number:03}", due_at=NOW + 60_000, data=LARGE))
    await timers.consume()
    await timers.stop_reading()
    applied = record(timers, partial(SLICE.handle, quotas=Quotas()))
    for number in range(40):
        timers.send(cancel_timer(f"call-{number:03}"), message="cancel-timer")
    timers.send(schedule_timer("new"))
    await timers.consume()
    assert names(applied)[0].split() == [f"call-{number:03}" for number in range(len(names(applied)[0].split()))]
    assert names(applied)[-1].split()[-1] == "new"
    assert timers.outcomes() == {"scheduled": 41, "cancelled": 40}
