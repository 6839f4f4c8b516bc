"""The client over a real RabbitMQ: commands, outages, alarms, logins, dead letters and durable consumers.

What is the same on each broker is in tests/ports/test_client_receive.py and in tests/e2e.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import aio_pika
import pytest

from tests.harness.rabbit_harness import RabbitHarness
from tests.harness.rabbit_peer import RabbitPeer, scheduled
from tests.harness.rabbitmq import memory_alarm
from tests.harness.tcp_proxy import Link, TcpProxy
from tests.harness.waiting import until
from timer_service.client import (
    CommandError,
    DueTimeReached,
    NewTimer,
    NoAnswerError,
    Outcome,
    QueryError,
    RunCompleted,
    TimerApp,
    TimerClient,
)

T = TypeVar("T")
DUE = datetime(2100, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def connect(rabbit: RabbitHarness, url: str = "", **options: Any) -> AsyncIterator[TimerClient]:
    async with TimerClient.connect(url or rabbit.server.url, subject_prefix=rabbit.prefix, **options) as client:
        yield client


def app_for(rabbit: RabbitHarness, kind: Any, **options: Any) -> tuple[TimerApp, list[str]]:
    """Return an app of the tenant with the test's prefix as its name, and the ids of the events that it has handled."""
    settings = {"subject_prefix": rabbit.prefix, "tenant": rabbit.prefix, "name": "orders", "attempts": 30, **options}
    app, handled = TimerApp(rabbit.server.url, **settings), list[str]()

    @app.on(kind)
    async def handle(event: Any) -> None:
        handled.append(event.id)

    return app, handled


async def take(found: AsyncIterator[T]) -> T:
    async with asyncio.timeout(10):
        return await anext(found)


async def ctl(rabbit: RabbitHarness, *arguments: str) -> str:
    return await asyncio.to_thread(rabbit.server.ctl, *arguments)


async def add_user(rabbit: RabbitHarness, name: str, *permissions: str) -> None:
    """Add a user, whose password is its name, with permissions to configure, write and read."""
    await ctl(rabbit, "add_user", name, name)
    await ctl(rabbit, "set_permissions", name, *permissions)


async def test_commands_in_order(rabbit: RabbitHarness, peer: RabbitPeer) -> None:
    """Many commands are stored in order, each with its id, and each gets its outcome. The progress is reported."""
    peer.outcome = lambda message: (
        {**scheduled(message), "error": {"code": "INVALID_PAYLOAD", "message": "no"}}
        if b"timer-3" in message.body
        else scheduled(message)
    )
    many = [NewTimer("acme", f"timer-{number}", DUE, number) for number in range(4)]
    ended: list[int] = []
    async with connect(rabbit) as client:
        outcomes = await client.timers.schedule_many(many, progress=ended.append)
        assert await client.timers.get("acme", "a") is None
        peer.answer = lambda message: {"error": {"code": "BUSY", "message": message.routing_key}}
        with pytest.raises(QueryError, match=r"BUSY: acme\.get-timer"):
            await client.query("acme", "get-timer", {})
    assert [type(each) for each in outcomes] == [Outcome, Outcome, Outcome, CommandError]
    assert ended == [1, 2, 3, 4]
    bodies = [json.loads(each.body) for each in peer.commands]
    assert [each["payload"]["serviceCallId"] for each in bodies] == [each.timer_id for each in many]
    assert [each.message_id for each in peer.commands] == [each["id"] for each in bodies]
    assert {each.routing_key for each in peer.commands} == {"acme.schedule-timer"}


async def test_unreadable_outcomes(rabbit: RabbitHarness, peer: RabbitPeer) -> None:
    """What is no outcome is ignored. The client goes on to receive."""
    peer.outcome = lambda _: None
    async with connect(rabbit) as client:
        waiting = asyncio.ensure_future(client.timers.schedule("acme", "a", DUE))
        await peer.until_commands(1)
        for body in (b"{", b"[]", b"\xff", b"{}", json.dumps(scheduled(peer.commands[0])).encode()):
            await peer.reply(peer.commands[0], body)
        assert (await waiting).name == "scheduled"


async def test_nothing_is_bound(rabbit: RabbitHarness) -> None:
    """A command or a query that no queue gets ends at once: RabbitMQ confirms it all the same."""
    channel = await rabbit.user.channel()
    await channel.queue_delete(f"{rabbit.prefix}.cmd.log")
    await channel.declare_exchange(f"{rabbit.prefix}.qry", "topic", durable=True)
    async with connect(rabbit) as client:
        with pytest.raises(NoAnswerError, match=rf"nothing stores commands: the exchange {rabbit.prefix}\.cmd has no"):
            await client.timers.schedule("acme", "a", DUE)
        with pytest.raises(NoAnswerError, match="no service answers queries here; is timer-service running"):
            await client.timers.get("acme", "a")


