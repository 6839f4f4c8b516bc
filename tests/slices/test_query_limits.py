"""What every query has in common: its limits, its metrics and its connection."""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from tests.harness.clock import ManualClock
from tests.harness.metrics import RecordingMetrics
from timer_service.app.slices import QUERIES
from timer_service.core.ports.broker import QueryReply
from timer_service.core.ports.database import Database, Reader
from timer_service.core.requests.query import MAX_QUERY_BYTES, Queries, QueryRoute
from timer_service.core.requests.refusals import MOST_REFUSALS
from timer_service.core.values.errors import Code, DatabaseUnavailableError, Rejection
from timer_service.core.values.message import Payload


class Ask(Payload):
    """A query."""

    type: ClassVar[str] = "Ask"

    text: str = ""


class Asked:
    """A query that records how it was called. It is answered with an error if its text is the code of an error."""

    def __init__(self, database: Database, clock: ManualClock) -> None:
        self.readers: list[Reader] = []
        self.metrics = RecordingMetrics()
        self.queries = Queries(database, clock, [QueryRoute("ask", Ask, Ask, self._answer)], self.metrics)

    async def ask(self, body: bytes) -> QueryReply:
        return await self.queries.answer("ask", "acme", body)

    async def _answer(self, reader: Reader, _tenant: str, request: Ask, _now: int) -> Mapping[str, Any]:
        self.readers.append(reader)
        await asyncio.sleep(0)  # other tasks run, as during a read of the database
        if request.text in Code.__members__:
            raise Rejection(Code(request.text), "no")
        if request.text == "bug":
            raise RuntimeError("a bug")
        if request.text == "outage":
            raise DatabaseUnavailableError("an outage")
        return {"text": request.text}


@pytest.fixture
def asked(store: Database, clock: ManualClock) -> Asked:
    """Return a query on each store in turn."""
    return Asked(store, clock)


async def test_queries_have_their_own_reader(asked: Asked, store: Database) -> None:
    """A query gets the reader for queries, not the reader of the loops: a slow query must not delay a timer."""
    await asked.ask(b"{}")
    assert [reader is store.queries for reader in asked.readers] == [True]
    assert store.queries is not store.reader


async def test_large_query(asked: Asked) -> None:
    """A query of more than 64 KiB is refused before it is parsed, even if it is not JSON."""
    largest = json.dumps({"text": "x" * (MAX_QUERY_BYTES - len('{"text": ""}'))}).encode()
    assert (await asked.ask(largest)).code is None
    refused = await asked.ask(b"[" + largest)
    assert (refused.code, refused.message) == (Code.TOO_LARGE, "the query has 65537 bytes; the limit is 65536")
    assert len(asked.readers) == 1


async def test_query_with_many_fields(asked: Asked) -> None:
    """A query with thousands of unknown fields is refused without a fault for each field."""
    body = json.dumps({f"{number:x}": 0 for number in range(7000)}, separators=(",", ":")).encode()
    assert len(body) < MAX_QUERY_BYTES
    refused = await asked.ask(body)
    assert (refused.code, refused.message) == (Code.INVALID_PAYLOAD, "the query has 7000 fields; the limit is 100")


@pytest.mark.parametrize(
    ("body", "is_refused"),
    [(b"{", True), (b'{"x": 1}', True), (b"x" * (MAX_QUERY_BYTES + 1), True), (b'{"text": "NOT_FOUND"}', False)],
)
async def test_many_refused_queries(asked: Asked, body: bytes, is_refused: bool) -> None:  # noqa: FBT001
    """After 100 refused queries in a second, the queries of this tenant are refused unread and counted as BUSY."""
    await asyncio.gather(*(asked.ask(body) for _ in range(MOST_REFUSALS)))
    refusal = asked.queries.refuse("ask", "acme")
    assert (refusal is not None and refusal.code == Code.BUSY) is is_refused
    assert asked.metrics.queries["ask", "BUSY"] == int(is_refused)
    assert asked.queries.refuse("ask", "other") is None


async def test_a_turn_lasts_until_the_reply_is_sent(asked: Asked) -> None:
    """While replies of a tenant are sent slowly, its next queries wait. Their replies would fill the memory.

    The queries of other tenants are answered meanwhile, also if those of the tenant came first.
    """
    may_send = asyncio.Event()

    async def send(_: QueryReply) -> None:
        await may_send.wait()

    waiting = [asyncio.create_task(asked.queries.answer("ask", "acme", b"{}", send)) for _ in range(50)]
    async with asyncio.timeout(10):
        while len(asked.readers) < 3:
            await asyncio.sleep(0)
        assert (await asked.queries.answer("ask", "other", b"{}")).code is None
    assert len(asked.readers) == 4  # three of one tenant are answered at a time
    may_send.set()
    await asyncio.gather(*waiting)
    assert len(asked.readers) == 51


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Disable the garbage collector: in a process of many tests, one collection takes longer than a query."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
async def test_bodies_are_forgotten(asked: Asked) -> None:
    """However a query ends, nothing refers to its body any more. A collection of cycles could come much later."""
    flood = [b'{"text": "%d"}' % number for number in range(1100)]  # more than may wait, so the oldest get BUSY
    others = [b'{"text": "NOT_FOUND"}', b'{"text": "outage"}', b"{", b'{"text": 1}', b"x" * (MAX_QUERY_BYTES + 1)]
    before = [sys.getrefcount(body) for body in (*flood, *others)]
    await asyncio.gather(*map(asked.ask, flood))
    await asyncio.gather(*map(asked.ask, others))
    assert [sys.getrefcount(body) for body in (*flood, *others)] == before
    codes = {code for _, code in asked.metrics.queries}
    assert codes == {"answered", "BUSY", "NOT_FOUND", "INTERNAL", "INVALID_JSON", "INVALID_PAYLOAD", "TOO_LARGE"}


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("filling", ["[]", "0", '""', "{}", '{"a":0}', '[[[[""]]]]'])
async def test_hostile_queries_are_cheap(sqlite: Database, clock: ManualClock, filling: str) -> None:
    """A query of almost 64 KiB of small values, in a list of its own or in a field, takes less than 50 ms of CPU."""
    queries = Queries(sqlite, clock, QUERIES, RecordingMetrics())
    many = ",".join([filling] * ((MAX_QUERY_BYTES - 40) // (len(filling) + 1)))
    for name in queries.names:
        for body in (f"[{many}]", f'{{"cursor":[{many}]}}', f'{{"unknown":[{many}]}}'):
            before = time.thread_time()
            assert (await queries.answer(name, "acme", body.encode())).code is Code.INVALID_PAYLOAD
            assert time.thread_time() - before < 0.05


async def test_outcomes_are_counted(asked: Asked) -> None:
    """Each query is counted once: as answered, or under the code of its error."""
    for text in ("", "NOT_FOUND", "bug"):
        await asked.ask(json.dumps({"text": text}).encode())
    await asked.ask(b"{")
    assert asked.metrics.queries == {
        ("ask", "answered"): 1,
        ("ask", "NOT_FOUND"): 1,
        ("ask", "INTERNAL"): 1,
        ("ask", "INVALID_JSON"): 1,
    }
