"""`TimerApp` and `consume` with the real server of each broker: acknowledged, shared, and resumed.

tests/e2e/test_receive.py has what needs the service, and tests/nats/test_receive.py what only NATS has.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from redis.exceptions import RedisError

from tests.harness.processes import NatsServer
from tests.harness.rabbitmq import RabbitServer
from tests.harness.receiving import EventPublisher, RabbitPublisher, event_publisher
from tests.harness.redis import RedisServer
from tests.harness.tcp_proxy import TcpProxy
from tests.harness.waiting import until
from timer_service.client import (
    DueTimeReached,
    Event,
    Filter,
    JobReady,
    MemorySeen,
    NoAnswerError,
    RunCompleted,
    ScheduleFired,
    TimerApp,
    TimerClient,
    TimerExpired,
    WorkSignalFired,
)
from timer_service.client.connection import open_connection
from timer_service.client.receive import attempt as attempts_module
from timer_service.client.receive import delivery as delivery_module
from timer_service.client.receive.filters import check_consumer
from timer_service.client.redis import groups

SECOND = timedelta(seconds=1)
Server = NatsServer | RedisServer | RabbitServer


@pytest.fixture(params=[NatsServer, RedisServer, pytest.param(RabbitServer, marks=pytest.mark.slow)])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    """Yield a server of each broker without streams. The test may stop, kill and start it again.

    The tests of a process share a RabbitMQ, because it takes 5 s to start.
    """
    if request.param is RabbitServer:
        shared: RabbitServer = request.getfixturevalue("rabbit_server")
        await shared.ensure_started()
        yield shared
    else:
        async with request.param(tmp_path / "broker") as server:
            yield server


@pytest.fixture
async def events(server: Server) -> AsyncIterator[EventPublisher]:
    async with event_publisher(server) as found:
        yield found
        if isinstance(found, RabbitPublisher):
            await found.clear()


@pytest.fixture
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make failed events come again soon."""
    monkeypatch.setattr(delivery_module, "FIRST_DELAY", timedelta(milliseconds=20))
    monkeypatch.setattr(attempts_module, "LONGEST_DELAY", timedelta(milliseconds=50))
    monkeypatch.setattr(groups, "LOOK_SECONDS", 0.02)


def collecting(url: str, *, name: str = "orders", **options: Any) -> tuple[TimerApp, list[str]]:
    """Return an app that handles every DueTimeReached, and the ids of the timers that it has handled."""
    app, handled = TimerApp(url, tenant="acme", name=name, **options), list[str]()

    @app.on_due()
    async def handle(event: DueTimeReached) -> None:
        handled.append(event.timer_id)

    return app, handled


async def fire_soon(events: EventPublisher, name: str) -> None:
    """Publish an event to a server that has just started."""
    async with asyncio.timeout(20):
        while True:
            try:
                await events.fire(name)
            except (OSError, RedisError, nats.errors.Error):
                await asyncio.sleep(0.05)
            else:
                return


async def test_each_kind_of_event_reaches_its_handler(server: Server, events: EventPublisher) -> None:
    """Each event is handled once, as its class, and acknowledged."""
    app = TimerApp(server.url, tenant="acme", name="orders")
    handled: dict[str, Event] = {}

    @app.on_due("unpaid")
    async def due(event: DueTimeReached) -> None:
        handled["due"] = event

    @app.on_expired()
    def expired(event: TimerExpired) -> None:
        handled["expired"] = event

    @app.on_slot("morning-report")
    async def slot(event: ScheduleFired) -> None:
        handled["slot"] = event

    @app.on_signal()
    async def fired(event: WorkSignalFired) -> None:
        handled["signal"] = event

    @app.on_job("build")
    async def job(event: JobReady) -> None:
        handled["job"] = event

    @app.on(RunCompleted)
    async def run(event: RunCompleted) -> None:
        handled["run"] = event

    async with app.running():
        await events.fire("a", topic="paid")
        await events.fire("b")
        await events.publish("JobReady", runId="r", jobName="test", name="c")
        await events.publish("ScheduleFired", scheduleId="other", name="d")
        await events.fire("e", topic="unpaid", tenant="other")
        assert handled == {}
        await events.fire("f", 7, topic="unpaid")
        await events.publish("TimerExpired", "any", serviceCallId="g", name="g")
        await events.publish("ScheduleFired", scheduleId="morning-report", name="h")
        await events.publish("work.signal.fired", name="i")
        await events.publish("JobReady", runId="r", jobName="build", name="j")
        await events.publish("RunCompleted", runId="r", name="k")
        await until(lambda: len(handled) == 6)
        await events.until_acknowledged()
    found = {name: event.id for name, event in handled.items()}
    assert found == {
        "due": "event-f",
        "expired": "event-g",
        "slot": "event-h",
        "signal": "event-i",
        "job": "event-j",
        "run": "event-k",
    }


