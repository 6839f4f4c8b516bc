"""The command log on a real nats-server: hostile commands, lost connections, other readers, and the owner."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.js import JetStreamContext

from tests.harness.fence import CONFIG, PASSWORDS
from tests.harness.hostile import KINDS
from tests.harness.log_caller import OWNER, PATIENCE_SECONDS, LogCaller
from tests.harness.processes import NatsServer
from tests.harness.raw_nats import RawMessage, RawNats, header_block
from tests.harness.tcp_proxy import DRIPPING, GOOD, TcpProxy
from timer_service.adapters.nats import NatsBroker
from timer_service.adapters.nats.connection import Login
from timer_service.core.ports.log import LogUnavailableError
from timer_service.core.values.errors import StartError

SUBJECT = b"timer.cmd.v1.tenant-a.schedule-timer"
EMPTY = RawMessage(SUBJECT)
CONSUMER = ("TIMER_CMD", "timer-service")


@asynccontextmanager
async def connected(url: str, login: Login | None = None) -> AsyncIterator[NatsBroker]:
    read_login = (login or Login()).options
    broker = await NatsBroker.connect(url, "timer", login=read_login, reply_prefix="_INBOX.", manage_streams=True)
    try:
        yield broker
    finally:
        await broker.close()


@pytest.fixture
async def broker(server: NatsServer) -> AsyncIterator[NatsBroker]:
    async with connected(server.url) as broker:
        yield broker


@pytest.fixture
async def caller(broker: NatsBroker) -> LogCaller:
    """Return a caller that has opened the empty log."""
    caller = LogCaller(broker.log)
    await caller.open()
    return caller


@pytest.fixture
async def js(server: NatsServer, broker: NatsBroker) -> AsyncIterator[JetStreamContext]:
    """Yield the operator's access to the streams."""
    async with await nats.connect(server.url) as operator:
        yield operator.jetstream()


async def publish(server: NatsServer, *bodies: str) -> None:
    async with RawNats.connect(server.port) as user:
        await user.publish(RawMessage(SUBJECT, body.encode()) for body in bodies)


def numbers(count: int, start: int = 0) -> list[str]:
    return [f"{number:05}" for number in range(start, start + count)]


# Hostile commands


