"""The real service over a real broker, driven over the broker only."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext

from tests.harness.databases import Databases
from tests.harness.fleet import Fleet
from tests.harness.processes import NatsServer, Service, body
from tests.harness.stores import STORES
from tests.harness.streams import read


def iso(at_ms: int) -> str:
    """Write epoch milliseconds as the contracts want them."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Fired:
    """A DueTimeReached as it lies in the stream."""

    call: str
    id: str
    due_at_ms: int
    stored_at_ms: float
    event: Mapping[str, Any] = field(repr=False)


@dataclass
class User:
    """Somebody who knows the contracts and nothing else."""

    connection: Client

    @property
    def js(self) -> JetStreamContext:
        return self.connection.jetstream()

    async def schedule(self, timers: Mapping[str, int], tenant: str = "acme", **payload: Any) -> None:
        """Publish a ScheduleTimer for each call -> due time in ms, each acknowledged by the stream."""
        commands = [
            (
                f"timer.cmd.v1.{tenant}.schedule-timer",
                body(
                    "ScheduleTimer", tenant, {"tenantId": tenant, "serviceCallId": call, "dueAt": iso(due), **payload}
                ),
            )
            for call, due in timers.items()
        ]
        await self.send(commands)

    async def send(self, commands: Iterable[tuple[str, bytes]]) -> None:
        """Publish commands, a window of 200 at a time, in order within each window."""
        pending = list(commands)
        for start in range(0, len(pending), 200):
            await asyncio.gather(*(self.js.publish(*each, timeout=20) for each in pending[start : start + 200]))

    async def stored(self, stream: str) -> int:
        """Count a stream's messages."""
        return (await self.js.stream_info(stream)).state.messages

    async def until_stored(self, stream: str, count: int, *, seconds: float = 60) -> None:
        """Wait until a stream holds that many messages."""
        async with asyncio.timeout(seconds):
            while await self.stored(stream) < count:
                await asyncio.sleep(0.02)

    async def unhandled(self) -> int:
        """Count the commands that no instance has acknowledged."""
        info = await self.js.consumer_info("TIMER_CMD", "timer-service")
        return (info.num_pending or 0) + (info.num_ack_pending or 0)

    async def until_taken(self, count: int) -> None:
        """Wait until that many commands are with an instance."""
        async with asyncio.timeout(30):
            while ((await self.js.consumer_info("TIMER_CMD", "timer-service")).num_ack_pending or 0) < count:
                await asyncio.sleep(0.02)

    async def until_patience(self, *, seconds: float) -> None:
        """Wait until the broker leaves an instance that long for each command."""
        async with asyncio.timeout(10):
            while (await self.js.consumer_info("TIMER_CMD", "timer-service")).config.ack_wait != seconds:
                await asyncio.sleep(0.02)

    async def let_deliveries_lapse(self) -> None:
        """Have commands that were with a killed instance delivered to the others soon, not in half a minute."""
        config = (await self.js.consumer_info("TIMER_CMD", "timer-service")).config
        await self.js.add_consumer("TIMER_CMD", config.evolve(ack_wait=1))

    async def until_nobody_pulls(self) -> None:
        """Wait until the broker has noticed that an instance is dead, or what is published next is sent to it."""
        async with asyncio.timeout(30):
            while (await self.js.consumer_info("TIMER_CMD", "timer-service")).num_waiting:
                await asyncio.sleep(0.002)

    async def give_deliveries_back(self) -> None:
        """Have commands that were with an instance, killed, delivered at once to those that start next."""
        await self.until_nobody_pulls()
        info = await self.js.consumer_info("TIMER_CMD", "timer-service")
        await self.js.add_consumer("TIMER_CMD", info.config.evolve(ack_wait=0.1))
        taking = await self.js.pull_subscribe_bind("timer-service", stream="TIMER_CMD")
        taken: dict[int, Any] = {}
        while sum(each.metadata.num_delivered > 1 for each in taken.values()) < (info.num_ack_pending or 0):
            taken |= {each.metadata.sequence.stream: each for each in await taking.fetch(100, timeout=5)}
        for each in taken.values():
            await each.nak()
        await taking.unsubscribe()
        await self.js.add_consumer("TIMER_CMD", info.config)

    async def until_handled(self, *, seconds: float = 60) -> None:
        """Wait until no command is left to the service."""
        async with asyncio.timeout(seconds):
            while await self.unhandled():
                await asyncio.sleep(0.02)

    async def read(self, stream: str, subject: str = ">") -> Sequence[Any]:
        """Read all messages of a stream."""
        return await read(self.js, stream, subject)

    async def fired(self) -> list[Fired]:
        """Read every DueTimeReached there is."""
        return [_fired(message) for message in await self.read("TIMER_EVT", "timer.evt.v1.*.due-time-reached")]


