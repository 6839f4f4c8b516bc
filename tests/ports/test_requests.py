"""Queries and requests of workers over every broker: who gets them, their replies, and what hostile ones can do."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from typing import Any

import nats.errors
import pytest

from tests.harness.broker_harness import BrokerHarness
from tests.harness.brokers import HARNESSES, NatsHarness
from tests.harness.rabbit_harness import RabbitHarness
from tests.harness.raw_nats import RawMessage, RawNats
from timer_service.adapters.nats import NatsBroker
from timer_service.adapters.rabbitmq import RabbitBroker
from timer_service.core.ports.broker import Broker, QueryReply, Replies, Request, RequestSubscription
from timer_service.core.ports.health import HEALTHY
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import Code

BUSY = QueryReply(
    b'{"error":{"code":"BUSY","message":"too many requests are waiting"}}', Code.BUSY, "too many requests are waiting"
)
ERROR = Code.INVALID_PAYLOAD, "é, and\r\ntwo lines"


class Instance:
    """Receives `poll-tasks`, and replies to each with its body in a task.

    The body `error` gets an error, `refused` is refused, `fails` makes the receiver fail, and `refuse` also refuses the
    one before.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.received: list[Request] = []
        self.held = asyncio.Event()
        self.held.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscription: RequestSubscription

    async def serve(self, broker: Broker, *names: str) -> RequestSubscription:
        self._subscription = await broker.serve(self.kind, names or ["poll-tasks"], self.receive)
        return self._subscription

    def receive(self, request: Request) -> Replies:
        if request.body == b"fails":
            raise RuntimeError("a bug")
        self.received.append(request)
        if request.body.startswith(b"refuse"):
            return [(each, BUSY) for each in (self.received[-2:] if request.body == b"refuse" else [request])]
        if request.body != b"waits":
            self._tasks.add(asyncio.create_task(self._reply(request)))
        return []

    async def until_received(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.received) < count:
                await asyncio.sleep(0.001)

    async def _reply(self, request: Request) -> None:
        await self.held.wait()
        error = ERROR if request.body == b"error" else (None, "")
        await self._subscription.reply([(request, QueryReply(request.body, *error))])


@pytest.fixture(params=[Kind.QUERY, Kind.REQUEST])
def instance(request: pytest.FixtureRequest) -> Instance:
    """Return what receives queries, and then what receives requests."""
    return Instance(request.param)


Send = Callable[[bytes], Any]


@pytest.fixture
def send(harness: BrokerHarness, instance: Instance) -> Send:
    """Return what sends a query or a request of the tenant `acme` and waits for its reply."""
    return lambda body: harness.request(instance.kind, "poll-tasks", "acme", body)


async def test_requests_are_replied_to(harness: BrokerHarness, instance: Instance) -> None:
    """The service gets the name, the tenant and the body. The client gets the reply, of any size."""
    await instance.serve(harness.broker, "poll-tasks", "report-tasks")
    sent = [
        ("poll-tasks", "acme", b"1"),
        ("report-tasks", "tenant_1-A", b""),
        ("poll-tasks", "b", b"\x00\xff\r\n"),
        ("poll-tasks", "b", b"x" * harness.broker.max_message_bytes),
    ]
    replies = [await harness.request(instance.kind, *each) for each in sent]
    assert replies == [QueryReply(body) for _, _, body in sent]
    assert [each[:3] for each in instance.received] == sent


async def test_refusals(harness: BrokerHarness, instance: Instance, send: Send) -> None:
    """Whom the receiver refuses gets its refusal at once: what was just received, or what came before."""
    await instance.serve(harness.broker)
    assert await send(b"refused") == BUSY
    waiting = asyncio.create_task(send(b"waits"))
    await instance.until_received(2)
    assert [await send(b"refuse"), await waiting] == [BUSY, BUSY]
    assert await send(b"next") == QueryReply(b"next")


