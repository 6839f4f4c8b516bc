"""Tests of deploy/rabbitmq/: a tenant reaches its own commands, events and replies, and nothing else."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiormq
import pytest
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import AMQPConnectionError, ChannelAccessRefused, ChannelPreconditionFailed
from pamqp.commands import Basic
from rstream.client import Client
from rstream.exceptions import AccessRefused

from tests.harness.cases import case
from tests.harness.installed import require
from tests.harness.processes import PATIENCE_SECONDS, Service, body
from tests.harness.rabbitmq_fence import FencedRabbit, channel, count_messages, fenced_rabbit
from timer_service.adapters.embedded import RABBITMQ

pytestmark = pytest.mark.slow

TO_COMMANDS = {"x-dead-letter-exchange": "timer.cmd", "x-dead-letter-routing-key": "tenant-b.schedule-timer"}
PUBLISHED = [
    *(
        ("timer.cmd", key)
        for key in ("tenant-b.schedule-timer", "tenant-a", "", "#", "*.schedule-timer", "tenant-ab.x")
    ),
    *((f"timer.{kind}", "tenant-b.get-timer") for kind in ("qry", "wrk")),
    *((f"timer.{kind}", f"tenant-{tenant}.due-time-reached") for kind in ("evt", "dlq") for tenant in "ab"),
    ("timer.wake", ""),
    *(("", queue) for queue in ("timer.cmd.log", "timer.evt.log", "timer.qry", "tenant-b.app", "tenant-a.app")),
    *((f"amq.{kind}", "tenant-a.x") for kind in ("topic", "direct", "fanout")),
]
FOREIGN = ("tenant-b.app", "timer.cmd.log", "timer.evt.log", "timer.dlq.log", "timer.qry", "timer.wrk")


async def ignore(_: DeliveredMessage) -> None:
    pass


def attacks() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what a tenant tries: methods of a channel, with their arguments."""
    for exchange, key in PUBLISHED:
        yield "basic_publish", {"body": b"{}", "exchange": exchange, "routing_key": key}
    pretended = {"routing_key": "tenant-a.schedule-timer", "properties": Basic.Properties(user_id="tenant-b")}
    yield "basic_publish", {"body": b"{}", "exchange": "timer.cmd", **pretended}
    for queue in FOREIGN:
        first = {"x-stream-offset": "first"}
        yield "basic_consume", {"queue": queue, "consumer_callback": ignore, "arguments": first}
        yield "basic_get", {"queue": queue, "no_ack": True}
        yield "queue_purge", {"queue": queue}
        yield "queue_delete", {"queue": queue}
    yield "queue_delete", {"queue": "tenant-a.app"}
    yield "exchange_delete", {"exchange": "timer.cmd"}
    for name in ("tenant-a.x", "", "timer.x", "tenant-b.x", "tenant-a.app"):
        yield "queue_declare", {"queue": name, "arguments": TO_COMMANDS}
    for name in ("tenant-a.x", "timer.x"):
        alternate = {"alternate-exchange": "timer.cmd"}
        yield "exchange_declare", {"exchange": name, "exchange_type": "topic", "arguments": alternate}
    for key in ("#", "tenant-b.#", "tenant-a.#"):
        yield "queue_bind", {"queue": "tenant-a.app", "exchange": "timer.evt", "routing_key": key}
    yield "queue_bind", {"queue": "tenant-a.app", "exchange": "timer.cmd", "routing_key": "tenant-a.#"}
    yield "queue_unbind", {"queue": "tenant-b.app", "exchange": "timer.evt", "routing_key": "tenant-b.#"}
    yield "exchange_bind", {"destination": "timer.cmd", "source": "amq.topic", "routing_key": "#"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[FencedRabbit]:
    require(RABBITMQ)
    async with fenced_rabbit(tmp_path) as running:
        yield running


async def test_tenant_is_refused(broker: FencedRabbit) -> None:
    """Everything that is not the tenant's own is refused, and changes nothing. There is no user guest."""
    with pytest.raises(AMQPConnectionError, match="ACCESS_REFUSED"):
        await aiormq.connect(broker.url.partition("?")[0])
    async with broker.user("operator") as operator, broker.user("tenant-a") as a, channel(operator) as opened:
        for tenant in ("tenant-a", "tenant-b"):
            await opened.basic_publish(b"{}", exchange="timer.evt", routing_key=f"{tenant}.due-time-reached")
            await opened.basic_publish(b"{}", exchange="timer.qry", routing_key=f"{tenant}.get-timer")
        queues = ("tenant-a.app", "tenant-b.app", (await opened.queue_declare(exclusive=True)).queue or "")
        for kind in ("cmd", "evt", "dlq", "wake"):
            await opened.queue_bind(queues[-1], f"timer.{kind}", "#")
        before = await count_messages(operator, *queues)
        assert list(before.values()) == [1, 1, 0]
        for method, arguments in attacks():
            async with channel(a) as tried:
                await tried.basic_qos(prefetch_count=10)  # a stream wants it
                refused = pytest.raises((ChannelAccessRefused, ChannelPreconditionFailed))
                with case(f"{method} {arguments}"), refused:
                    await getattr(tried, method)(**arguments)
        assert await count_messages(operator, *queues) == before


async def test_tenant_is_refused_by_the_stream_protocol(broker: FencedRabbit) -> None:
    """A tenant can neither read nor write nor create a stream with it."""
    port = int(parse_qs(urlsplit(broker.url).query)["stream_port"][0])
    client = Client("127.0.0.1", port, frame_max=1 << 20, heartbeat=60)
    await client.start()
    try:
        await client.authenticate("/", "tenant-a", broker.password_file("tenant-a").read_text())
        for stream in ("timer.cmd.log", "timer.evt.log", "timer.dlq.log"):
            for attempt in (
                client.subscribe(stream, 1),
                client.declare_publisher(stream, None, 1),
                client.delete_stream(stream),
                client.create_stream(f"tenant-a.{stream}"),
            ):
                with case(stream), pytest.raises(AccessRefused):
                    await attempt
    finally:
        await client.close()


async def test_tenant_has_what_it_needs(broker: FencedRabbit) -> None:
    """It publishes commands, queries and requests, receives replies, and reads and acknowledges its events."""
    async with broker.user("timer-service") as service, broker.user("tenant-a") as a, channel(a) as opened:
        replies: asyncio.Queue[DeliveredMessage] = asyncio.Queue()
        await opened.basic_consume("amq.rabbitmq.reply-to", replies.put, no_ack=True)
        for kind, name in (("cmd", "schedule-timer"), ("qry", "get-timer"), ("wrk", "poll-tasks")):
            asked = Basic.Properties(reply_to="amq.rabbitmq.reply-to", message_id="1", headers={"CC": ["tenant-b.x"]})
            confirmed = await opened.basic_publish(
                b"{}", exchange=f"timer.{kind}", routing_key=f"tenant-a.{name}", properties=asked
            )
            assert isinstance(confirmed, Basic.Ack)
        async with channel(service) as own:
            query = await own.basic_get("timer.qry", no_ack=True)
            assert (query.routing_key, query.exchange) == ("tenant-a.get-timer", "timer.qry")
            assert (await count_messages(service, "timer.qry"))["timer.qry"] == 0, "`CC` has made a second message"
            await own.basic_publish(b"reply", routing_key=query.header.properties.reply_to or "")
            for tenant in ("tenant-a", "tenant-b"):
                await own.basic_publish(b"event", exchange="timer.evt", routing_key=f"{tenant}.due-time-reached.topic")
        assert (await asyncio.wait_for(replies.get(), PATIENCE_SECONDS)).body == b"reply"
        event = await opened.basic_get("tenant-a.app")
        assert (event.body, event.routing_key) == (b"event", "tenant-a.due-time-reached.topic")
        await opened.basic_ack(event.delivery_tag or 0)
        assert (await opened.queue_declare("tenant-a.app", passive=True)).message_count == 0


async def test_service_works_with_least_privilege(tmp_path: Path, broker: FencedRabbit) -> None:
    """The service handles a command and a query of a fenced tenant, fires its timer, and stores a dead letter."""
    password = str(broker.password_file("timer-service"))
    login = {"TIMER_BROKER_USER": "timer-service", "TIMER_BROKER_PASSWORD_FILE": password}
    command = body("ScheduleTimer", "tenant-a", {"serviceCallId": "call-1", "dueAt": "2020-01-01T00:00:00Z"})
    async with (
        Service(tmp_path / "service", broker.url, **login) as service,
        broker.user("tenant-a") as a,
        broker.user("operator") as operator,
        channel(a) as opened,
        channel(operator) as reading,
    ):
        answers: asyncio.Queue[DeliveredMessage] = asyncio.Queue()
        await opened.basic_consume("amq.rabbitmq.reply-to", answers.put, no_ack=True)
        await opened.basic_consume("tenant-a.app", answers.put, no_ack=True)
        letters = (await reading.queue_declare(exclusive=True)).queue or ""
        await reading.queue_bind(letters, "timer.dlq", "#")
        await reading.basic_consume(letters, answers.put, no_ack=True)

        async def send(kind: str, name: str, content: bytes) -> None:
            asked = Basic.Properties(reply_to="amq.rabbitmq.reply-to", message_id=name)
            await opened.basic_publish(
                content, exchange=f"timer.{kind}", routing_key=f"tenant-a.{name}", properties=asked
            )

        async def receive(count: int) -> dict[str, Any]:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return {
                    each.routing_key or "": json.loads(each.body)
                    for each in [await answers.get() for _ in range(count)]
                }

        await send("cmd", "schedule-timer", command)
        received = await receive(2)
        event = received.pop("tenant-a.due-time-reached")
        assert event["payload"]["serviceCallId"] == "call-1"
        assert [each["outcome"] for each in received.values()] == ["scheduled"]
        await send("qry", "get-timer", b'{"serviceCallId": "call-1"}')
        assert [each["serviceCallId"] for each in (await receive(1)).values()] == ["call-1"]
        await send("cmd", "schedule-timer", b'{"type": "ScheduleTimer"}')
        assert "tenant-a.schedule-timer" in await receive(3)
        assert (await service.page("/readyz"))[0] == 200
        async with broker.user("timer-service") as login_of_service:
            for stream in ("timer.cmd.log", "timer.evt.log"):
                with case(stream), pytest.raises(ChannelAccessRefused):
                    async with channel(login_of_service) as tried:
                        await tried.queue_delete(stream)
        assert await service.terminate() == 0
    assert "refused" not in service.log.read_text().lower()
