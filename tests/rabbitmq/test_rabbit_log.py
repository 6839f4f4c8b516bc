"""The log of commands on a stream of RabbitMQ: what a publisher can send, and what happens to the stream."""

import asyncio
from typing import Any

import aio_pika
import pytest
from rstream import CompressionType, Producer
from rstream.compression import GzipCompressionCodec, StreamCompressionCodecs

from tests.harness.builders import command_address
from tests.harness.log_caller import LogCaller
from tests.harness.rabbit_harness import RabbitHarness
from timer_service.adapters.rabbitmq.server import Server
from timer_service.core.intake.replies import inbox_of
from timer_service.core.ports.broker import Reply
from timer_service.core.ports.log import LogUnavailableError
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import StartError

REPLY_TO = "amq.rabbitmq.reply-to"


async def send(rabbit: RabbitHarness, *bodies: str) -> None:
    for body in bodies:
        await rabbit.send(command_address("acme"), body.encode(), {}, f"id-{body}")


async def opened(rabbit: RabbitHarness) -> LogCaller:
    caller = LogCaller(rabbit.broker.log)
    await caller.open()
    return caller


async def publish(rabbit: RabbitHarness, body: bytes, **properties: Any) -> None:
    await rabbit.wire.send(f"{rabbit.prefix}.cmd", "acme.schedule-timer", aio_pika.Message(body, **properties))


async def test_properties_and_headers(rabbit: RabbitHarness) -> None:
    """Headers of any type become text in one line. None takes the place of a property."""
    caller = await opened(rabbit)
    headers = {
        "n": 5,
        "yes": True,
        "lines": "a\r\nTimer-Reply-To: b",
        "Nats-Msg-Id": "forged",
        "binary": bytearray(b"\xff"),
    }
    await publish(rabbit, b"1", message_id="my-id", headers=headers)
    await publish(rabbit, b"2")
    await caller.read_until("2")
    first, second = caller.commands
    assert first.message_id == "my-id"
    assert dict(first.headers.items()) == {
        "Nats-Msg-Id": "my-id",
        "n": "5",
        "yes": "True",
        "lines": "a  Timer-Reply-To: b",
        "binary": "\\xff",
    }
    assert second.headers.get("Timer-Reply-To") is None


@pytest.mark.parametrize("correlation_id", [None, "c-1", "two words. é ..?%"])
async def test_reply_with_its_correlation_id(rabbit: RabbitHarness, correlation_id: str | None) -> None:
    """The reply to a command comes back to the channel of the client, with the correlation id of the command."""
    channel = await rabbit.user.channel()
    replies: asyncio.Queue[Any] = asyncio.Queue()
    await (await channel.get_queue(REPLY_TO, ensure=False)).consume(replies.put, no_ack=True)
    exchange = await channel.get_exchange(f"{rabbit.prefix}.cmd", ensure=False)
    command = aio_pika.Message(b"1", reply_to=REPLY_TO, correlation_id=correlation_id)
    await exchange.publish(command, "acme.schedule-timer")
    caller = await opened(rabbit)
    await caller.read_until("1")
    (to,) = (inbox_of(each, rabbit.broker.reply_prefixes) for each in caller.commands)
    assert to is not None
    await rabbit.broker.reply([Reply(to, b"done")])
    async with asyncio.timeout(10):
        reply = await replies.get()
    assert (reply.body, reply.correlation_id) == (b"done", correlation_id)


async def test_messages_that_others_pass_on(rabbit: RabbitHarness) -> None:
    """A command that did not come from its exchange has no valid address: no permission counted for its routing key."""
    caller = await opened(rabbit)
    channel = await rabbit.user.channel()
    commands = await channel.get_exchange(f"{rabbit.prefix}.cmd", ensure=False)
    bound = await channel.declare_exchange(f"{rabbit.prefix}.bound", "topic", auto_delete=True)
    await commands.bind(bound, "#")
    alternate = await channel.declare_exchange(
        f"{rabbit.prefix}.alternate", "topic", arguments={"alternate-exchange": commands.name}
    )
    await bound.publish(aio_pika.Message(b"1"), "victim.x")
    await alternate.publish(aio_pika.Message(b"2"), "victim.x")
    await commands.publish(aio_pika.Message(b"3", headers={"x-first-death-queue": "a dead letter"}), "victim.x")
    await channel.default_exchange.publish(aio_pika.Message(b"4"), rabbit.broker.streams.name(Kind.COMMAND))
    assert await caller.read_until("4") == ["1", "2", "3", "4"]
    assert {each.address.tenant for each in caller.commands} == {""}