def _fired(message: Any) -> Fired:
    event = json.loads(message.data)
    assert message.headers["Nats-Msg-Id"] == event["id"]
    return Fired(
        call=event["payload"]["serviceCallId"],
        id=event["id"],
        due_at_ms=round(datetime.fromisoformat(event["payload"]["dueAt"]).timestamp() * 1000),
        stored_at_ms=message.metadata.timestamp.timestamp() * 1000,
        event=event,
    )


def check_fired(fired: Iterable[Fired], due: Mapping[str, int]) -> int:
    """Assert that each timer fired at its due time, none early, duplicates under one id; return the duplicates."""
    ids: dict[str, set[str]] = {}
    times: Counter[str] = Counter()
    for each in fired:
        assert each.due_at_ms == due[each.call]
        assert each.stored_at_ms >= each.due_at_ms, f"{each.call} fired {each.due_at_ms - each.stored_at_ms} ms early"
        ids.setdefault(each.call, set()).add(each.id)
        times[each.call] += 1
    assert set(ids) == set(due), f"{len(set(due) - set(ids))} timers never fired"
    assert all(len(each) == 1 for each in ids.values())
    assert len(set().union(*ids.values())) == len(due)
    return times.total() - len(due)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture(params=STORES)
async def stored(request: pytest.FixtureRequest) -> AsyncIterator[Mapping[str, str]]:
    """The settings of every store in turn, which has no schema yet."""
    if request.param == "sqlite":
        yield {}
    else:
        databases: Databases = request.getfixturevalue("databases")
        async with databases.database() as url:
            # Nobody knows that a killed instance is dead before its leases run out: let that not take long.
            yield {"TIMER_DATABASE_URL": url, "TIMER_VISIBILITY_TIMEOUT": "10000"}


ON_SQLITE = pytest.mark.parametrize("stored", ["sqlite"], indirect=True)
"""For tests of what no store has a part in, beside others of their file that run on every one."""

WITH_KILLS = pytest.mark.parametrize(
    ("stored", "handled"),
    [
        pytest.param("sqlite", True, id="sqlite, after each is handled"),
        pytest.param("sqlite", False, id="sqlite, after each is sent"),
        pytest.param("postgres", True, id="postgres, after each is handled"),
    ],
    indirect=["stored"],
)
"""For tests that kill the service after each step, `handled` or only sent."""


@pytest.fixture
async def service(tmp_path: Path, broker: NatsServer, stored: Mapping[str, str]) -> AsyncIterator[Service]:
    async with Service(tmp_path / "service", broker.url, **stored) as running:
        yield running


async def kill_and_start(service: Service, user: User) -> None:
    """Kill the service and start another, to which what the dead one held is delivered at once.

    One that is alone on its store sees to that itself.
    """
    await service.kill()
    if service.shares_store:
        await user.give_deliveries_back()
    await service.start()


@pytest.fixture
async def database_url(databases: Databases) -> AsyncIterator[str]:
    """An empty database: the instances themselves bring its schema to head."""
    async with databases.database() as url:
        yield url


@pytest.fixture
def fleet(tmp_path: Path, broker: NatsServer, database_url: str) -> Fleet:
    return Fleet(tmp_path, broker, database_url)


@pytest.fixture
async def user(broker: NatsServer) -> AsyncIterator[User]:
    options: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.1, "error_cb": _ignore}
    async with await nats.connect(broker.url, **options) as connection:
        yield User(connection)


async def _ignore(_: Exception) -> None:
    """Outages are what these tests are about."""
