"""Publishing, set-up and requests on RabbitMQ: alarms, kills, missing parts and permissions."""

import asyncio
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import aio_pika
import pytest

from tests.harness.builders import event
from tests.harness.rabbit_harness import RabbitHarness
from tests.harness.rabbitmq import memory_alarm
from tests.harness.waiting import until
from timer_service.adapters.rabbitmq import RabbitBroker
from timer_service.adapters.rabbitmq.server import Server
from timer_service.adapters.rabbitmq.stream import LAST, StreamConnection
from timer_service.core.ports.broker import PublishStatus, QueryReply, Replies, Reply, Request
from timer_service.core.ports.health import HEALTHY
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import StartError
from timer_service.core.values.message import Message

P, R, F, U = PublishStatus.PUBLISHED, PublishStatus.REFUSED, PublishStatus.FULL, PublishStatus.UNAVAILABLE


async def statuses(rabbit: RabbitHarness, messages: Sequence[Message]) -> list[PublishStatus]:
    return [result.status for result in await rabbit.broker.publish(messages)]


async def test_memory_alarm(rabbit: RabbitHarness) -> None:
    """While the server has a memory alarm, it is full and says so, and replies wait 5 s. Afterwards it is well."""
    inbox = await rabbit.inbox()
    async with memory_alarm(rabbit.server):
        first = await statuses(rabbit, [event(1)])
        second = await rabbit.broker.publish([event(2)] * 3)
        health, streams = rabbit.broker.health, rabbit.broker.streams.health
        async with asyncio.timeout(10):
            await rabbit.broker.reply([Reply(inbox.address, b"x" * 1_000_000)] * 20)
            await rabbit.broker.streams.tick(0)
    await until(lambda: rabbit.broker.health == HEALTHY)
    assert (first, {each.status for each in second}) == ([F], {F})
    assert "alarm" in second[0].reason
    assert (health.usable, streams[Kind.COMMAND].usable) == (False, False)
    assert await statuses(rabbit, [event(3)]) == [P]
    assert {each.id for each in await rabbit.events("acme")} >= {"event-3"}


