"""How the service reads commands behind the fence: the stream belongs to another account."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness.fence import PASSWORDS, Peer, connect, separate_tenants
from tests.harness.log_caller import LogCaller
from tests.harness.processes import NatsServer
from timer_service.adapters.nats import NatsBroker
from timer_service.adapters.nats.connection import Login
from timer_service.core.values.raw_command import RawCommand

SUBJECT = "timer.cmd.v1.tenant-a.schedule-timer"


@pytest.fixture
async def service(broker: NatsServer) -> AsyncIterator[NatsBroker]:
    """Return the broker as the service uses it. It has made the streams. No service runs."""
    login = Login(user="timer-service", password=PASSWORDS["TIMER_SERVICE_PASSWORD"])
    used = await NatsBroker.connect(broker.url, "timer", login=login, reply_prefix="_INBOX.", manage_streams=True)
    yield used
    await used.close()


@pytest.fixture
async def caller(service: NatsBroker) -> LogCaller:
    """Return a caller that has opened the empty log."""
    caller = LogCaller(service.log)
    await caller.open()
    return caller


@pytest.fixture
async def tenant(broker: NatsServer, service: NatsBroker) -> AsyncIterator[Peer]:
    peer = await connect(broker, "tenant-a")
    yield peer
    await peer.connection.close()


async def send(peer: Peer, *bodies: str, tenant: str = "tenant-a") -> None:
    for body in bodies:
        await peer.connection.jetstream().publish(SUBJECT.replace("tenant-a", tenant), body.encode())


async def test_commands_have_their_positions(caller: LogCaller, tenant: Peer) -> None:
    """The number, the time and what is behind are those of the stream of the other account."""
    await send(tenant, "a", "b", "c")
    await caller.read_until("c")
    end = await caller.log.end()
    assert [each.position.sequence for each in caller.commands] == [1, 2, 3]
    assert (end.sequence, end.stored_at) == (3, caller.commands[-1].stored_at)


@pytest.mark.slow
async def test_a_pull_that_brings_nothing(caller: LogCaller, tenant: Peer) -> None:
    """A pull that ends without a command loses nothing. The next one brings what comes later."""
    for body in ("a", "b"):
        assert not (await caller.read(seconds=6)).commands  # longer than a pull
        await send(tenant, body)
        assert await caller.read_until(body) == [body]
    assert len(caller.openings) == 1


async def test_commands_that_fill_a_pull_to_the_last_byte(service: NatsBroker, tenant: Peer) -> None:
    """The server ends such a pull without a status. The commands behind it follow at once."""
    await send(tenant, *(f"{number:04}" for number in range(9)))
    first = LogCaller(service.log)
    await first.open()
    await first.read_until("0008")
    caller = LogCaller(service.log)
    await caller.open()
    of_pull = sum(pulled_bytes(each, behind=9 - number) for number, each in enumerate(first.commands[:6], 1))
    found: list[RawCommand] = []
    async with asyncio.timeout(4):  # less than until a pull is given up
        while len(found) < len(first.commands):
            found += (await caller.read(100, of_pull // 2, 4)).commands  # a pull asks for twice as much
    assert (of_pull % 2, [each.body for each in found]) == (0, [each.body for each in first.commands])


def pulled_bytes(command: RawCommand, behind: int) -> int:
    """Return how many bytes of a pull a command takes. With the first delivery, its number is that of the command."""
    number = command.position.sequence
    return command.size + len(f"$JS.ACK.TIMER_CMD.timer-service.1.{number}.{number}.{command.stored_at}.{behind}")


async def test_tenants_with_streams_of_their_own(
    broker: NatsServer, service: NatsBroker, tenant: Peer, tmp_path: Path
) -> None:
    """Their commands come in the order of the common stream, and the log knows whether there are others."""
    password = tmp_path / "operator"
    password.write_text(PASSWORDS["OPERATOR_PASSWORD"])
    await separate_tenants(broker, password, "tenant-a", "tenant-b")
    caller = LogCaller(service.log)
    await caller.open()
    await send(tenant, "a", "", "b")
    await caller.read_until("b")
    assert [await service.log.has_others(name) for name in ("tenant-a", "tenant-b")] == [False, True]
    other = await connect(broker, "tenant-b")
    await send(other, "c", tenant="tenant-b")
    assert await caller.read_until("c") == ["c"]
    assert await service.log.has_others("tenant-a")
    assert [each.address.tenant for each in caller.commands] == [*["tenant-a"] * 3, "tenant-b"]
    assert [each.position.sequence for each in caller.commands] == [1, 2, 3, 4]
    await other.connection.close()
