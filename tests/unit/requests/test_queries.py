"""What every query has in common: its turn, its limits, its metrics and its reader."""

import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar, Final, cast

import pytest

from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.metrics import RecordingMetrics
from timer_service.core.ports.broker import QueryReply, Replies, Request, RequestSubscription
from timer_service.core.ports.database import Database, Reader
from timer_service.core.requests.query import MAX_QUERY_BYTES, WAITING, Queries, QueryRoute
from timer_service.core.values.address import Kind
from timer_service.core.values.budget import DEFAULT_BUDGET, LEAST_MEMORY_BYTES, MIB, Budget
from timer_service.core.values.errors import Code, DatabaseUnavailableError, Rejection
from timer_service.core.values.message import Payload

WAIT: Final = b'{"text": "wait"}'


async def settle() -> None:
    """Let all tasks run until each of them waits for something else than its turn on the event loop."""
    for _ in range(20):
        await asyncio.sleep(0)


def codes(replies: Sequence[QueryReply]) -> list[str | None]:
    return [each.code for each in replies]


class Ask(Payload):
    """A query."""

    type: ClassVar[str] = "Ask"

    text: str = ""


class Asked:
    """A query that records how it was called. It is answered with an error if its text is the code of an error.

    If its text begins with `wait`, it waits until the test lets it go on.
    """

    def __init__(self, database: Database, clock: ManualClock) -> None:
        self.readers: list[Reader] = []
        self.begun: list[str] = []
        self.go_on = asyncio.Event()
        self.seconds = 0.0
        self.metrics = RecordingMetrics()
        self.broker = MemoryBroker()
        route = QueryRoute("ask", Ask, Ask, self._answer)
        self.queries = Queries(database, clock, [route], self.metrics, monotonic=lambda: self.seconds)

    async def ask(self, body: bytes, tenant: str = "acme") -> QueryReply:
        return await self.broker.request("ask", tenant, body)

    async def start(self, *queries: str, body: bytes = WAIT) -> list[asyncio.Task[QueryReply]]:
        """Send queries that wait, each of the tenant that it names. Return when none of them goes on any more."""
        tasks = [asyncio.create_task(self.ask(body, tenant)) for tenant in queries]
        await settle()
        return tasks

    async def _answer(self, reader: Reader, tenant: str, request: Ask, _now: int) -> Mapping[str, Any]:
        self.readers.append(reader)
        self.begun.append(tenant)
        if request.text.startswith("wait"):
            await self.go_on.wait()
        await asyncio.sleep(0)  # other tasks run, as during a read of the database
        if request.text in Code.__members__:
            raise Rejection(Code(request.text), "no")
        if request.text == "bug":
            raise RuntimeError("a bug")
        if request.text == "outage":
            raise DatabaseUnavailableError("an outage")
        return {"text": request.text}


@pytest.fixture
async def asked(sqlite: Database, clock: ManualClock) -> AsyncIterator[Asked]:
    """Return a query that is served."""
    asked = Asked(sqlite, clock)
    subscription = await asked.broker.serve(Kind.QUERY, ["ask"], asked.queries.receive)
    task = asyncio.create_task(asked.queries.run(subscription))
    yield asked
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_large_query(asked: Asked, sqlite: Database) -> None:
    """A query of more than 64 KiB is refused before it is parsed, even if it is not JSON."""
    largest = json.dumps({"text": "x" * (MAX_QUERY_BYTES - len('{"text": ""}'))}).encode()
    assert (await asked.ask(largest)).code is None
    refused = await asked.ask(b"[" + largest)
    assert (refused.code, refused.message) == (Code.TOO_LARGE, "the query has 65537 bytes; the limit is 65536")
    assert [reader is sqlite.queries for reader in asked.readers] == [True]  # not the reader of the loops


async def test_query_with_many_fields(asked: Asked) -> None:
    """A query with thousands of unknown fields is refused without a fault for each field."""
    body = json.dumps({f"{number:x}": 0 for number in range(7000)}, separators=(",", ":")).encode()
    assert len(body) < MAX_QUERY_BYTES
    refused = await asked.ask(body)
    assert (refused.code, refused.message) == (Code.INVALID_PAYLOAD, "the query has 7000 fields; the limit is 100")


