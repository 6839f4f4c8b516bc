"""Durable consumers as consumer groups of Redis: what a group does not have by itself."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tests.harness.receiving import RedisPublisher
from tests.harness.redis import RedisServer
from tests.harness.waiting import until
from timer_service.client import DueTimeReached, NoAnswerError, RunCompleted, TimerApp, TimerClient
from timer_service.client.receive.delivery import Delivery
from timer_service.client.redis import groups
from timer_service.redis_client import new_client

SECOND = timedelta(seconds=1)


@pytest.fixture
async def events(server: RedisServer) -> AsyncIterator[RedisPublisher]:
    async with new_client(server.url, "publisher") as client:
        yield RedisPublisher(client, room=3)


async def take(deliveries: AsyncIterator[Delivery]) -> Delivery:
    async with asyncio.timeout(10):
        return await anext(deliveries)


def app_for(server: RedisServer, kind: Any) -> tuple[TimerApp, list[str]]:
    """Return an app that handles a class of events, and the ids of those that it has handled."""
    app, handled = TimerApp(server.url, tenant="acme", name="orders", attempts=30), list[str]()

    @app.on(kind)
    async def handle(event: Any) -> None:
        handled.append(event.id)

    return app, handled


async def test_unwanted_events_are_acknowledged_unread(server: RedisServer, events: RedisPublisher) -> None:
    """An app alone does not see the events of types for which it has no handler. They do not wait."""
    app, handled = app_for(server, DueTimeReached)
    async with app.running():
        await events.publish("RunCompleted", runId="r", name="r")
        await events.fire("a")
        await until(lambda: handled == ["event-a"])
        await events.until_acknowledged()


async def test_an_older_version_settles_nothing_of_a_newer_one(server: RedisServer, events: RedisPublisher) -> None:
    """Events that only the newer version wants wait for it, also while it restarts and the older one goes on."""
    old, old_handled = app_for(server, DueTimeReached)
    new, new_handled = app_for(server, RunCompleted)
    async with old.running():
        async with new.running():
            await events.publish("RunCompleted", runId="r", name="1")
            await until(lambda: new_handled == ["event-1"])
        await events.publish("RunCompleted", runId="r", name="2")
        await events.fire("a")
        await until(lambda: old_handled == ["event-a"])
        async with new.running():
            await until(lambda: new_handled == ["event-1", "event-2"])
            await events.until_acknowledged()


async def test_a_delay_outlives_its_process(server: RedisServer, events: RedisPublisher) -> None:
    """An event that was given back comes to another process, not before its delay, as the next attempt."""
    await events.fire("a")
    async with TimerClient.connect(server.url) as client:
        deliveries = client.consume("acme", "orders", from_start=True)
        delivery = await take(deliveries)
        await delivery.retry(2 * SECOND)
        began = time.monotonic()
        await deliveries.aclose()
    async with TimerClient.connect(server.url) as client:
        deliveries = client.consume("acme", "orders", ack_wait=SECOND)
        delivery = await take(deliveries)
        assert (delivery.event.about, delivery.attempt) == ("timer a", 2)
        assert time.monotonic() - began > 1.9
        await delivery.ack()
        await deliveries.aclose()
    assert await events.unacknowledged() == (0, 0)


async def test_the_events_of_a_process_that_is_gone(server: RedisServer, events: RedisPublisher) -> None:
    """They come to another process after `ack_wait`, unless they were renewed, as the next attempt."""
    await events.fire("lost")
    await events.fire("renewed")
    async with TimerClient.connect(server.url) as gone, TimerClient.connect(server.url) as other:
        given = gone.consume("acme", "orders", from_start=True, ack_wait=SECOND)
        lost, renewed = [await take(given) for _ in range(2)]
        deliveries = other.consume("acme", "orders", ack_wait=SECOND)
        arriving = asyncio.ensure_future(take(deliveries))
        while not arriving.done():
            await renewed.renew()
            await asyncio.sleep(0.1)
        again = arriving.result()
        assert (again.event.id, again.attempt) == (lost.event.id, 2)
        await again.ack()
        await renewed.ack()
        await until(lambda: _is_settled(events))
        await given.aclose()
        await deliveries.aclose()


async def _is_settled(events: RedisPublisher) -> bool:
    return await events.unacknowledged() == (0, 0)


async def test_a_group_with_too_many_unsettled_events(
    server: RedisServer, events: RedisPublisher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No more events are read until some are settled, and the log says so."""
    monkeypatch.setattr(groups, "MOST_UNSETTLED", 20)
    monkeypatch.setattr(groups, "LOOK_SECONDS", 0.05)
    async with TimerClient.connect(server.url) as client:
        deliveries = client.consume("acme", "orders")
        first = asyncio.ensure_future(take(deliveries))
        await until(events.exists)
        for number in range(100):
            await events.fire(str(number))
        taken = [await first]
        while "has 20 events that are not settled" not in caplog.text:
            taken.append(await take(deliveries))
            await asyncio.sleep(0.02)
        assert len(taken) < 50
        for each in taken:
            await each.ack()
        while len(taken) < 100:
            taken.append(await take(deliveries))
            await taken[-1].ack()
        await deliveries.aclose()
    assert sorted(int(each.event.about.removeprefix("timer ")) for each in taken) == list(range(100))


async def test_a_stop_leaves_no_name(server: RedisServer, events: RedisPublisher) -> None:
    """A process that has settled everything leaves nothing in the group but what its program wants."""
    app, handled = app_for(server, DueTimeReached)
    async with app.running():
        await events.fire("a")
        await until(lambda: handled == ["event-a"])
        assert len(await events.client.xinfo_consumers("timer:evt:acme", "orders")) == 4
    names = {each["name"] for each in await events.client.xinfo_consumers("timer:evt:acme", "orders")}
    assert names == {b"wants due-time-reached", b"wants due-time-reached.*", b"wants resubmitted.orders"}


async def test_a_message_that_is_no_event(server: RedisServer, events: RedisPublisher) -> None:
    """It is delivered with the reason why it cannot be read. What was deleted is not delivered."""
    async with TimerClient.connect(server.url) as client:
        deliveries = client.consume("acme", "orders", from_start=True)
        await events.client.xadd("timer:evt:acme", {"type": "due-time-reached", "id": "x", "body": b"\xff"})
        await events.client.xadd("timer:evt:acme", {"odd": b"\xff"})
        await events.fire("a")
        delivery = await take(deliveries)
        assert (delivery.event.id, "this is no event" in (delivery.problem or "")) == ("x", True)
        assert (await take(deliveries)).event.about == "timer a"
        await deliveries.aclose()


async def test_a_stream_of_the_operator(server: RedisServer) -> None:
    """It is refused: each tenant has a stream of its own."""
    app = TimerApp(server.url, tenant="acme", name="orders", stream="TIMER_EVT_acme")
    app.on_due()(print)
    with pytest.raises(NoAnswerError, match="stream must be left out: each tenant has a stream of its own on Redis"):
        await app.serve()
