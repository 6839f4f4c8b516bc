"""The connections to the broker and to PostgreSQL are cut, stalled, half-closed and slow, under a load."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.harness.load import Load
from tests.harness.load_check import check_load
from tests.harness.processes import NatsServer, Service
from tests.harness.tcp_proxy import DRIPPING, GOOD, STALLED, Link, TcpProxy

RECOVERY_SECONDS = 15
STALL_SECONDS = 1

Disturbance = Callable[[TcpProxy], Awaitable[None]]


async def cut(proxy: TcpProxy) -> None:
    proxy.cut()


async def reset(proxy: TcpProxy) -> None:
    proxy.cut(reset=True)


async def half_close(proxy: TcpProxy) -> None:
    proxy.half_close()


async def stall(proxy: TcpProxy) -> None:
    proxy.set_link(STALLED)
    await asyncio.sleep(STALL_SECONDS)
    proxy.set_link(GOOD)


async def stall_then_cut(proxy: TcpProxy) -> None:
    proxy.set_link(STALLED)
    await asyncio.sleep(STALL_SECONDS)
    proxy.set_link(GOOD)
    proxy.cut(reset=True)


async def drip(proxy: TcpProxy) -> None:
    proxy.set_link(DRIPPING)
    await asyncio.sleep(STALL_SECONDS)
    proxy.set_link(GOOD)


async def delay(proxy: TcpProxy) -> None:
    proxy.set_link(Link(delay_seconds=0.05))
    await asyncio.sleep(STALL_SECONDS)
    proxy.set_link(GOOD)


async def refuse(proxy: TcpProxy) -> None:
    with proxy.refusing():
        await asyncio.sleep(STALL_SECONDS)


async def lose_packets(proxy: TcpProxy) -> None:
    """The open connections never end and never transport anything again. New connections work."""
    proxy.stall_open_connections()


DISTURBANCES: Mapping[str, Disturbance] = {
    each.__name__: each for each in (cut, reset, half_close, stall, stall_then_cut, drip, delay, refuse)
}
ALL = [pytest.param([each], id=each, marks=pytest.mark.full) for each in DISTURBANCES]
"""Each disturbance in a test of its own."""
LOST_PACKETS_SECONDS = 90
"""The driver notices a connection without packets only by its pings: two of them must stay without an answer."""


@pytest.fixture
async def proxy(broker: NatsServer) -> AsyncIterator[TcpProxy]:
    """Yield a proxy in front of the broker."""
    async with TcpProxy(broker.port) as running:
        yield running


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[tuple[TcpProxy, str]]:
    """Yield a proxy in front of PostgreSQL, and the URL of an empty database through it."""
    port = urlsplit(database_url).port
    assert port is not None
    async with TcpProxy(port) as running:
        yield running, through(running, database_url)


def through(proxy: TcpProxy, url: str) -> str:
    """Return the URL of a server with the port of its proxy."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{proxy.port}").geturl()


async def disturb_and_check(load: Load, proxy: TcpProxy, disturbances: Sequence[Disturbance], *, seconds: float) -> str:
    """Disturb the connections under a load. After each disturbance, the service must answer commands in `seconds`."""
    recovered = []
    for disturb in disturbances:
        await load.until_answered(10)
        await disturb(proxy)
        began = time.monotonic()
        await load.until_answered(10, seconds=seconds)
        recovered.append(f"{disturb.__name__}: answers after {time.monotonic() - began:.2f} s")
    return "; ".join([*recovered, await check_load(load, seconds=seconds + 60, all_replied=False)])


@pytest.mark.slow
@pytest.mark.parametrize("disturbances", [pytest.param(["reset", "half_close", "stall", "drip"], id="short"), *ALL])
async def test_connection_to_the_broker_is_disturbed(
    disturbances: Sequence[str], tmp_path: Path, broker: NatsServer, proxy: TcpProxy
) -> None:
    """The service recovers within seconds when its connection to the broker is disturbed, and nothing is lost."""
    steps = [DISTURBANCES[each] for each in disturbances]
    async with (
        Service(tmp_path / "service", through(proxy, broker.url)),
        Load.running(broker.url, seed=1, writers=3, far_ms=1_000) as load,
    ):
        found = await disturb_and_check(load, proxy, steps, seconds=RECOVERY_SECONDS)
    print(f"broker: {found}")


@pytest.mark.slow
@pytest.mark.parametrize("disturbances", [pytest.param(["reset", "stall"], id="short"), *ALL])
async def test_connections_to_postgres_are_disturbed(
    disturbances: Sequence[str],
    tmp_path: Path,
    broker: NatsServer,
    database: tuple[TcpProxy, str],
) -> None:
    """The service recovers within seconds when its connections to PostgreSQL are disturbed, and nothing is lost."""
    steps = [DISTURBANCES[each] for each in disturbances]
    database_proxy, url = database
    settings = {"TIMER_DATABASE_URL": url, "TIMER_VISIBILITY_TIMEOUT": "10000"}
    async with (
        Service(tmp_path / "service", broker.url, **settings),
        Load.running(broker.url, seed=1, writers=3, far_ms=1_000) as load,
    ):
        found = await disturb_and_check(load, database_proxy, steps, seconds=RECOVERY_SECONDS)
    print(f"PostgreSQL: {found}")


@pytest.mark.full
async def test_connection_to_the_broker_loses_its_packets(tmp_path: Path, broker: NatsServer, proxy: TcpProxy) -> None:
    """The service replaces a connection to the broker that transports nothing any more."""
    async with (
        Service(tmp_path / "service", through(proxy, broker.url)),
        Load.running(broker.url, seed=1, writers=3) as load,
    ):
        found = await disturb_and_check(load, proxy, [lose_packets], seconds=LOST_PACKETS_SECONDS)
    print(f"broker: {found}")


@pytest.mark.full
async def test_connections_to_postgres_lose_their_packets(
    tmp_path: Path, broker: NatsServer, database: tuple[TcpProxy, str]
) -> None:
    """The service replaces connections to PostgreSQL that transport nothing any more."""
    database_proxy, url = database
    settings = {"TIMER_DATABASE_URL": url}
    async with (
        Service(tmp_path / "service", broker.url, **settings),
        Load.running(broker.url, seed=1, writers=3) as load,
    ):
        found = await disturb_and_check(load, database_proxy, [lose_packets], seconds=LOST_PACKETS_SECONDS)
    print(f"PostgreSQL: {found}")
