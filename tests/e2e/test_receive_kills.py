"""A program that receives the events of the real service, and is killed or stopped at random moments."""

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import ON_SQLITE, User
from tests.harness import handling_user
from tests.harness.databases import Databases
from tests.harness.processes import NatsServer, Process, Service
from tests.harness.receiving import Publisher
from tests.harness.user_databases import UserDatabase, postgres_database, sqlite_database
from timer_service.client import TimerClient

SIZES = [
    pytest.param(400, 5, marks=[pytest.mark.slow]),
    pytest.param(10_000, 50, marks=[pytest.mark.full, pytest.mark.timeout(900)]),
]
PROGRESS_SECONDS = 30
REPEATED = " was handled before"


class Program(Process):
    """The program, and what its handlers have written to a database or to a file of lines."""

    def __init__(self, folder: Path, broker: NatsServer, place: str) -> None:
        command = [sys.executable, "-m", "tests.harness.handling_user", broker.url, place]
        super().__init__(command, folder / "user.log", {})
        self.place = place

    async def handled(self) -> Sequence[str]:
        """Return the timer of each row."""
        if self.place.endswith(handling_user.TEXT):
            return handling_user.read_file(self.place)
        return [name for (name,) in await UserDatabase(self.place).query("SELECT timer_id FROM handled")]

    async def until_more_handled(self, number: int) -> None:
        """Wait until it has handled an event since its start, and until so many different ones are handled."""
        await self.until_handled(max(number, len({*await self.handled()}) + 1))

    async def until_handled(self, number: int) -> None:
        """Wait until so many different events are handled."""
        async with asyncio.timeout(PROGRESS_SECONDS):
            while len({*await self.handled()}) < number:
                assert self.running.poll() is None, self.log.read_text("utf-8")[-3000:]
                await asyncio.sleep(0.005)


@asynccontextmanager
async def place_of(store: str, folder: Path, databases: Databases) -> AsyncIterator[str]:
    """Yield where the program writes, with its table."""
    if store == "memory":
        yield handling_user.create_file(folder)
        return
    opened = sqlite_database(folder) if store == "sqlite" else postgres_database(databases)
    async with opened as database:
        await handling_user.create_table(database.place)
        yield database.place


@pytest.mark.parametrize(("events", "kills"), SIZES)
@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
@ON_SQLITE
async def test_kills_at_random_moments(
    tmp_path: Path,
    broker: NatsServer,
    service: Service,
    user: User,
    databases: Databases,
    *,
    store: str,
    events: int,
    kills: int,
) -> None:
    """Each event is handled: exactly once with a store in the user's database, and at least once without.

    The kills are spread over the whole work. The timers of the real service become due at once.
    """
    draw = random.Random(kills)
    names = [f"t-{number}" for number in range(events)]
    publisher, began = Publisher(user.connection), time.monotonic()
    async with place_of(store, tmp_path, databases) as place, Program(tmp_path, broker, place) as program:
        await user.schedule(dict.fromkeys(names, int(time.time() * 1000)))
        scheduled_at, during = time.monotonic(), 0
        for number in range(kills):
            program.launch()
            await program.until_more_handled(moment(draw, number, kills, events))
            await program.kill()
            during += len({*await program.handled()}) < events
        program.launch()
        await program.until_handled(events)
        await publisher.until_acknowledged()
        delivered = (await publisher.js.consumer_info("TIMER_EVT", "acme~orders")).delivered
        rows = Counter(await program.handled())
    log = program.log.read_text("utf-8")
    repeats = rows.total() - len(rows)
    assert delivered is not None
    seconds = time.monotonic() - scheduled_at
    print(
        f"\n{store}: {events} events scheduled in {scheduled_at - began:.1f} s, handled in {seconds:.1f} s; "
        f"{kills} kills, {during} of them before the last event; {delivered.consumer_seq - events} more deliveries; "
        f"{rows.total()} rows, {repeats} repeats, {log.count(REPEATED)} recognised repeats"
    )
    assert {*rows} == {*names}
    assert during >= 0.7 * kills
    async with TimerClient.connect(broker.url) as client:
        assert [event.event_id async for event in client.events.parked("acme")] == []
    if store == "memory":
        assert repeats <= kills * handling_user.MOST_IN_FLIGHT
    else:
        assert repeats == 0


@pytest.mark.parametrize(("events", "stops"), SIZES)
@ON_SQLITE
async def test_stops_at_random_moments(
    tmp_path: Path, broker: NatsServer, service: Service, user: User, *, events: int, stops: int
) -> None:
    """At SIGTERM, handlers end and are acknowledged. So each event is handled once, also without a stored mark."""
    draw = random.Random(stops)
    names = [f"t-{number}" for number in range(events)]
    async with Program(tmp_path, broker, handling_user.create_file(tmp_path)) as program:
        await user.schedule(dict.fromkeys(names, int(time.time() * 1000)))
        began, during = time.monotonic(), 0
        for number in range(stops):
            program.launch()
            await program.until_more_handled(moment(draw, number, stops, events))
            assert await program.terminate() == 0
            during += len(await program.handled()) < events
        program.launch()
        await program.until_handled(events)
        await Publisher(user.connection).until_acknowledged()
        rows = Counter(await program.handled())
    seconds = time.monotonic() - began
    print(
        f"\n{events} events handled in {seconds:.1f} s; {stops} stops, {during} of them before the last event; "
        f"{rows.total()} rows"
    )
    assert rows == Counter(names)
    assert during >= 0.9 * stops


def moment(draw: random.Random, number: int, of: int, events: int) -> int:
    """Return after how many events the program ends for the time `number`, so that the times are spread."""
    return int(events * (number + draw.random()) / (of + 1)) + 1
