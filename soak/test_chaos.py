"""Real parts are killed, cut off, slowed down or full under a load of every slice: nothing is lost or early.

Each row of `CHAOS` names the parts that run, and what happens to them. Between two disturbances the service must answer
commands again. `load_check` compares what the user has seen with a plain model.
"""

import asyncio
import random
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import asyncpg
import pytest

from soak.load import Load
from soak.load_check import check_load
from soak.nats_cluster import NatsCluster
from soak.small_disk import small_disk
from tests.harness.processes import NatsServer, Service
from tests.harness.tcp_proxy import DRIPPING, GOOD, STALLED, Link, TcpProxy

STALL_SECONDS = 1
WAITING = 50
LEASED = {"timer_schedules": "due_at", "outbox": "added_at"}
"""The leased tables, with the column of the earliest instant at which a row can be available."""
LEADERS = [("TIMER_CMD", None), ("TIMER_CMD", "timer-service"), ("TIMER_EVT", None)]

Disturbance = Callable[[Load], Awaitable[None]]


class Parts(NamedTuple):
    """What runs: where the user connects, and what can happen, by name."""

    urls: str | Sequence[str]
    disturbances: Mapping[str, Disturbance]


Start = Callable[[Path, str], AbstractAsyncContextManager[Parts]]
"""Starts the parts with a folder and the URL of an empty database of PostgreSQL."""


def single(disturb: Callable[[], Awaitable[None]]) -> Mapping[str, Disturbance]:
    """Return a disturbance that does not depend on the load."""

    async def disturbance(_: Load) -> None:
        await disturb()

    return {"": disturbance}


@asynccontextmanager
async def service_killed(folder: Path, database_url: str | None) -> AsyncIterator[Parts]:
    rng = random.Random(1)
    settings = {} if database_url is None else {"TIMER_DATABASE_URL": database_url}
    async with (
        NatsServer(folder / "nats") as broker,
        Service(folder / "service", broker.url, **settings, TIMER_VISIBILITY_TIMEOUT="10000") as service,
    ):

        async def kill() -> None:
            await asyncio.sleep(rng.uniform(0, 0.3))
            await service.kill()
            if database_url is not None:  # on SQLite, the service itself ends the leases when it starts
                await expire_leases(database_url)
            await service.start()

        yield Parts(broker.url, single(kill))


def service_on_sqlite_killed(folder: Path, _: str) -> AbstractAsyncContextManager[Parts]:
    return service_killed(folder, None)