async def test_hostile_commands(server: NatsServer, caller: LogCaller, js: JetStreamContext) -> None:
    """Commands with any subject, headers and body are read, in order, and none hides another one."""
    async with RawNats.connect(server.port) as user:
        for number, kind in enumerate(KINDS.values()):
            await user.publish([kind(number), EMPTY, RawMessage(SUBJECT, b"x", header_block(b"Status: 408"))])
        await user.publish([RawMessage(SUBJECT, b"last")])
    await caller.read_until("last", 7)
    stored = (await js.stream_info("TIMER_CMD")).state.messages
    assert stored > 2 * len(KINDS)
    assert [each.position.sequence for each in caller.commands] == list(range(1, stored + 1))
    assert len(caller.openings) == 1
    for command in caller.commands[:: stored // 10]:
        assert command.body == ((await js.get_msg("TIMER_CMD", command.position.sequence)).data or b"")


# Empty commands. Between two accounts, the server takes one for the end of an answer and drops the rest.


async def fenced(stack: AsyncExitStack, folder: Path) -> tuple[RawNats, LogCaller]:
    """Start a server with deploy/nats.conf. Return a connection of a tenant, and a caller with the service's login."""
    config = CONFIG.replace("sync_interval: always", "")  # a sync for each command takes seconds on a busy disk
    server = await stack.enter_async_context(NatsServer(folder / "fence", config=config, **PASSWORDS))
    login = Login(user="timer-service", password=PASSWORDS["TIMER_SERVICE_PASSWORD"])
    caller = LogCaller((await stack.enter_async_context(connected(server.url, login))).log)
    await caller.open()
    user = {"user": "tenant-a", "pass": PASSWORDS["TENANT_A_PASSWORD"]}
    return await stack.enter_async_context(RawNats.connect(server.port, **user)), caller


async def test_empty_commands_from_another_account(tmp_path: Path) -> None:
    """Empty commands anywhere among 2,000 others hide none of them, and the order stays."""
    async with AsyncExitStack() as stack:
        tenant, caller = await fenced(stack, tmp_path)
        messages = [RawMessage(SUBJECT, body.encode()) for body in numbers(2_000)]
        for place in (1_990, 1_500, 907, 300, 299, 0):
            messages.insert(place, EMPTY)
        await tenant.publish([*messages, RawMessage(SUBJECT, b"last")])
        await caller.read_until("last", 200)
    assert caller.bodies == [*(each.body.decode() for each in messages), "last"]
    assert [each.position.sequence for each in caller.commands] == list(range(1, 2_008))


async def test_many_large_commands(server: NatsServer, caller: LogCaller) -> None:
    """The bodies of many large commands are left in the stream, and can be read later. Small ones are complete."""
    sizes = [100_000, 10] * 400
    await publish(server, *("x" * size for size in sizes))
    left = 0
    while len(caller.commands) < len(sizes):
        batch = await caller.log.read(100, 1_000_000, PATIENCE_SECONDS)
        left += sum(each.left_bytes == 100_000 for each in batch.commands)
        assert all(len(each.body) + each.left_bytes in {10, 100_000} for each in batch.commands)
        caller.commands += batch.commands
    bodies = [await caller.log.body(each) if each.left_bytes else each.body for each in caller.commands]
    assert [len(each or b"") for each in bodies] == sizes
    assert left > 300


async def test_body_of_a_command_that_was_removed(server: NatsServer, caller: LogCaller, js: JetStreamContext) -> None:
    """There is no body if the broker has removed the command, or if the stream was recreated and has another one."""
    await publish(server, "x" * 600_000)
    (command,) = (await caller.log.read(100, 200_000, PATIENCE_SECONDS)).commands
    assert len(await caller.log.body(command) or b"") == 600_000
    await js.purge_stream("TIMER_CMD")
    assert await caller.log.body(command) is None
    config = (await js.stream_info("TIMER_CMD")).config
    await js.delete_stream("TIMER_CMD")
    await js.add_stream(config)
    await publish(server, "another")
    assert await caller.log.body(command) is None
    assert command.left_bytes == 600_000


# The connection is lost


async def flood(server: NatsServer, bodies: Sequence[str], done: asyncio.Event) -> None:
    """Publish in small parts while the log is read."""
    async with RawNats.connect(server.port) as user:
        for start in range(0, len(bodies), 50):
            await user.publish(RawMessage(SUBJECT, body.encode()) for body in bodies[start : start + 50])
            await asyncio.sleep(0)
    done.set()


FAULTS: dict[str, Callable[[TcpProxy], object]] = {
    "cut": lambda proxy: proxy.cut(),
    "reset": lambda proxy: proxy.cut(reset=True),
    "half-closed": lambda proxy: proxy.half_close(),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_connection_is_lost_in_a_pull(server: NatsServer, fault: str) -> None:
    """Wherever the connection is lost, each command is read once, in order."""
    bodies = numbers(3_000)
    async with TcpProxy(server.port) as proxy, connected(f"nats://127.0.0.1:{proxy.port}") as broker:
        caller = LogCaller(broker.log)
        await caller.open()
        sent = asyncio.Event()
        async with asyncio.timeout(2 * PATIENCE_SECONDS), asyncio.TaskGroup() as group:
            group.create_task(flood(server, bodies, sent))
            for number in range(1, 11):
                if number % 2:
                    proxy.set_link(DRIPPING)
                await caller.read_until(bodies[number * 100], limit=17)
                FAULTS[fault](proxy)
            proxy.set_link(GOOD)
            await caller.read_until(bodies[-1])
    assert caller.bodies == bodies
    assert len(caller.openings) > 1
    assert not any(each.is_other or each.removed for each in caller.openings)


async def test_server_is_killed_in_a_pull(server: NatsServer) -> None:
    """The same holds if the server is killed, and started again."""
    bodies = numbers(2_000)
    async with connected(server.url) as broker:
        caller = LogCaller(broker.log)
        await caller.open()
        async with await nats.connect(server.url, allow_reconnect=False) as user:
            js = user.jetstream()
            sent = [await js.publish_async(SUBJECT.decode(), body.encode()) for body in bodies[:1_000]]
            await asyncio.gather(*sent)
        await caller.read(300)
        await server.kill()
        await server.start()
        await publish(server, *bodies[1_000:])
        await caller.read_until(bodies[-1])
    assert caller.bodies == bodies
    assert not any(each.is_other or each.removed for each in caller.openings)


# What an operator, or another service, does with the consumer


async def test_consumer_that_was_deleted(server: NatsServer, caller: LogCaller, js: JetStreamContext) -> None:
    """If an operator deletes the consumer, nothing is read twice."""
    await publish(server, "a", "b")
    await caller.read_until("b")
    await js.delete_consumer(*CONSUMER)
    await publish(server, "c")
    await caller.read_until("c")
    assert caller.bodies == ["a", "b", "c"]


async def test_another_owner(server: NatsServer, caller: LogCaller, js: JetStreamContext) -> None:
    """A service with another database is refused, and the message says what to do. The first one reads on."""
    async with connected(server.url) as other:
        with pytest.raises(StartError, match=r"another database.*TIMER_SUBJECT_PREFIX.*nats consumer rm TIMER_CMD"):
            await other.log.open(None, "theirs")
        with pytest.raises(LogUnavailableError):
            await other.log.read(10, 1000, 0)
        await publish(server, "a")
        assert await caller.read_until("a") == ["a"]
        await js.delete_consumer(*CONSUMER)
        await other.log.open(None, "theirs")
        assert [each.body for each in (await other.log.read(10, 1000, PATIENCE_SECONDS)).commands] == [b"a"]
    with pytest.raises(StartError, match="another database"):
        await caller.log.open(caller.cursor, OWNER)


async def test_reader_that_has_lost_its_consumer(server: NatsServer, caller: LogCaller) -> None:
    """A reader whose consumer was replaced by another process gets none of the commands of that process."""
    await publish(server, *numbers(10))
    await caller.read(5)
    async with connected(server.url) as broker:
        other = LogCaller(broker.log, caller.cursor)
        assert other.cursor is not None
        other.cursor = other.cursor._replace(sequence=8, stored_at=0)  # behind commands that the first has not read
        await other.log.open(other.cursor, OWNER)
        await publish(server, "last")
        await caller.read_until("last")
    assert caller.bodies == [*numbers(10), "last"]