async def test_stream_deleted_while_it_is_read(rabbit: RabbitHarness, caplog: pytest.LogCaptureFixture) -> None:
    """If the stream is deleted, reading ends with the reason. The upkeep creates another one and says so."""
    caller = await opened(rabbit)
    await send(rabbit, "a")
    await caller.read_until("a")
    reading = asyncio.create_task(caller.log.read(1, 1000, 30))
    await (await rabbit.user.channel()).queue_delete(f"{rabbit.prefix}.cmd.log")
    with pytest.raises(LogUnavailableError, match="was deleted"):
        await reading
    with pytest.raises(LogUnavailableError, match="StreamDoesNotExist"):
        await caller.log.open(caller.cursor, "ours")
    await rabbit.broker.streams.tick(0)
    await send(rabbit, "b")
    await caller.open()
    assert await caller.read_until("b") == ["b"]
    assert caller.openings[-1].is_other
    assert "a stream was created again" in caplog.text


async def test_log_of_another_database(rabbit: RabbitHarness) -> None:
    """A service with another database is refused with the remedy. After that, it handles every command."""
    await send(rabbit, "a")
    await opened(rabbit)
    other = await rabbit.open_log()
    with pytest.raises(StartError, match=rf"delete the queue {rabbit.prefix}\.cmd\.log\.owner"):
        await other.open(None, "another")
    await (await rabbit.user.channel()).queue_delete(f"{rabbit.prefix}.cmd.log.owner")
    assert (await other.open(None, "another")).unread == 1


async def test_stream_that_is_not_bound(rabbit: RabbitHarness) -> None:
    """A service that may not bind the stream says at the start that no command arrives. Another one binds it."""
    stream = await (await rabbit.user.channel()).get_queue(f"{rabbit.prefix}.cmd.log")
    await stream.unbind(f"{rabbit.prefix}.cmd", "#")
    checked = await rabbit.connect(manage=False)
    with pytest.raises(StartError, match=rf"bind it to exchange {rabbit.prefix}\.cmd with the key #"):
        await checked.log.open(None, "ours")
    await rabbit.broker.streams.tick(0)
    await checked.log.open(None, "ours")


async def test_many_commands(rabbit: RabbitHarness) -> None:
    """Commands that the broker has stored in large chunks are read in batches, and again from the middle of a chunk."""
    exchange = await (await rabbit.user.channel()).get_exchange(f"{rabbit.prefix}.cmd", ensure=False)
    messages = [aio_pika.Message(b"%d" % number) for number in range(3000)]
    await asyncio.gather(*(exchange.publish(each, "acme.schedule-timer") for each in messages))
    caller = await opened(rabbit)
    while len(caller.commands) < 1234:
        await caller.read(min(100, 1234 - len(caller.commands)))
    other = LogCaller(await rabbit.open_log(), caller.cursor)
    await other.open()
    while len(other.commands) < 3000 - 1234:
        await other.read(1000)
    assert [*caller.bodies, *other.bodies] == [f"{number}" for number in range(3000)]
    assert not other.openings[0].is_other


async def test_publisher_of_the_stream_protocol(rabbit: RabbitHarness) -> None:
    """Whatever bytes a publisher stores in the stream itself, they are read as commands without a valid address."""
    server = Server(rabbit.server.url)
    login = await server.login()
    caller = await opened(rabbit)
    hostile = [b"", b"\x00", b"\x00Su\xb0\xff", b"\x00Sr\xc1\x00", b"text", bytes(range(256))]
    async with Producer(server.host, server.stream_port, username=login.user, password=login.password) as producer:
        stream = rabbit.broker.streams.name(Kind.COMMAND)
        for body in hostile:
            await producer.send_wait(stream, body)
        await producer.send_sub_entry(stream, [b"several", b"in one"], CompressionType.Gzip)
    while len(caller.commands) < len(hostile) + 2:
        assert (await caller.read()).commands
    found = {each.body for each in caller.commands if each.address.tenant == ""}
    assert found >= {b"text", b"several", b"in one"}


class ZstdCodec(GzipCompressionCodec):
    """Says that its messages are compressed in a way that rstream has not."""

    def compression_type(self) -> int:
        return CompressionType.Zstd.value


async def test_compression_that_cannot_be_read(rabbit: RabbitHarness) -> None:
    """Messages in a compression that cannot be read are invalid commands. Those behind are read."""
    server = Server(rabbit.server.url)
    login = await server.login()
    codecs = StreamCompressionCodecs.available_compress_codecs
    codecs[CompressionType.Zstd] = ZstdCodec()
    try:
        async with Producer(server.host, server.stream_port, username=login.user, password=login.password) as producer:
            stream = rabbit.broker.streams.name(Kind.COMMAND)
            await producer.send_sub_entry(stream, [b"several", b"in one"], CompressionType.Zstd)
    finally:
        del codecs[CompressionType.Zstd]
    await send(rabbit, "a")
    caller = await opened(rabbit)
    assert await caller.read_until("a") == ["", "", "a"]