async def expire_leases(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        for table, earliest in LEASED.items():
            await connection.execute(f"UPDATE {table} SET available_at = {earliest} WHERE lease_token IS NOT NULL")
    finally:
        await connection.close()


@asynccontextmanager
async def broker_killed(folder: Path, _: str) -> AsyncIterator[Parts]:
    async with NatsServer(folder / "nats") as broker, Service(folder / "service", broker.url):

        async def kill() -> None:
            await broker.kill()
            await asyncio.sleep(0.3)
            await broker.start()

        yield Parts(broker.url, single(kill))


@asynccontextmanager
async def cluster(folder: Path, _: str) -> AsyncIterator[Parts]:
    leaders = cycle(LEADERS)
    async with NatsCluster(folder / "nats") as nodes, Service(folder / "service", ",".join(nodes.urls)):

        async def kill_leader(load: Load) -> None:
            victim = nodes.nodes[await nodes.leader(*next(leaders))]
            await victim.kill()
            await load.until_answered(50)
            await victim.start()
            for stream in ("TIMER_CMD", "TIMER_EVT"):
                await nodes.until_current(stream)

        async def step_down(_: Load) -> None:
            stream, consumer = next(leaders)
            await nodes.leader(stream, consumer)
            await nodes.step_down(stream, consumer)

        yield Parts(nodes.urls, {"leader killed": kill_leader, "leader steps down": step_down})


def links(proxy: TcpProxy) -> Mapping[str, Disturbance]:
    """Return what can happen to the connections through a proxy."""

    async def cut(_: Load) -> None:
        proxy.cut()

    async def reset(_: Load) -> None:
        proxy.cut(reset=True)

    async def half_close(_: Load) -> None:
        proxy.half_close()

    async def refuse(_: Load) -> None:
        with proxy.refusing():
            await asyncio.sleep(STALL_SECONDS)

    async def lose_packets(_: Load) -> None:
        proxy.stall_open_connections()

    def change(link: Link) -> Disturbance:
        async def disturb(_: Load) -> None:
            proxy.set_link(link)
            await asyncio.sleep(STALL_SECONDS)
            proxy.set_link(GOOD)

        return disturb

    named = {each.__name__: each for each in (cut, reset, half_close, refuse, lose_packets)}
    return {**named, "stall": change(STALLED), "drip": change(DRIPPING), "delay": change(Link(delay_seconds=0.05))}


def through(proxy: TcpProxy, url: str) -> str:
    """Return the URL of a server with the port of its proxy."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{proxy.port}").geturl()


@asynccontextmanager
async def connection_to_the_broker(folder: Path, _: str) -> AsyncIterator[Parts]:
    async with (
        NatsServer(folder / "nats") as broker,
        TcpProxy(broker.port) as proxy,
        Service(folder / "service", through(proxy, broker.url)),
    ):
        yield Parts(broker.url, links(proxy))


@asynccontextmanager
async def connections_to_postgres(folder: Path, database_url: str) -> AsyncIterator[Parts]:
    port = urlsplit(database_url).port
    assert port is not None
    async with NatsServer(folder / "nats") as broker, TcpProxy(port) as proxy:
        settings = {"TIMER_DATABASE_URL": through(proxy, database_url), "TIMER_VISIBILITY_TIMEOUT": "10000"}
        async with Service(folder / "service", broker.url, **settings):
            yield Parts(broker.url, links(proxy))


@asynccontextmanager
async def small_disk_full(folder: Path, _: str) -> AsyncIterator[Parts]:
    with small_disk(folder / "disk", mib=16) as disk:
        settings = {"TIMER_DB_PATH": str(disk.folder / "timers.db")}
        async with (
            NatsServer(folder / "nats") as broker,
            Service(folder / "service", broker.url, **settings) as service,
        ):
            yield Parts(broker.url, {"": full_disk(service, disk.fill, disk.free)})


@asynccontextmanager
async def file_size_limited(folder: Path, _: str) -> AsyncIterator[Parts]:
    """The operating system refuses to write beyond a size. It needs no permission, but the error is another one."""
    async with NatsServer(folder / "nats") as broker, Service(folder / "service", broker.url) as service:
        pid = service.running.pid
        most = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        written = (folder / "service" / "service.log").stat().st_size

        def limit(size: int) -> None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, most))

        yield Parts(broker.url, {"": full_disk(service, lambda: limit(written // 2), lambda: limit(most))})


def full_disk(service: Service, fill: Callable[[], None], free: Callable[[], None]) -> Disturbance:
    """Fill the disk until commands wait and `/readyz` says so. None becomes a dead letter."""

    async def disturb(load: Load) -> None:
        fill()
        async with asyncio.timeout(20):
            while load.user.unanswered < WAITING:
                await asyncio.sleep(0.02)
        await service.until_page("/readyz", 503)
        assert (await service.page("/livez"))[0] == 200
        assert await load.user.count_dead_letters() == 0
        free()

    return disturb


class Chaos(NamedTuple):
    """The parts, what happens to them in `make soak-short` and in `make soak`, and the longest recovery."""

    start: Start
    short: Sequence[str]
    full: Sequence[str]
    seconds: float = 20


_LINKS = ("cut", "reset", "half_close", "stall", "drip", "delay", "refuse")
_LOST_SECONDS = 90
"""A driver notices a connection without packets only by its pings: two of them must stay without an answer."""
CHAOS: Mapping[str, Chaos] = {
    "service on SQLite killed": Chaos(service_on_sqlite_killed, [""] * 3, [""] * 100),
    "service on PostgreSQL killed": Chaos(service_killed, [""] * 3, [""] * 100),
    "broker killed": Chaos(broker_killed, [""], [""] * 20),
    "leaders killed": Chaos(cluster, [], ["leader killed"] * 5, 60),
    "leaders step down": Chaos(cluster, [], ["leader steps down"] * 3, 60),
    "connection to the broker": Chaos(connection_to_the_broker, ["reset", "half_close", "stall", "drip"], _LINKS),
    "connections to PostgreSQL": Chaos(connections_to_postgres, ["reset", "stall"], _LINKS),
    "packets to the broker lost": Chaos(connection_to_the_broker, [], ["lose_packets"], _LOST_SECONDS),
    "packets to PostgreSQL lost": Chaos(connections_to_postgres, [], ["lose_packets"], _LOST_SECONDS),
    "disk full": Chaos(small_disk_full, [""], [""] * 3),
    "file size limited": Chaos(file_size_limited, [], [""]),
}


def _rows() -> Iterator[object]:
    for name, chaos in CHAOS.items():
        if chaos.short:
            yield pytest.param(chaos, chaos.short, id=f"{name}, short", marks=pytest.mark.slow)
        marks = [pytest.mark.full, pytest.mark.timeout(1_800)]
        yield pytest.param(chaos, chaos.full, id=name, marks=marks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("chaos", "happens"), [*_rows()])
async def test_load_beside_chaos(chaos: Chaos, happens: Sequence[str], tmp_path: Path, database_url: str) -> None:
    """The service answers again soon after each disturbance, and nothing of the load is lost, early or done twice."""
    slowest = 0.0
    async with (
        chaos.start(tmp_path, database_url) as parts,
        Load.running(parts.urls, seed=1, writers=3, far_ms=1_000) as load,
    ):
        for name in happens:
            await load.until_answered(20)
            await parts.disturbances[name](load)
            began = time.monotonic()
            await load.until_answered(10, seconds=chaos.seconds)
            slowest = max(slowest, time.monotonic() - began)
        # A reply is lost if the service or a connection ends after a commit.
        found = await check_load(load, seconds=chaos.seconds + 60, all_replied=False)
    print(f"{len(happens)} disturbances: {found}; answers at most {slowest:.2f} s after one")