async def test_calls_that_overlap(rabbit: RabbitHarness) -> None:
    """Calls that overlap are stored one after the other: a process that is killed has half stored one of them."""
    calls = [[event(number) for number in range(start, start + 700)] for start in (0, 1000, 2000)]
    assert await asyncio.gather(*(statuses(rabbit, call) for call in calls)) == [[P] * 700] * 3
    stored = [int(each.id.removeprefix("event-")) // 1000 for each in await rabbit.events("acme")]
    assert [(call, len([*events])) for call, events in groupby(stored)] == [
        (call, 700) for call in dict.fromkeys(stored)
    ]


async def test_few_messages_beside_many(rabbit: RabbitHarness) -> None:
    """An event does not wait until a call with many events has ended."""
    many = asyncio.create_task(statuses(rabbit, [event(number) for number in range(10_000)]))
    stream = await StreamConnection.open(Server(rabbit.server.url), rabbit.broker.streams.name(Kind.EVENT))

    async def has_begun() -> bool:
        return await stream.look(LAST) is not None

    await until(has_begun)
    assert await statuses(rabbit, [event(10_000)]) == [P]
    assert not many.done()
    await stream.close()
    assert {*await many} == {P}


async def test_killed_server(rabbit: RabbitHarness) -> None:
    """A server that is killed has every event that it has confirmed. The service connects again."""
    assert await statuses(rabbit, [event(number) for number in range(50)]) == [P] * 50
    await rabbit.server.kill()
    assert await statuses(rabbit, [event(50)]) == [U]
    await rabbit.start()
    assert {each.id for each in await rabbit.events("acme")} == {f"event-{number}" for number in range(50)}
    assert rabbit.broker.outages == 1


async def test_missing_stream(rabbit: RabbitHarness, caplog: pytest.LogCaptureFixture) -> None:
    """While the stream of events is missing, events are not published, though dead letters are, until it is created."""
    await (await rabbit.user.channel()).queue_delete(f"{rabbit.prefix}.evt.log")
    letter = event(2)._replace(address=event(2).address._replace(kind=Kind.DEAD_LETTER))
    found = await rabbit.broker.publish([event(1), letter])
    assert [each.status for each in found] == [U, P]
    assert f"stream {rabbit.prefix}.evt.log is missing" in found[0].reason
    await rabbit.broker.streams.tick(0)
    assert await statuses(rabbit, [event(1)]) == [P]
    assert "a stream was created again" in caplog.text


async def test_dead_letters_with_one_id(rabbit: RabbitHarness) -> None:
    """Of several messages with the same id that no queue gets, none counts as published."""
    await (await rabbit.user.channel()).queue_delete(f"{rabbit.prefix}.dlq.log")
    letter = event(1)._replace(address=event(1).address._replace(kind=Kind.DEAD_LETTER))
    assert await statuses(rabbit, [letter, letter, letter._replace(id="other")]) == [U, U, U]
    await rabbit.broker.streams.tick(0)
    assert await statuses(rabbit, [letter, letter]) == [P, P]


async def test_headers_too_large(rabbit: RabbitHarness) -> None:
    """A message whose headers do not fit into a frame is refused. The others are published."""
    large = event(1)._replace(headers={"large": "x" * 140_000})
    found = await rabbit.broker.publish([large, event(2)])
    assert [each.status for each in found] == [R, P]
    assert "headers are larger" in found[0].reason


async def test_missing_exchange(rabbit: RabbitHarness) -> None:
    """Without the exchange nothing is published, and the reason is that of the server. The upkeep creates it again."""
    await (await rabbit.user.channel()).exchange_delete(f"{rabbit.prefix}.evt")
    (result,) = await rabbit.broker.publish([event(1)])
    assert (result.status, "no exchange" in result.reason) == (U, True)
    await rabbit.broker.streams.tick(0)
    assert await statuses(rabbit, [event(1)]) == [P]


async def test_full_queue_of_a_user(rabbit: RabbitHarness) -> None:
    """A queue of users that rejects an event makes only that event fail, as the broker has stored others."""
    arguments: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = await (await rabbit.user.channel()).declare_queue(exclusive=True, arguments=arguments)
    await queue.bind(f"{rabbit.prefix}.evt", "full.#")
    events = [event(1, tenant="full"), event(2, tenant="full"), event(3)]
    assert await statuses(rabbit, events) == [P, R, P]
    assert await statuses(rabbit, [event(4, tenant="full")]) == [F]


async def test_only_checked(rabbit: RabbitHarness) -> None:
    """A service that may not create streams names what is missing, at the start and later."""
    await rabbit.connect(manage=False)
    checked = await rabbit.connect(manage=False)
    await (await rabbit.user.channel()).queue_delete(f"{rabbit.prefix}.dlq.log")
    with pytest.raises(StartError, match=rf"no queue '{rabbit.prefix}\.dlq\.log'.*TIMER_MANAGE_STREAMS=true"):
        await rabbit.connect(manage=False)
    later = await checked.streams.tick(0)
    assert later.next_at is not None
    assert not checked.streams.health[Kind.DEAD_LETTER].usable
    assert checked.streams.health[Kind.EVENT] == HEALTHY


async def test_permissions(rabbit: RabbitHarness) -> None:
    """A wrong password and a missing permission end the start at once, with the words of the server."""
    url = rabbit.server.url
    with pytest.raises(StartError, match=r"refuses the login.*ACCESS_REFUSED"):
        await rabbit.connect(url=url.replace("guest:guest", "guest:wrong"))
    name = f"user-{rabbit.prefix}"
    await asyncio.to_thread(rabbit.server.ctl, "add_user", name, "secret")
    login = {"user": name, "password": "secret"}
    name_of_events = f"{rabbit.prefix}.evt.log"
    for configure, refused in ((f"{rabbit.prefix}.*", "exchange 'amq.default'"), ("^$", f"queue '{name_of_events}'")):
        write = f"{rabbit.prefix}.*"
        await asyncio.to_thread(rabbit.server.ctl, "set_permissions", name, configure, write, ".*")
        refusal = f"ACCESS_REFUSED - (write |configure )?access to {re.escape(refused)} .* refused for user"
        with pytest.raises(StartError, match=refusal):
            await RabbitBroker.connect(url, rabbit.prefix, login=lambda: login, manage_streams=True)
        await (await rabbit.user.channel()).queue_delete(name_of_events)


@pytest.mark.parametrize(("part", "wrong"), [("exchange", "fanout"), ("queue", "none|classic")])
async def test_wrong_type(rabbit: RabbitHarness, part: str, wrong: str) -> None:
    """An exchange or a stream that exists with another type is refused at the start, with the words of the server."""
    channel = await rabbit.user.channel()
    if part == "exchange":
        await channel.exchange_delete(f"{rabbit.prefix}.evt")
        await channel.declare_exchange(f"{rabbit.prefix}.evt", "fanout", durable=True)
    else:
        await channel.queue_delete(f"{rabbit.prefix}.evt.log")
        await channel.declare_queue(f"{rabbit.prefix}.evt.log", durable=True)
    with pytest.raises(StartError, match=rf"{rabbit.prefix}\.evt.*type.*current is .*({wrong})"):
        await rabbit.connect()


async def test_start_at_an_alarm(rabbit: RabbitHarness) -> None:
    """A start while the server blocks publishers succeeds. The service says why it is not ready."""
    async with memory_alarm(rabbit.server):
        started = await rabbit.connect()
        assert "alarm" in str(started.health.reason)
    await until(lambda: started.health == HEALTHY)
    assert (await started.publish([event(1)]))[0].status is P


async def reply_for_ever(broker: RabbitBroker, reply: Reply) -> None:
    """Send a reply again and again: it is lost while the connection is."""
    while True:
        await broker.reply([reply])
        await asyncio.sleep(0.05)


async def test_address_that_the_broker_has_not_made(rabbit: RabbitHarness) -> None:
    """A reply to a wrong address, or one that lets the server fail, disturbs neither other replies nor events."""
    inbox = await rabbit.inbox()
    crashes = "g1h3A2FiYwAAAAAAAAAAAAAAAA==.AAAA"  # a process of a node that is unknown
    for wrong in ("my.client", "AAAA.x", "g1gA.AAAA", crashes):
        await rabbit.broker.reply([Reply(f"amq.rabbitmq.reply-to.{wrong}", b"wrong")])
    assert await statuses(rabbit, [event(1)]) == [P]
    await until(lambda: rabbit.broker.health == HEALTHY)
    replying = asyncio.create_task(reply_for_ever(rabbit.broker, Reply(inbox.address, b"right")))
    assert await inbox.next() == b"right"
    replying.cancel()
    assert rabbit.broker.outages == 0


async def test_exchanges_deleted_while_running(rabbit: RabbitHarness) -> None:
    """The exchanges of hints and of queries are created again, with what is bound to them. Meanwhile replies go on."""
    await rabbit.broker.serve(Kind.QUERY, ["get-timer"], Echo().receive)
    notified: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    await rabbit.broker.subscribe_hints(lambda *hint: notified.put_nowait(hint))
    inbox = await rabbit.inbox()
    channel = await rabbit.user.channel()
    for name in ("wake", "qry"):
        await channel.exchange_delete(f"{rabbit.prefix}.{name}")
    await rabbit.broker.hint("timers", 7)
    await rabbit.broker.reply([Reply(inbox.address, b"done")])
    assert await inbox.next() == b"done"
    await rabbit.broker.streams.tick(0)
    assert await rabbit.request(Kind.QUERY, "get-timer", "acme", b"1") == QueryReply(b"1")
    await rabbit.broker.hint("timers", 8)
    async with asyncio.timeout(10):
        assert await notified.get() == ("timers", 8)
    assert rabbit.broker.outages == 0


async def test_size_limit_of_the_server(rabbit: RabbitHarness) -> None:
    """A server that refuses the largest event is refused at the start."""
    await rabbit.server.limit_messages(1000)
    try:
        with pytest.raises(StartError, match="set max_message_size of RabbitMQ to 1048576 or more"):
            await rabbit.connect()
    finally:
        await rabbit.server.limit_messages(134_217_728)


class Echo:
    """Replies to queries with their bodies."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    def receive(self, request: Request) -> Replies:
        self.received.append(request.body)
        return [(request, QueryReply(request.body))]


async def test_queue_of_queries_deleted(rabbit: RabbitHarness) -> None:
    """If the queue of queries is deleted, the service creates it again and serves it."""
    subscription = await rabbit.broker.serve(Kind.QUERY, ["get-timer"], Echo().receive)
    await (await rabbit.user.channel()).queue_delete(f"{rabbit.prefix}.qry")
    await until(lambda: subscription.outages == 1 and subscription.health == HEALTHY)
    assert await rabbit.request(Kind.QUERY, "get-timer", "acme", b"1") == QueryReply(b"1")


async def test_queries_that_are_ignored(rabbit: RabbitHarness) -> None:
    """A query is ignored that could reply to something else, or that others have passed on, or that nobody serves."""
    echo = Echo()
    await rabbit.broker.serve(Kind.QUERY, ["get-timer"], echo.receive)
    exchange = f"{rabbit.prefix}.qry"
    for reply_to in (None, f"{rabbit.prefix}.evt.log", "amq.rabbitmq.reply-to.", "amq.rabbitmq.reply-to.*"):
        await rabbit.wire.send(exchange, "acme.get-timer", aio_pika.Message(b"hostile", reply_to=reply_to))
    await rabbit.wire.send("", exchange, aio_pika.Message(b"hostile", reply_to="amq.rabbitmq.reply-to"))
    await rabbit.wire.send(exchange, "acme.other", aio_pika.Message(b"other", reply_to="amq.rabbitmq.reply-to"))
    assert await rabbit.request(Kind.QUERY, "get-timer", "acme", b"1") == QueryReply(b"1")
    assert echo.received == [b"1"]


async def test_invalid_hints(rabbit: RabbitHarness) -> None:
    """A message on the exchange of hints that is not a valid hint is ignored."""
    notified: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    await rabbit.broker.subscribe_hints(lambda *hint: notified.put_nowait(hint))
    for body in (b"", b"timers", b"timers soon", b"timers -1", b"timers " + b"1" * 400, b"\xff 1x"):
        await rabbit.wire.send(f"{rabbit.prefix}.wake", "", aio_pika.Message(body))
    await rabbit.broker.hint("timers", 7)
    async with asyncio.timeout(10):
        assert await notified.get() == ("timers", 7)
