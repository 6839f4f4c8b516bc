"""Fixtures of the end-to-end tests: the real service and a real broker. The tests use only the broker."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext

from tests.harness.cli import Cli
from tests.harness.databases import Databases
from tests.harness.fleet import Fleet
from tests.harness.nats_client import read_stream
from tests.harness.processes import NatsServer, Service, body
from tests.harness.rabbitmq import RabbitServer
from tests.harness.redis import RedisServer
from tests.harness.stores import STORES


def iso(at_ms: int) -> str:
    """Return epoch milliseconds in the format of the contracts."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Fired:
    """A DueTimeReached in the stream."""

    call: str
    id: str
    due_at_ms: int
    stored_at_ms: float
    event: Mapping[str, Any] = field(repr=False)


@dataclass
class User:
    """A user of the service, who knows only the contracts."""

    connection: Client

    @property
    def js(self) -> JetStreamContext:
        return self.connection.jetstream()

    async def schedule(self, timers: Mapping[str, int], tenant: str = "acme", **payload: Any) -> None:
        """Publish a ScheduleTimer for each call. `timers` has the due time of each call in epoch milliseconds."""
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
        """Publish commands, at most 200 at the same time."""
        pending = list(commands)
        for start in range(0, len(pending), 200):
            await asyncio.gather(*(self.js.publish(*each, timeout=20) for each in pending[start : start + 200]))

    async def stored(self, stream: str) -> int:
        """Return the number of messages in a stream."""
        return (await self.js.stream_info(stream)).state.messages

    async def until_stored(self, stream: str, count: int, *, seconds: float = 60) -> None:
        """Wait until a stream has at least `count` messages."""
        async with asyncio.timeout(seconds):
            while await self.stored(stream) < count:
                await asyncio.sleep(0.02)

    async def until_delivered(self) -> None:
        """Wait until the broker has sent every stored command to the service."""
        async with asyncio.timeout(30):
            while (await self.js.consumer_info("TIMER_CMD", "timer-service")).num_pending:
                await asyncio.sleep(0.02)

    async def until_handled(self, *, seconds: float = 60) -> None:
        """Wait until the service has handled every stored command.

        It handles the commands of each tenant in order, so the reply to one more command of each tenant shows that.
        """
        subjects = (await self.js.stream_info("TIMER_CMD", subjects_filter=">")).state.subjects or {}
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(self.until_replied(each) for each in {each.split(".")[3] for each in subjects}))

    async def until_replied(self, tenant: str) -> None:
        """Publish commands that change nothing until one gets a reply. A service that is killed can lose replies."""
        command = body("RetryTimer", tenant, {"serviceCallId": "nothing"})
        inbox = await self.connection.subscribe(self.connection.new_inbox())
        while True:
            with suppress(nats.errors.TimeoutError):
                headers = {"Timer-Reply-To": inbox.subject}
                await self.js.publish(f"timer.cmd.v1.{tenant}.retry-timer", command, headers=headers)
                await inbox.next_msg(timeout=5)
                await inbox.unsubscribe()
                return

    async def read(self, stream: str, subject: str = ">") -> Sequence[Any]:
        """Return all messages of a stream."""
        return await read_stream(self.js, stream, subject)

    async def fired(self) -> list[Fired]:
        """Return every DueTimeReached in the stream."""
        return [_read_fired(message) for message in await self.read("TIMER_EVT", "timer.evt.v1.*.due-time-reached")]


def _read_fired(message: Any) -> Fired:
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
    """Assert that every timer fired, none early, and duplicates have the same id. Return the number of duplicates."""
    ids: dict[str, set[str]] = {}
    times: Counter[str] = Counter()
    for each in fired:
        assert each.due_at_ms == due[each.call]
        assert each.stored_at_ms >= each.due_at_ms, f"{each.call} fired {each.due_at_ms - each.stored_at_ms} ms early"
        ids.setdefault(each.call, set()).add(each.id)
        times[each.call] += 1
    assert set(ids) == set(due), f"{len(set(due) - set(ids))} timers did not fire"
    assert all(len(each) == 1 for each in ids.values())
    assert len(set().union(*ids.values())) == len(due)
    return times.total() - len(due)


@pytest.fixture
async def broker(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[NatsServer | RedisServer | RabbitServer]:
    """Yield a nats-server, or with `ON_EACH_BROKER` the server of each broker in turn."""
    kind = getattr(request, "param", NatsServer)
    if kind is RabbitServer:
        request.getfixturevalue("rabbit_programs")
    async with kind(tmp_path / "broker") as server:
        yield server


ON_EACH_BROKER = pytest.mark.parametrize(
    "broker",
    [NatsServer, RedisServer, pytest.param(RabbitServer, marks=pytest.mark.slow)],  # RabbitMQ takes 5 s to start
    indirect=True,
)
"""For tests of a client that are not about a broker."""


@pytest.fixture
def cli(tmp_path: Path, broker: NatsServer) -> Cli:
    return Cli(tmp_path, broker.url)


@pytest.fixture(params=STORES)
async def stored(request: pytest.FixtureRequest) -> AsyncIterator[Mapping[str, str]]:
    """Yield the settings of each store in turn. The store has no schema yet."""
    if request.param == "sqlite":
        yield {}
    else:
        databases: Databases = request.getfixturevalue("databases")
        async with databases.database() as url:
            # The other instances wait until the leases of a killed instance expire, so the leases are short.
            yield {"TIMER_DATABASE_URL": url, "TIMER_VISIBILITY_TIMEOUT": "10000"}


ON_SQLITE = pytest.mark.parametrize("stored", ["sqlite"], indirect=True)
"""For tests that do not depend on the store, in a file whose other tests run on every store."""


@pytest.fixture
async def service(tmp_path: Path, broker: NatsServer, stored: Mapping[str, str]) -> AsyncIterator[Service]:
    async with Service(tmp_path / "service", broker.url, **stored) as running:
        yield running


async def find_reader(user: User, instances: Sequence[Service]) -> Service:
    """Return the instance that reads the commands."""
    sample = 'timer_commands_received_total{outcome="not_found",type="RetryTimer"}'
    before = [await each.metric(sample) for each in instances]
    await user.until_replied("acme")
    (reader,) = [each for each, number in zip(instances, before, strict=True) if await each.metric(sample) > number]
    return reader


@pytest.fixture
async def database_url(databases: Databases) -> AsyncIterator[str]:
    """Yield the URL of an empty database. The instances create its schema."""
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
    """Ignore connection errors, because some tests stop the broker."""
