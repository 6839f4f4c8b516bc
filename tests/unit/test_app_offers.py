"""The hints of an instance without polls: rows for workers that it writes are offered to the other instances."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from tests.harness.clock import NOW, ManualClock
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.service import App
from timer_service.app.storage import Storage
from timer_service.config import Config
from timer_service.metrics import Metrics
from timer_service.workflows.tasks import dispatcher

LANE = ("acme", "main", "pay")


class Site:
    """An instance with the role `worker`, which has no polls, and the hints that it sends."""

    def __init__(self, database: SqliteDatabase, broker: MemoryBroker) -> None:
        self.hints: list[tuple[str, int]] = []
        with_streams = cast("Any", broker)
        with_streams.streams = SimpleNamespace()
        registry = CollectorRegistry()
        storage = Storage(database, ManualClock(), {})
        self.app = App(Config(role="worker"), storage, with_streams, Metrics(registry), registry)

    def receive(self, loop: str, at: int) -> None:
        self.hints.append((loop, at))


@pytest.fixture
async def site(sqlite: SqliteDatabase, memory_broker: MemoryBroker) -> Site:
    site = Site(sqlite, memory_broker)
    await memory_broker.subscribe_hints(site.receive)
    return site


async def drain(app: App) -> None:
    await app._drain([asyncio.create_task(asyncio.sleep(0))])


@pytest.mark.parametrize("alone", [False, True])
async def test_polls_are_elsewhere(site: Site, sqlite: SqliteDatabase, *, alone: bool) -> None:
    """Other instances get a hint, if there can be any."""
    cast("Any", sqlite).exclusive = alone
    site.app._parts.offer(LANE, NOW)
    await drain(site.app)
    assert site.hints == ([] if alone else [(dispatcher.LOOP, NOW)])


async def test_the_last_hint_before_the_end(site: Site, sqlite: SqliteDatabase) -> None:
    """A hint that waits for the end of the pause is sent before the instance ends."""
    cast("Any", sqlite).exclusive = False
    site.app._parts.offer(LANE, NOW)
    await asyncio.sleep(0)
    site.app._parts.offer(LANE, NOW)
    assert len(site.hints) == 1
    await drain(site.app)
    assert len(site.hints) == 2