async def test_a_new_consumer_begins_now(server: Server, events: EventPublisher) -> None:
    """It gets the events from its creation on, also those that are published while no app runs; or all if wanted.

    RabbitMQ has no queue that begins with old events, and says so.
    """
    await events.fire("before")
    app, handled = collecting(server.url)
    async with app.running():
        await events.fire("a")
        await until(lambda: handled == ["a"])
    await events.fire("b")
    async with app.running():
        await until(lambda: handled == ["a", "b"])
    everything, all_handled = collecting(server.url, name="audit", from_start=True)
    if isinstance(server, RabbitServer):
        with pytest.raises(NoAnswerError, match=r"from_start must be left out: read the stream timer\.evt\.log"):
            await everything.serve()
        return
    async with everything.running():
        await until(lambda: sorted(all_handled) == ["a", "b", "before"])


async def test_consumers_of_tenants_do_not_collide(server: Server, events: EventPublisher) -> None:
    """The consumer b_c of the tenant a is another one than c of the tenant a_b."""
    names: list[str] = []
    for tenant, name in [("a", "b_c"), ("a_b", "c")]:
        app = TimerApp(server.url, tenant=tenant, name=name)

        @app.on_due()
        async def handle(event: DueTimeReached) -> None:
            names.append(event.tenant)

        async with app.running():
            await events.fire("x", tenant=tenant)
            await until(lambda tenant=tenant: names[-1:] == [tenant])  # type: ignore[misc]
    assert names == ["a", "a_b"]


async def test_handlers_that_are_not_async_run_at_the_same_time(server: Server, events: EventPublisher) -> None:
    """Each has a thread, with the context of the app's task."""
    app = TimerApp(server.url, tenant="acme", name="orders", concurrency=3)
    barrier = threading.Barrier(3)
    handled: list[str] = []

    @app.on_due()
    def handle(event: DueTimeReached) -> None:
        barrier.wait(10)
        handled.append(event.timer_id)

    async with app.running():
        for name in "abc":
            await events.fire(name)
        await until(lambda: sorted(handled) == ["a", "b", "c"])
        await events.until_acknowledged()


async def test_a_stop_gives_back_what_has_not_begun(server: Server, events: EventPublisher) -> None:
    """The handler in progress ends, and is acknowledged. Another process gets the others at once."""
    app = TimerApp(server.url, tenant="acme", name="orders", concurrency=1)
    begun, end = asyncio.Event(), asyncio.Event()
    handled: list[str] = []

    @app.on_due()
    async def handle(event: DueTimeReached) -> None:
        begun.set()
        await end.wait()
        handled.append(event.timer_id)

    async with app.running():
        for name in "abc":
            await events.fire(name)
        await begun.wait()
        app.stop()
        other, others = collecting(server.url)
        async with other.running():
            await until(lambda: sorted(others) == ["b", "c"], seconds=10)
        end.set()
    assert handled == ["a"]
    await events.until_acknowledged()


async def test_two_processes_share_the_work(server: Server, events: EventPublisher) -> None:
    """Each event is handled by one of them."""
    first, one = collecting(server.url)
    second, two = collecting(server.url)
    async with first.running(), second.running():
        await asyncio.gather(*(events.fire(str(number)) for number in range(400)))
        await events.until_acknowledged()
    assert sorted(one + two, key=int) == [str(number) for number in range(400)]
    assert min(len(one), len(two)) > 50


async def test_a_repeat_is_not_handled_again(server: Server, events: EventPublisher) -> None:
    """An event that the stream has twice is handled once."""
    app, handled = collecting(server.url)
    async with app.running():
        await events.fire("a")
        await events.fire("a")
        await events.fire("b")
        await events.until_acknowledged()
    assert sorted(handled) == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["terminate", "kill"])