async def test_a_lost_connection_ends_what_waits(rabbit: RabbitHarness, peer: RabbitPeer) -> None:
    """A command, a query and a watch raise `NoAnswerError`. The client connects again by itself, and all work again."""
    peer.outcome = peer.answer = lambda _: None
    async with TcpProxy(rabbit.server.port) as proxy, connect(rabbit, f"amqp://127.0.0.1:{proxy.port}") as client:
        watch = client.timers.watch("acme")
        waiting = [
            asyncio.ensure_future(each)
            for each in (anext(watch), client.timers.schedule("acme", "a", DUE), client.timers.get("acme", "a"))
        ]
        await peer.until_commands(1)
        proxy.cut()
        for each in waiting:
            with pytest.raises(
                NoAnswerError,
                match=r"connection to the broker (was lost|has ended)|cannot be watched|may not (be|have)",
            ):
                await asyncio.wait_for(each, 5)
        peer.outcome = scheduled
        await until(lambda: answers(client))


@pytest.mark.slow
async def test_an_alarm(rabbit: RabbitHarness, peer: RabbitPeer) -> None:
    """While the server blocks publishers, calls say so at once, and events are received and acknowledged."""
    app, handled = app_for(rabbit, RunCompleted)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.on_due()
    async def hold(event: DueTimeReached) -> None:
        begun.set()
        await go_on.wait()
        handled.append(event.id)

    async with app.running():
        client = app.client
        await client.timers.schedule("acme", "a", DUE)
        for name in "ab":
            await peer.fire(name, tenant=rabbit.prefix)
        await begun.wait()
        async with memory_alarm(rabbit.server):
            with pytest.raises(NoAnswerError, match="no outcome within"):  # this one makes the server block publishers
                await client.timers.schedule("acme", "b", DUE, timeout_seconds=1)
            for call in (client.timers.schedule("acme", "c", DUE), client.timers.get("acme", "a")):
                with pytest.raises(NoAnswerError, match="RabbitMQ has an alarm, so it takes no messages"):
                    await asyncio.wait_for(call, 1)
            go_on.set()
            await until(lambda: sorted(handled) == ["a", "b"])
            await until(lambda: has(rabbit, "messages", 0))
        await until(lambda: answers(client))


async def answers(client: TimerClient) -> bool:
    try:
        return (await client.timers.schedule("acme", "d", DUE)).name == "scheduled"
    except NoAnswerError:
        return False


async def has(rabbit: RabbitHarness, column: str, number: int) -> bool:
    """Return whether the queue of the consumer `orders` has so many messages or consumers, as rabbitmqctl says."""
    lines = (await ctl(rabbit, "list_queues", "name", column)).splitlines()
    return f"{rabbit.prefix}.orders\t{number}" in lines


async def test_what_cannot_be_reached(rabbit: RabbitHarness) -> None:
    """The first connect raises an error with the reason, and without the login."""
    cases = {
        "amqp://127.0.0.1:1": "cannot connect to the broker at amqp://127.0.0.1:1: .*Connect call failed",
        f"amqp://kim:secret@127.0.0.1:{rabbit.server.port}": "ACCESS_REFUSED",
    }
    for url, reason in cases.items():
        with pytest.raises(NoAnswerError, match=reason) as caught:
            async with connect(rabbit, url):
                pass
        assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="nkeys_seed must be left out"):
        async with connect(rabbit, nkeys_seed="x"):
            pass


@pytest.mark.slow
async def test_a_login_is_read_again(rabbit: RabbitHarness, peer: RabbitPeer) -> None:
    """A password that has changed is used at the next connect."""
    await add_user(rabbit, "kim", ".*", ".*", ".*")
    passwords = ["kim"]
    login = {"login": lambda: {"user": "kim", "password": passwords[-1]}}
    async with TcpProxy(rabbit.server.port) as proxy, connect(rabbit, f"amqp://127.0.0.1:{proxy.port}", **login) as kim:
        await ctl(rabbit, "change_password", "kim", "second")
        passwords.append("second")
        proxy.cut()
        await until(lambda: answers(kim))


