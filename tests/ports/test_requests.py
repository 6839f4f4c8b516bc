"""The requests of workers over every broker: who gets them, and what hostile ones can do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import nats.errors
import pytest

from tests.harness.brokers import HARNESSES, BrokerHarness, NatsHarness
from timer_service.adapters.nats import NatsBroker
from timer_service.core.ports.broker import QueryReply, Request, RequestSubscription, SendReply
from timer_service.core.ports.health import HEALTHY
from timer_service.core.values.errors import Code

SUBJECT = "timer.wrk.v1.acme.poll-tasks"


class Instance:
    """Receives requests, and replies to each with its body in a task. It refuses the body `refused`."""

    def __init__(self) -> None:
        self.received: list[Request] = []
        self.held = asyncio.Event()
        self.held.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscription: RequestSubscription

    async def serve(self, harness: BrokerHarness, *names: str) -> RequestSubscription:
        self._subscription = await harness.broker.serve_requests(names or ["poll-tasks"], self.receive)
        return self._subscription

    def receive(self, request: Request) -> QueryReply | None:
        self.received.append(request)
        if request.body == b"refused":
            return QueryReply(b"full", Code.BUSY, "too many requests are waiting")
        self._tasks.add(asyncio.create_task(self._reply(request)))
        return None

    async def _reply(self, request: Request) -> None:
        await self.held.wait()
        error = (Code.INVALID_PAYLOAD, "é, and\ntwo lines") if request.body == b"error" else (None, "")
        await self._subscription.reply([(request, QueryReply(request.body, *error))])


async def test_requests_are_replied_to(harness: BrokerHarness) -> None:
    """The service gets the name, the tenant and the body of a request. The worker gets the reply."""
    instance = Instance()
    await instance.serve(harness, "poll-tasks", "report-tasks")
    sent = [("poll-tasks", "acme", b"1"), ("report-tasks", "tenant_1-A", b""), ("poll-tasks", "b", b"\x00\xff\r\n")]
    assert [(await harness.request(*each)).body for each in sent] == [body for _, _, body in sent]
    assert [each[:3] for each in instance.received] == sent


async def test_request_that_is_refused(harness: BrokerHarness) -> None:
    """The worker gets the refusal at once, with its code and message. The next request is replied to."""
    instance = Instance()
    await instance.serve(harness)
    busy = QueryReply(b"full", Code.BUSY, "too many requests are waiting")
    assert await harness.request("poll-tasks", "acme", b"refused") == busy
    assert (await harness.request("poll-tasks", "acme", b"next")).body == b"next"


async def test_error_reply(harness: BrokerHarness) -> None:
    """An error reply has its code and its message, in which a line break is a space."""
    await Instance().serve(harness)
    error = await harness.request("poll-tasks", "acme", b"error")
    assert (error.code, " ".join(error.message.split())) == (Code.INVALID_PAYLOAD, "é, and two lines")


async def test_requests_that_are_held(harness: BrokerHarness) -> None:
    """Requests that wait for their replies do not keep later ones from being received."""
    instance = Instance()
    await instance.serve(harness)
    instance.held.clear()
    waiting = [asyncio.create_task(harness.request("poll-tasks", "acme", b"%d" % number)) for number in range(50)]
    async with asyncio.timeout(10):
        while len(instance.received) < len(waiting):
            await asyncio.sleep(0.001)
    instance.held.set()
    assert [each.body for each in await asyncio.gather(*waiting)] == [b"%d" % number for number in range(50)]


async def test_instances_share_requests(harness: BrokerHarness) -> None:
    """One instance gets each request. If one stops taking requests, the other one gets all of them."""
    first, second = Instance(), Instance()
    closing = await first.serve(harness)
    if isinstance(harness, NatsHarness):
        url = harness.user.connected_url
        assert url is not None
        other = await NatsBroker.connect(url.geturl(), "timer", reply_prefix="_INBOX.", manage_streams=True)
        second._subscription = await other.serve_requests(["poll-tasks"], second.receive)
    else:
        other = None
        await second.serve(harness)
    for number in range(20):
        await harness.request("poll-tasks", "acme", b"%d" % number)
    assert len(first.received) + len(second.received) == 20
    await closing.close()
    before = len(first.received)
    for number in range(5):
        await harness.request("poll-tasks", "acme", b"%d" % number)
    assert (len(first.received), len(first.received) + len(second.received)) == (before, 25)
    if other is not None:
        await other.close()


async def test_reply_after_closing(harness: BrokerHarness) -> None:
    """A request that was received before closing can still be replied to."""
    instance = Instance()
    subscription = await instance.serve(harness)
    instance.held.clear()
    waiting = asyncio.create_task(harness.request("poll-tasks", "acme", b"late"))
    async with asyncio.timeout(10):
        while not instance.received:
            await asyncio.sleep(0.001)
    await subscription.close()
    instance.held.set()
    assert (await waiting).body == b"late"


async def test_requests_after_an_outage(harness: BrokerHarness) -> None:
    """Requests are received again after an outage."""
    instance = Instance()
    await instance.serve(harness)
    await harness.stop()
    await harness.start()
    if isinstance(harness, NatsHarness):
        connection = harness.broker._requests
        assert connection is not None
        async with asyncio.timeout(10):
            while not connection.health.usable:
                await asyncio.sleep(0.01)
        await connection.connection.flush()
    assert (await harness.request("poll-tasks", "acme", b"1")).body == b"1"


# NATS only: hostile requests


@pytest.fixture
async def nats_harness(request: pytest.FixtureRequest) -> AsyncIterator[NatsHarness]:
    """Return a NATS broker."""
    async with HARNESSES["nats"](request) as started:
        assert isinstance(started, NatsHarness)
        yield started


@pytest.mark.parametrize(
    "reply",
    ["", "victim", "timer.cmd.v1.other.x", "_INBOX", "_INBOX.", "_INBOX..a", "_INBOX.a..", "_INBOX." + "x" * 3000],
)
async def test_unusable_reply_subject(nats_harness: NatsHarness, reply: str, caplog: pytest.LogCaptureFixture) -> None:
    """A request whose reply subject is not an inbox is ignored with a warning, and the broker stays healthy."""
    instance = Instance()
    await instance.serve(nats_harness)
    await nats_harness.user._send_publish(SUBJECT, reply, b"hostile", len(b"hostile"), None)  # without checks
    assert (await nats_harness.request("poll-tasks", "acme", b"next")).body == b"next"
    assert [each.body for each in instance.received] == [b"next"]
    assert nats_harness.broker.health == HEALTHY
    assert "messages ignored" in caplog.text


@pytest.mark.parametrize("headers", [{"Status": "503"}, {"Nats-Msg-Id": "\u00e9"}, {"a": "x" * 60_000}])
async def test_strange_headers(nats_harness: NatsHarness, headers: dict[str, str]) -> None:
    """A request with headers of any content is replied to like others."""
    await Instance().serve(nats_harness)
    found = await nats_harness.user.request(SUBJECT, b"\x00\xff", headers=headers, timeout=10)
    assert found.data == b"\x00\xff"


@pytest.mark.parametrize("tenant", ["\u00e9", "a\x0bb", "*", "x" * 500])
async def test_strange_tenant(nats_harness: NatsHarness, tenant: str) -> None:
    """A request with any tenant in its subject is received, and the ones after it too."""
    instance = Instance()
    await instance.serve(nats_harness)
    subject = f"timer.wrk.v1.{tenant}.poll-tasks"
    await nats_harness.user._send_publish(subject, "_INBOX.nobody", b"strange", 7, None)
    assert (await nats_harness.request("poll-tasks", "acme", b"next")).body == b"next"
    assert [each.body for each in instance.received][-1] == b"next"


async def test_receiver_that_fails(nats_harness: NatsHarness, caplog: pytest.LogCaptureFixture) -> None:
    """An error of the receiver loses one request, not the connection."""
    instance = Instance()

    def receive(request: Request) -> QueryReply | None:
        if request.body == b"fails":
            raise RuntimeError("a bug")
        return instance.receive(request)

    instance._subscription = await nats_harness.broker.serve_requests(["poll-tasks"], receive)
    await nats_harness.user.publish(SUBJECT, b"fails", reply="_INBOX.a")
    assert (await nats_harness.request("poll-tasks", "acme", b"next")).body == b"next"
    assert "a message could not be processed" in caplog.text


async def test_lost_connection_of_requests(nats_harness: NatsHarness) -> None:
    """If only the connection for queries and requests is lost, only these are down, and they arrive again later."""
    broker = nats_harness.broker
    await broker.serve_queries(["get-timer"], echo)
    subscription = await Instance().serve(nats_harness)
    assert broker._requests is not None
    connection = broker._requests.connection
    transport: Any = connection.client._transport
    transport.close()
    async with asyncio.timeout(10):
        while broker.query_health.usable:
            await asyncio.sleep(0.001)
        assert (broker.health, subscription.health.usable) == (HEALTHY, False)
        while not broker.query_health.usable:
            await asyncio.sleep(0.001)
    await connection.flush()
    assert (await nats_harness.request("poll-tasks", "acme", b"again")).body == b"again"
    assert (await nats_harness.ask("get-timer", "acme", b"again")).body == b"again"


async def echo(_name: str, _tenant: str, body: bytes, send: SendReply) -> None:
    await send(QueryReply(body))


async def test_workers_learn_that_nobody_serves(nats_harness: NatsHarness) -> None:
    """After an instance stopped taking requests, a worker learns at once that nobody serves them."""
    subscription = await Instance().serve(nats_harness)
    await subscription.close()
    with pytest.raises(nats.errors.NoRespondersError):
        await nats_harness.request("poll-tasks", "acme", b"1")
