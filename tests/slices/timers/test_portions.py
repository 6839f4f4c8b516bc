"""A batch is handled in bounded transactions, and only for a bounded time."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import pytest

from tests.harness.builders import cancel_timer, schedule_timer
from tests.harness.clock import NOW, ManualClock
from tests.harness.timers import Timers
from tests.harness.transactions import recording_route
from tests.harness.wiring import make_parts
from timer_service.core.due.portions import MOST_DATA
from timer_service.core.intake.route import CommandResult, Handle
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.core.values.message import Command, CommandPayload, Position
from timer_service.timers import SLICE

LARGE = "x" * 60_000


def consumer_of(timers: Timers, handle: Handle | None = None) -> list[list[CommandPayload]]:
    """Give the timers a new consumer. Return what each of its transactions applied."""
    # Only bytes bound a transaction, however slow the machine is.
    by_bytes = partial(SLICE.handle, quotas=Quotas(), monotonic=lambda: 0.0)  # type: ignore[call-arg]
    route, applied = recording_route(SLICE, timers._wake, handle=handle or by_bytes)
    parts = make_parts(timers.database, timers.broker, timers.clock, timers.metrics)
    timers.consumer = parts.consumer([route])
    return applied


def slow(clock: ManualClock, seconds: float, at_once: int = 1) -> Handle:
    """Return a handler that applies `at_once` commands and takes some time."""

    async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult | None]:
        clock.advance(seconds=seconds)
        results = await SLICE.handle(tx, commands[:at_once], now, quotas=Quotas())
        return [*results, *[None] * (len(commands) - len(results))]

    return handle


async def handle_batch(timers: Timers) -> list[str]:
    """Handle one batch. Return the ids of the next batch."""
    subscription = await timers.broker.subscribe()
    await timers.consumer.handle(subscription, await subscription.next_batch(1000))
    return [delivery.message_id for delivery in await subscription.next_batch(1000)] if timers.broker.waiting else []


def send(timers: Timers, names: str) -> list[Position]:
    """Send a ScheduleTimer for each name. The letter of a name is its tenant."""
    return [
        timers.send(schedule_timer(name, tenant=name[0]), message_id=name, tenant=name[0]) for name in names.split()
    ]


@pytest.mark.slow
async def test_timers_with_much_data(timers: Timers) -> None:
    """Small commands on timers with much data are applied in transactions that hold a limited number of bytes."""
    for number in range(600):
        timers.send(schedule_timer(f"call-{number}", due_at=NOW + 60_000, data=LARGE))
    await timers.consume()
    applied = consumer_of(timers)
    for number in range(600):
        timers.send(cancel_timer(f"call-{number}"), message="cancel-timer")
    await timers.consume()
    fitting = MOST_DATA // (len(LARGE) + 2)
    assert [len(payloads) for payloads in applied] == [fitting] * (600 // fitting) + [600 % fitting]
    assert timers.outcomes() == {"scheduled": 600, "cancelled": 600}


async def test_the_rest_of_a_slow_batch_is_put_back(timers: Timers, clock: ManualClock) -> None:
    """After 150 ms, the commands that are not handled are put back. Their tenants take turns, served ones last."""
    consumer_of(timers, slow(clock, 0.1))
    positions = send(timers, "a1 a2 a3 a4 b1 b2 c1")
    assert await handle_batch(timers) == ["c1", "b2", "a2", "a3", "a4"]
    assert timers.broker.settlements.acknowledged == [positions[0], positions[4]]
    assert timers.broker.settlements.retried == []


async def test_the_size_of_the_next_batch_knows_what_was_left(
    timers: Timers, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of which only one command was put back was cut: its time comes from its commands."""
    consumer_of(timers, slow(clock, 0.1))
    recorded: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        timers.consumer._batch_size, "record", lambda size, _seconds, *, cut: recorded.append((size, cut))
    )
    positions = send(timers, "a1 a2 a3")
    subscription = await timers.broker.subscribe()
    running = asyncio.create_task(timers.consumer.run(subscription))
    async with asyncio.timeout(30):
        while len(timers.broker.settlements.acknowledged) < len(positions):
            await asyncio.sleep(0)
        await subscription.close()
        await running
    assert recorded == [(2, True), (1, False)]


async def test_a_fast_batch_is_handled_whole(timers: Timers, clock: ManualClock) -> None:
    """Commands that a handler defers are handled in further transactions, while there is time."""
    applied = consumer_of(timers, slow(clock, 0.01))
    send(timers, "a1 a2 a3 b1")
    assert await handle_batch(timers) == []
    assert [[each.tenant_id for each in payloads] for payloads in applied] == [["a"], ["b"], ["a"], ["a"]]


async def test_each_batch_handles_something(timers: Timers, clock: ManualClock) -> None:
    """However slow each command is, all commands are handled, each in its turn, at their first attempt."""
    consumer_of(timers, slow(clock, 5))
    positions = send(timers, "a1 a2 a3 b1 b2")
    await timers.consume()
    assert [timers.broker.settlements.acknowledged.index(each) for each in positions] == [0, 2, 4, 1, 3]


async def test_a_clock_that_is_set_back(timers: Timers, clock: ManualClock) -> None:
    """A clock that is set back during a batch ends the batch early."""
    consumer_of(timers, slow(clock, -3600))
    send(timers, "a1 a2 b1")
    assert await handle_batch(timers) == ["b1", "a2"]


async def test_an_outage_during_a_slow_batch(timers: Timers) -> None:
    """If the database fails in a further transaction, the deferred commands are retried, not put back."""
    calls = 0

    async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult | None]:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise DatabaseUnavailableError("gone")
        return [*await SLICE.handle(tx, commands[:1], now, quotas=Quotas()), *[None] * (len(commands) - 1)]

    consumer_of(timers, handle)
    positions = send(timers, "a1 a2 b1")
    assert await handle_batch(timers) == []
    assert timers.broker.settlements.acknowledged == positions[:1]
    assert sorted(timers.broker.settlements.retried) == [(each, timedelta(seconds=1)) for each in positions[1:]]


async def test_a_suspect_gets_its_turn(timers: Timers, clock: ManualClock) -> None:
    """A command that may have ended the process is handled in each batch, even if the others take all the time."""
    consumer_of(timers, slow(clock, 1))
    positions = send(timers, "a1 a2 a3")
    subscription = await timers.broker.subscribe()
    batch: Sequence[Delivery] = await subscription.next_batch(1000)
    batch[2].attempt = 6
    await timers.consumer.handle(subscription, batch)
    assert timers.broker.settlements.acknowledged == [positions[0], positions[2]]


async def test_a_handler_that_defers_everything(timers: Timers, caplog: pytest.LogCaptureFixture) -> None:
    """A handler that applies nothing is a fault. It does not stop the consumer."""

    async def handle(_tx: Transaction, commands: Sequence[Command], _now: int) -> Sequence[CommandResult | None]:
        return [None] * len(commands)

    consumer_of(timers, handle)
    positions = send(timers, "a1")
    await handle_batch(timers)
    assert [position for position, _ in timers.broker.settlements.retried] == positions
    assert "command failed" in caplog.text