async def test_dead_letters(rabbit: RabbitHarness, peer: RabbitPeer) -> None:
    """They are listed newest first, of a tenant or of all, page by page, and read with their headers."""
    exchange = f"{rabbit.prefix}.dlq"
    async with connect(rabbit) as client:
        assert await client.dead_letters.list() == []
        for number in range(600):
            headers: Any = {
                "Timer-Error-Code": "INVALID_PAYLOAD",
                "Timer-Error-Message": "no",
                "Timer-Source-Sequence": str(number),
            }
            message = aio_pika.Message(str(number).encode(), headers=headers)
            await rabbit.wire.send(exchange, f"t{number % 2}.schedule-timer", message)
        letters = await client.dead_letters.list("t1", limit=60)
        assert [each.source_sequence for each in letters] == list(range(599, 479, -2))
        older = await client.dead_letters.list("t1", limit=1000, before=letters[-1].sequence)
        assert [each.source_sequence for each in older] == list(range(479, 0, -2))
        letter = await client.dead_letters.get("*", letters[0].sequence)
        assert letter is not None
        assert (letter.body, letter.code, letter.tenant, letter.size) == ("599", "INVALID_PAYLOAD", "t1", 3)
        assert letter.headers["Timer-Error-Message"] == "no"
        assert await client.dead_letters.get("t0", letters[0].sequence) is None
        assert await client.dead_letters.get("*", 1000) is None


@pytest.mark.slow
async def test_dead_letters_over_a_slow_connection(rabbit: RabbitHarness) -> None:
    """The list ends where the stream does, not where the connection is silent. When the client closes, it fails."""
    letters = [aio_pika.Message(str(number).encode()) for number in range(1500)]
    await asyncio.gather(*(rabbit.wire.send(f"{rabbit.prefix}.dlq", "acme.x", each) for each in letters))
    async with TcpProxy(rabbit.server.port) as proxy, connect(rabbit, f"amqp://127.0.0.1:{proxy.port}") as client:
        found = await client.dead_letters.list()
        proxy.set_link(Link(delay_seconds=0.6))
        assert await client.dead_letters.list() == found
        unfinished = asyncio.create_task(client.dead_letters.list())
        await asyncio.sleep(0)
    with pytest.raises(NoAnswerError):
        await unfinished


@pytest.mark.slow
async def test_a_refused_command_ends_no_watch(rabbit: RabbitHarness, peer: RabbitPeer) -> None:
    """The broker refuses a command of another tenant. Events still come, and the next command is stored."""
    own, generated = re.escape(rabbit.prefix), r"amq\.gen-.*"
    await add_user(rabbit, "ann", rf"^{generated}$", rf"^({generated}|{own}\.cmd)$", rf"^({generated}|{own}\.evt)$")
    await ctl(rabbit, "set_topic_permissions", "ann", f"{rabbit.prefix}.cmd", r"^acme\..*", "^$")
    async with connect(rabbit, user="ann", password="ann") as client:
        watch = client.timers.watch("acme")
        waiting = asyncio.ensure_future(take(watch))
        while not waiting.done():  # the broker does not say when a watch has begun
            await peer.fire("a", tenant="acme")
            await asyncio.sleep(0.05)
        with pytest.raises(NoAnswerError, match=r"ACCESS_REFUSED - (write )?access to topic 'other\.schedule-timer'"):
            await client.timers.schedule("other", "a", DUE)
        await peer.fire("b", tenant="acme")
        while (await take(watch)).id != "b":  # events that were fired before
            pass
        await until(lambda: answers(client))


async def test_an_event_that_is_given_back_often(rabbit: RabbitHarness, peer: RabbitPeer) -> None:
    """An event that is given back 25 times is still there, although RabbitMQ 4 has a limit of 20 by default."""
    tenant = rabbit.prefix
    async with connect(rabbit) as client:
        deliveries = client.consume(tenant, "orders")
        taking = asyncio.create_task(take(deliveries))
        await until(lambda: has(rabbit, "consumers", 1))
        await peer.fire("a", tenant=tenant)
        delivery = await taking
        for _ in range(25):
            await delivery.retry()
            delivery = await take(deliveries)
        assert delivery.attempt == 26
        await delivery.ack()
        await deliveries.aclose()


async def test_a_queue_of_another_type(rabbit: RabbitHarness) -> None:
    """A classic queue counts no attempts, so it is refused."""
    channel = await rabbit.user.channel()
    queue = await channel.declare_queue(f"{rabbit.prefix}.orders", durable=True)
    async with connect(rabbit) as client:
        with pytest.raises(NoAnswerError, match=f"the queue {queue.name} must be a quorum queue"):
            await take(client.consume(rabbit.prefix, "orders"))