async def test_a_few_queries_are_answered_at_a_time(asked: Asked) -> None:
    """Four queries are answered at a time, three of one tenant. Tenants take turns. The metric has what waits."""
    waiting = [*await asked.start(*"aaaaa"), *await asked.start(*"bbc")]
    assert ("".join(asked.begun), asked.metrics.waiting_queries) == ("aaab", 4)
    asked.go_on.set()
    await asyncio.gather(*waiting)
    assert ("".join(asked.begun), asked.metrics.waiting_queries) == ("aaabacba", 0)


async def test_full_queue(asked: Asked) -> None:
    """If too many queries wait, the newest of the tenant with the most get BUSY at once. Others still find room."""
    waiting = [*await asked.start(*"abcd"), *await asked.start(*"a" * WAITING, "b", "b")]
    assert codes([each.result() for each in waiting if each.done()]) == ["BUSY"] * 2
    assert asked.metrics.queries["ask", "BUSY"] == 2
    asked.go_on.set()
    assert codes(await asyncio.gather(*waiting[-2:])) == [None, None]
    await asyncio.gather(*waiting)


async def test_a_query_that_has_waited_for_too_long(asked: Asked) -> None:
    """It gets BUSY when it would have its turn. Those that are answered already get their replies."""
    waiting = await asked.start(*"abcde")
    asked.seconds = 6
    asked.go_on.set()
    async with asyncio.timeout(10):
        assert codes(await asyncio.gather(*waiting)) == [None] * 4 + [Code.BUSY]


async def test_waiting_queries_have_a_share_of_the_memory(asked: Asked) -> None:
    """The waiting queries, and the replies that are written at a time, fit into the share of the budget."""
    assert Budget.of(LEAST_MEMORY_BYTES).queries >= 4 * MIB + MIB
    most = (DEFAULT_BUDGET.queries - 4 * MIB) // MAX_QUERY_BYTES
    body = b'{"text": "wait' + b"x" * (MAX_QUERY_BYTES - 17) + b'"}'
    waiting = await asked.start(*"a" * (most + 20), body=body)
    refused = [each for each in waiting if each.done()]
    asked.go_on.set()
    assert 4 <= len(refused) <= 30
    await asyncio.gather(*waiting)


class SlowReplies:
    """Sends the replies to `acme` when the test allows it, and the others at once."""

    def __init__(self) -> None:
        self.may_send, self.others = asyncio.Event(), asyncio.Event()
        self.sent = 0

    async def reply(self, replies: Replies) -> None:
        for request, _ in replies:
            if request.tenant == "acme":
                await self.may_send.wait()
            else:
                self.others.set()
            self.sent += 1


async def test_a_turn_lasts_until_the_reply_is_sent(sqlite: Database, clock: ManualClock) -> None:
    """While replies of a tenant are sent slowly, its next queries wait. Their replies would fill the memory.

    The queries of other tenants are answered meanwhile, although those of the tenant came first.
    """
    asked, slow = Asked(sqlite, clock), SlowReplies()
    task = asyncio.create_task(asked.queries.run(cast(RequestSubscription, slow)))
    for _ in range(50):
        asked.queries.receive(Request("ask", "acme", b"{}", "_INBOX.a"))
    await settle()
    asked.queries.receive(Request("ask", "other", b"{}", "_INBOX.a"))
    async with asyncio.timeout(10):
        await slow.others.wait()
        await settle()
        assert asked.begun == ["acme", "acme", "acme", "other"]
        slow.may_send.set()
        while slow.sent < 51:
            await asyncio.sleep(0)
    task.cancel()


async def test_bodies_are_forgotten(asked: Asked) -> None:
    """However a query ends, it is counted, and nothing refers to its body any more, also without the collector."""
    gc.disable()
    flood = [b'{"text": "%d"}' % number for number in range(1100)]  # more than may wait, so the oldest get BUSY
    others = [b'{"text": "NOT_FOUND"}', b'{"text": "outage"}', b"{", b'{"text": 1}', b"x" * (MAX_QUERY_BYTES + 1)]
    before = [sys.getrefcount(body) for body in (*flood, *others)]
    await asyncio.gather(*map(asked.ask, flood))
    await asyncio.gather(*map(asked.ask, others))
    await settle()
    after = [sys.getrefcount(body) for body in (*flood, *others)]
    gc.enable()
    assert after == before
    codes = {code for _, code in asked.metrics.queries}
    assert codes == {"answered", "BUSY", "NOT_FOUND", "INTERNAL", "INVALID_JSON", "INVALID_PAYLOAD", "TOO_LARGE"}
