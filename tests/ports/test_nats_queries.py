"""Queries over NATS: hostile requests, and queries that take long."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.harness.brokers import HARNESSES, NatsHarness
from timer_service.core.ports.broker import QueryReply, SendReply
from timer_service.core.ports.health import HEALTHY
from timer_service.core.values.errors import Code

SUBJECT = "timer.qry.v1.acme.get-timer"


@pytest.fixture
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[NatsHarness]:
    """Return a NATS broker."""
    async with HARNESSES["nats"](request) as started:
        assert isinstance(started, NatsHarness)
        yield started


class Handler:
    """Answers a query with its body. The answer to `slow` waits until the test goes on."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.go_on = asyncio.Event()

    async def answer(self, _name: str, _tenant: str, body: bytes, send: SendReply) -> None:
        self.asked.append(body)
        if body == b"slow":
            await self.go_on.wait()
        await send(QueryReply(body))


async def test_slow_query_does_not_delay_others(harness: NatsHarness) -> None:
    """While one query waits for its answer, later queries of the same name are answered."""
    handler = Handler()
    await harness.broker.serve_queries(["get-timer"], handler.answer)
    slow = asyncio.create_task(harness.ask("get-timer", "acme", b"slow"))
    while not handler.asked:
        await asyncio.sleep(0.001)
    assert (await harness.ask("get-timer", "acme", b"fast")).body == b"fast"
    handler.go_on.set()
    assert (await slow).body == b"slow"


async def test_close_while_a_query_is_answered(harness: NatsHarness) -> None:
    """Closing the broker cancels the queries that are being answered."""
    handler = Handler()
    cancelled = asyncio.Event()

    async def answer(name: str, tenant: str, body: bytes, send: SendReply) -> None:
        try:
            await handler.answer(name, tenant, body, send)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    await harness.broker.serve_queries(["get-timer"], answer)
    await harness.user.publish(SUBJECT, b"slow", reply="_INBOX.a")
    while not handler.asked:
        await asyncio.sleep(0.001)
    await harness.broker.close()
    async with asyncio.timeout(10):
        await cancelled.wait()


@pytest.mark.parametrize("reply", ["_INBOX.tenant-a..", "_INBOX..a", "_INBOX.", "_INBOX." + "x" * 3000])
async def test_unusable_reply_subject(harness: NatsHarness, reply: str, caplog: pytest.LogCaptureFixture) -> None:
    """A query whose reply subject a broker denies is ignored with a warning, and the broker stays healthy."""
    handler = Handler()
    await harness.broker.serve_queries(["get-timer"], handler.answer)
    await harness.user._send_publish(SUBJECT, reply, b"hostile", len(b"hostile"), None)  # without the client's checks
    assert (await harness.ask("get-timer", "acme", b"next")).body == b"next"
    assert handler.asked == [b"next"]
    assert harness.broker.health == HEALTHY
    assert "messages ignored" in caplog.text


async def test_many_ignored_queries(harness: NatsHarness, caplog: pytest.LogCaptureFixture) -> None:
    """A flood of queries that are ignored writes a few lines to the log."""
    await harness.broker.serve_queries(["get-timer"], Handler().answer)
    for _ in range(1000):
        await harness.user.publish(SUBJECT, b"", reply="elsewhere")
    assert (await harness.ask("get-timer", "acme", b"next")).body == b"next"
    assert caplog.text.count("messages ignored") == 10


@pytest.mark.parametrize("headers", [{"Status": "503"}, {"Nats-Msg-Id": "\u00e9"}, {"a": "x" * 60_000}])
async def test_strange_headers(harness: NatsHarness, headers: dict[str, str]) -> None:
    """A query with headers of any content is answered like others."""
    await harness.broker.serve_queries(["get-timer"], Handler().answer)
    found = await harness.user.request(SUBJECT, b"\x00\xff", headers=headers, timeout=10)
    assert found.data == b"\x00\xff"


async def test_query_that_is_refused_unread(harness: NatsHarness) -> None:
    """A query that is refused unread gets this reply, with the headers of an error. Its handler does not run."""
    handler = Handler()
    busy = QueryReply(b"busy", Code.BUSY, "ask later")

    def refuse(name: str, tenant: str) -> QueryReply | None:
        return busy if (name, tenant) == ("get-timer", "acme") else None

    await harness.broker.serve_queries(["get-timer"], handler.answer, refuse)
    assert await harness.ask("get-timer", "acme", b"refused") == busy
    await harness.user.publish(SUBJECT, b"no reply subject")
    await harness.user.publish(SUBJECT, b"no inbox", reply="timer.cmd.v1.other.x")
    assert (await harness.ask("get-timer", "other", b"answered")).body == b"answered"
    assert handler.asked == [b"answered"]