async def test_restarts_of_the_server(server: Server, events: EventPublisher, how: str) -> None:
    """After a restart the app goes on by itself. Every event is handled, also one that was in progress meanwhile."""
    app = TimerApp(server.url, tenant="acme", name="orders", ack_wait=SECOND)
    handled: list[str] = []
    end = asyncio.Event()

    @app.on_due()
    async def handle(event: DueTimeReached) -> None:
        if event.timer_id == "long":
            await end.wait()
        handled.append(event.timer_id)

    async with app.running():
        await events.fire("long")
        await events.fire("a")
        await until(lambda: handled == ["a"])
        await getattr(server, how)()
        await server.start()
        await fire_soon(events, "b")
        await until(lambda: "b" in handled)
        end.set()
        await events.until_acknowledged()
    assert sorted(handled) == ["a", "b", "long"]


async def test_a_deleted_consumer_is_created_again(
    server: Server, events: EventPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on where the deleted one was: events that are published in between are not lost."""
    app, handled = collecting(server.url)
    async with app.running():
        await events.fire("a")
        await until(lambda: handled == ["a"])
        await events.delete_consumer()
        if isinstance(server, RabbitServer):  # which keeps no event for a queue that does not exist
            await until(events.exists)
        await events.fire("b")
        await until(lambda: handled == ["a", "b"])
        await events.until_acknowledged()
    assert "was deleted; it is created again" in caplog.text


@pytest.mark.parametrize("server", [NatsServer, RedisServer], indirect=True)
async def test_a_stream_that_was_replaced(server: Server, events: EventPublisher) -> None:
    """In a new stream, the consumer begins with the first event."""
    app, handled = collecting(server.url)
    async with app.running():
        await events.fire("a")
        await until(lambda: handled == ["a"])
        await events.replace_stream()
        await events.fire("b")
        await until(lambda: handled == ["a", "b"])


async def test_new_handlers_change_the_consumer(server: Server, events: EventPublisher, short_delays: None) -> None:
    """A version with other handlers changes the filters; while an older one runs, it only adds some.

    On RabbitMQ it can never remove some, and drops their events.
    """
    old, old_handled = collecting(server.url, attempts=30)
    new, new_handled = TimerApp(server.url, tenant="acme", name="orders", attempts=30), list[str]()

    @new.on(RunCompleted)
    async def handle(event: RunCompleted) -> None:
        new_handled.append(event.run_id)

    due = {"due-time-reached", "due-time-reached.*"}
    async with old.running(), new.running():
        assert await events.wanted() == {*due, "run-completed", "resubmitted.orders"}
        await events.publish("RunCompleted", runId="r", name="r")
        await events.fire("a")
        await until(lambda: (new_handled, old_handled) == (["r"], ["a"]))
        await events.until_acknowledged()
    async with new.running():
        kept = due if isinstance(server, RabbitServer) else set()
        assert await events.wanted() == {*kept, "run-completed", "resubmitted.orders"}
        await events.fire("b")
        await events.until_acknowledged()
    assert (new_handled, old_handled) == (["r"], ["a"])


async def test_a_busy_version_keeps_its_events(server: Server, events: EventPublisher) -> None:
    """An older version that starts removes no filter of one that has no room for more events."""
    new, end = TimerApp(server.url, tenant="acme", name="orders", concurrency=1), asyncio.Event()
    old, old_handled = collecting(server.url)
    handled: list[str] = []

    @new.on(RunCompleted)
    async def handle(event: RunCompleted) -> None:
        await end.wait()
        handled.append(event.id)

    runs = [f"event-{name}" for name in "abcde"]
    async with new.running():
        for name in "abcd":
            await events.publish("RunCompleted", runId=name, name=name)
        while await events.is_waiting():
            await asyncio.sleep(0.01)
        async with old.running():
            await events.fire("1")
            await until(lambda: old_handled == ["1"])
        await events.publish("RunCompleted", runId="e", name="e")
        end.set()
        await until(lambda: sorted(handled) == runs)


async def test_order_after_a_lost_connection(
    server: Server, events: EventPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    """Events that waited in the process stay before newer ones."""
    caplog.set_level(logging.INFO)
    end, handled = asyncio.Event(), list[str]()
    async with TcpProxy(server.port) as proxy:
        app = TimerApp(
            server.url.replace(str(server.port), str(proxy.port)), tenant="acme", name="orders", concurrency=1
        )

        @app.on_due()
        async def handle(event: DueTimeReached) -> None:
            await end.wait()
            handled.append(event.timer_id)

        async with app.running():
            for name in "ab":
                await events.fire(name)
            while await events.unacknowledged() != (2, 0):
                await asyncio.sleep(0.01)
            proxy.cut()
            await until(lambda: "receiving again" in caplog.text)
            await events.fire("c")
            end.set()
            await until(lambda: "c" in handled)
    assert handled == ["a", "b", "c"]


async def test_an_app_in_one_loop_after_the_other(server: Server, events: EventPublisher) -> None:
    """An app of a module serves tests that have a loop each. A handler that comes too late is refused."""
    app, handled = collecting(server.url)

    async def use(name: str) -> None:
        async with app.running(), event_publisher(server) as publisher:
            with pytest.raises(RuntimeError, match="the app runs already"):
                app.on_expired()
            await publisher.fire(name)
            await until(lambda: name in handled)

    for name in "ab":
        await asyncio.to_thread(asyncio.run, use(name))
    assert handled == ["a", "b"]


async def test_deliveries_that_are_taken_without_waiting(server: Server, events: EventPublisher) -> None:
    """A reader that has taken all that had arrived gets what comes later."""
    wanted = check_consumer("acme", "orders", (), stream=None, from_start=False, ack_wait=30 * SECOND)
    async with open_connection(server.url, "user", "timer", {}) as connection:
        source = connection.link.consume(wanted, 4)
        await source.open()
        for number in range(10):
            await events.fire(str(number))
        taken = [await source.next()]
        async with asyncio.timeout(10):
            while len(taken) < 4:
                taken += [each for each in [source.next_waiting()] if each is not None]
                await asyncio.sleep(0)
            taken += [await source.next() for _ in range(6)]
        await source.close()
    assert [each.event.about for each in taken] == [f"timer {number}" for number in range(10)]


async def test_consume(server: Server, events: EventPublisher) -> None:
    """`consume` yields deliveries. What is not acknowledged, or given back, comes again, also to another program."""
    async with TimerClient.connect(server.url) as client:
        deliveries = client.consume("acme", "orders", Filter(DueTimeReached, "a"))
        async with asyncio.timeout(20):
            waiting = asyncio.ensure_future(anext(deliveries))
            await until(events.exists)
            await events.fire("x")
            await events.fire("y", topic="a")
            delivery = await waiting
            assert (delivery.event.about, delivery.attempt) == ("timer y", 1)
            await delivery.retry()
            delivery = await anext(deliveries)
            assert (delivery.event.about, delivery.attempt) == ("timer y", 2)
            await delivery.renew()
            await delivery.ack()
            await delivery.ack()
            await events.until_acknowledged()
            await deliveries.aclose()
            with pytest.raises(ValueError, match="name must be"):
                client.consume("acme", "a.b")


async def test_consume_after_the_end_of_the_client(server: Server, events: EventPublisher) -> None:
    """An iteration that goes on after the block of its client raises `NoAnswerError`, like `watch`."""
    async with TimerClient.connect(server.url) as client:
        waiting = asyncio.ensure_future(anext(client.consume("acme", "orders")))
        await until(events.exists)
    with pytest.raises(NoAnswerError, match=r"the connection to the broker (is closed|was lost)"):
        await asyncio.wait_for(waiting, 10)


class TransactionSeen(MemorySeen):
    """A store whose marks are in a transaction, which is a set here."""

    async def add_in(self, connection: Any, consumer: str, event_id: str) -> bool:
        if (consumer, event_id) in connection:
            return False
        connection.add((consumer, event_id))
        return True

    async def add(self, *_: str) -> None:
        raise AssertionError("the handler has marked the event itself")


async def test_the_mark_in_the_transaction_of_a_handler(
    server: Server, events: EventPublisher, short_delays: None
) -> None:
    """A handler with `once` has its effect once, although it failed after it, and its event came again."""
    app = TimerApp(server.url, tenant="acme", name="orders", seen=TransactionSeen())
    committed: set[Any] = set()
    effects: list[str] = []
    failures = 0

    @app.on_due()
    async def handle(event: DueTimeReached) -> None:
        nonlocal failures
        async with app.once(event, committed):
            effects.append(event.timer_id)
        if event.timer_id == "a" and not failures:
            failures += 1
            raise RuntimeError

    async with app.running():
        await events.fire("a")
        await events.fire("b")
        await events.until_acknowledged()
    assert (sorted(effects), failures) == (["a", "b"], 1)
    assert committed == {("acme~orders", "event-a"), ("acme~orders", "event-b")}


async def test_handlers_use_the_client_of_the_app(server: Server, events: EventPublisher) -> None:
    """`app.client` has the connection of the app."""
    app = TimerApp(server.url, tenant="acme", name="orders")
    found: list[Callable[..., Any]] = []

    @app.on_due()
    async def handle(event: DueTimeReached) -> None:
        found.append(app.client.timers.schedule)

    async with app.running():
        await events.fire("a")
        await until(lambda: len(found) == 1)