@pytest.mark.slow
async def test_a_delay_ends_with_its_process(rabbit: RabbitHarness, peer: RabbitPeer) -> None:
    """An event that waits for its next attempt comes to another process at once if its process ends."""
    tenant = rabbit.prefix
    async with connect(rabbit) as first, connect(rabbit) as second:
        deliveries = first.consume(tenant, "orders")
        waiting = asyncio.ensure_future(take(deliveries))
        await until(lambda: has(rabbit, "consumers", 1))
        await peer.fire("a", tenant=tenant)
        delivery = await waiting
        assert delivery.attempt == 1
        await delivery.retry(timedelta(minutes=10))
        await deliveries.aclose()
        others = second.consume(tenant, "orders")
        again = await take(others)
        assert (again.event.about, again.attempt) == ("timer a", 2)
        await again.ack()
        await others.aclose()


@pytest.mark.slow
async def test_events_of_another_version(rabbit: RabbitHarness, peer: RabbitPeer) -> None:
    """An event without a handler here reaches the version that has one. Without another process it is dropped."""
    tenant = rabbit.prefix
    old, old_handled = app_for(rabbit, DueTimeReached)
    new, new_handled = app_for(rabbit, RunCompleted)
    async with old.running():
        async with new.running():
            for number in range(4):
                await peer.fire(f"run-{number}", tenant=tenant, kind="run-completed")
                await peer.fire(f"due-{number}", tenant=tenant)
            await until(lambda: len(old_handled) == len(new_handled) == 4)
        await peer.fire("later", tenant=tenant, kind="run-completed")
        await peer.fire("last", tenant=tenant)
        await until(lambda: old_handled[-1] == "last")
        await until(lambda: has(rabbit, "messages", 0))
    assert {each[:3] for each in new_handled} == {"run"}


@pytest.mark.slow
async def test_a_login_that_declares_nothing(rabbit: RabbitHarness, peer: RabbitPeer) -> None:
    """The error says what the operator must create. Then apps use it, and drop events without a handler at once."""
    tenant = rabbit.prefix
    await add_user(rabbit, "fenced", "^$", rf"^{tenant}\.(cmd|qry|wrk)$", rf"^{tenant}\..*")
    await ctl(rabbit, "set_topic_permissions", "fenced", f"{tenant}.cmd", rf"^{tenant}\..*", "^$")
    login = {"user": "fenced", "password": "fenced"}
    app, handled = app_for(rabbit, DueTimeReached, **login)
    other, others = app_for(rabbit, DueTimeReached, **login)
    with pytest.raises(NoAnswerError, match=rf"ACCESS_REFUSED.*operator must create.*{tenant}\.due-time-reached"):
        await app.serve()
    channel = await rabbit.user.channel()
    queue = await channel.declare_queue(f"{tenant}.orders", durable=True, arguments={"x-queue-type": "quorum"})
    await queue.bind(f"{tenant}.evt", f"{tenant}.#")
    async with app.running(), other.running():
        for number in range(20):
            await peer.fire(f"run-{number}", tenant=tenant, kind="run-completed")
        await peer.fire("due", tenant=tenant)
        await until(lambda: handled + others == ["due"])
        with pytest.raises(NoAnswerError, match="ACCESS_REFUSED"):
            await app.client.timers.schedule("other", "a", DUE)
        await peer.fire("again", tenant=tenant)
        await until(lambda: sorted(handled + others) == ["again", "due"])
        await until(lambda: has(rabbit, "messages", 0))


@pytest.mark.slow
async def test_a_login_that_binds_nothing(rabbit: RabbitHarness) -> None:
    """An app whose own queue would get nothing does not start."""
    tenant = rabbit.prefix
    await add_user(rabbit, "unbound", rf"^{tenant}\.orders$", rf"^{tenant}\.orders$", rf"^{tenant}\.orders$")
    app, _ = app_for(rabbit, DueTimeReached, user="unbound", password="unbound")
    with pytest.raises(NoAnswerError, match=rf"cannot be bound .*ACCESS_REFUSED.*{tenant}\.evt"):
        await app.serve()
    missing = TimerApp(rabbit.server.url, subject_prefix="none", tenant=tenant, name="none")
    missing.on_due()(print)
    with pytest.raises(NoAnswerError, match=r"exchange none\.evt is missing; was timer-service started"):
        await missing.serve()