async def test_instances_share_requests(harness: BrokerHarness) -> None:
    """One instance gets each request. If one stops taking requests, the other one gets all of them."""
    first, second = Instance(Kind.REQUEST), Instance(Kind.REQUEST)
    subscription = await first.serve(harness.broker)
    other = await second_broker(harness)
    await second.serve(other or harness.broker)
    for number in range(20):
        await harness.request(Kind.REQUEST, "poll-tasks", "acme", b"%d" % number)
    assert len(first.received) + len(second.received) == 20
    await subscription.close()
    before = len(second.received)
    for number in range(5):
        await harness.request(Kind.REQUEST, "poll-tasks", "acme", b"%d" % number)
    assert len(second.received) == before + 5
    if other is not None:
        await other.close()


async def test_requests_after_an_outage(harness: BrokerHarness, instance: Instance, send: Send) -> None:
    """They are received again after an outage."""
    subscription = await instance.serve(harness.broker)
    await harness.stop()
    await harness.start()
    await until_usable(subscription)
    async with asyncio.timeout(10):
        while True:
            try:
                assert (await send(b"1")).body == b"1"
                break
            except nats.errors.NoRespondersError:  # the server has not read the subscriptions yet
                await asyncio.sleep(0.01)


# NATS only


@pytest.fixture
async def nats_harness(request: pytest.FixtureRequest) -> AsyncIterator[NatsHarness]:
    """Return a NATS broker."""
    async with HARNESSES["nats"](request) as started:
        assert isinstance(started, NatsHarness)
        yield started


async def second_broker(harness: BrokerHarness) -> NatsBroker | RabbitBroker | None:
    """Return the broker of another process; None if the one of the harness can serve twice."""
    if isinstance(harness, RabbitHarness):
        return await harness.connect()
    if not isinstance(harness, NatsHarness):
        return None
    url = harness.user.connected_url
    assert url is not None
    return await NatsBroker.connect(url.geturl(), "timer", reply_prefix="_INBOX.", manage_streams=True)


async def until_usable(subscription: RequestSubscription) -> None:
    async with asyncio.timeout(10):
        while not subscription.health.usable:
            await asyncio.sleep(0.001)


def port(harness: NatsHarness) -> int:
    url = harness.user.connected_url
    assert url is not None
    assert url.port is not None
    return url.port


def subject(instance: Instance, tenant: str = "acme") -> str:
    return f"timer.{instance.kind}.v1.{tenant}.poll-tasks"


async def test_hostile_messages(
    nats_harness: NatsHarness, instance: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    """What does not reply to an inbox is ignored. Strange tenants, and bugs of the receiver, harm no other message."""
    await instance.serve(nats_harness.broker)
    outside = ["", "victim", "timer.evt.v1.other.x", "_INBOX", "_inbox.a", "_INBOX.", "_INBOX..a", "_INBOX.a.."]
    messages = [(subject(instance), each, b"hostile") for each in [*outside, "_INBOX." + "x" * 3000]]
    tenants = ["\u00e9", "a\x0bb", "*", "x" * 500]
    messages += [(subject(instance, each), "_INBOX.nobody", b"strange") for each in tenants]
    messages.append((subject(instance), "_INBOX.nobody", b"fails"))
    async with RawNats.connect(port(nats_harness)) as publisher:
        await publisher.publish(RawMessage(to.encode(), body, reply=reply.encode()) for to, reply, body in messages)
    assert (await nats_harness.request(instance.kind, "poll-tasks", "acme", b"next")).body == b"next"
    assert [each.body for each in instance.received] == [b"strange"] * 4 + [b"next"]
    assert "a message could not be processed" in caplog.text
    assert nats_harness.broker.health == HEALTHY


async def test_micro_service(nats_harness: NatsHarness) -> None:
    """Queries are the endpoints of a micro service, which INFO describes, and STATS counts."""
    await Instance(Kind.QUERY).serve(nats_harness.broker, "get-timer", "count-timers")
    for number in range(5):
        await nats_harness.request(Kind.QUERY, "get-timer", "acme", b"%d" % number)
    info, stats = [
        json.loads((await nats_harness.user.request(f"$SRV.{each}.timer-service", timeout=10)).data)
        for each in ("INFO", "STATS")
    ]
    assert (info["name"], info["version"]) == ("timer-service", version("timer-service"))
    assert {each["name"]: each["subject"] for each in info["endpoints"]} == {
        "get-timer": "timer.qry.v1.*.get-timer",
        "count-timers": "timer.qry.v1.*.count-timers",
    }
    assert [each["num_requests"] for each in stats["endpoints"]] == [5, 0]
