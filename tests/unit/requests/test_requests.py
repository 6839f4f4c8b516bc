"""Requests of workers: batches, replies, and whose fault a failed transaction is."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import pytest

from tests.harness.clock import NOW, ManualClock
from tests.harness.metrics import RecordingMetrics
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.route import Lane
from timer_service.core.ports.broker import QueryReply, Request
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.health import OutageLog
from timer_service.core.requests.requests import Answer, Asked, HandleRequests, RequestQueue, RequestRoute, Requests
from timer_service.core.values.budget import MIB
from timer_service.core.values.errors import Code, DatabaseBlockedError, DatabaseUnavailableError, Rejection
from timer_service.core.values.message import Kind, Payload
from timer_service.core.values.stored_json import RawJson

INSERT = (
    "INSERT INTO workflow_workers (tenant_id, worker_id, queue, types, slots, first_seen_at, seen_at) "
    "VALUES (:tenant, :id, '', '[]', 1, 0, 0)"
)


class Note(Payload):
    """A request of these tests."""

    text: str = ""


ROUTE = RequestRoute("note", Note, Note)


class Slice:
    """Stores each request, up to `most` in one transaction. A test makes it fail or wait."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.most = 1000
        self.failing: Exception | None = None
        self.fails_on: Collection[str] = ()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def prepare(self, now: int) -> HandleRequests:
        assert now == NOW
        return self.handle

    async def handle(self, tx: Transaction, asked: Sequence[Asked], now: int) -> Sequence[Answer]:
        assert now == NOW
        asked = asked[: self.most]
        texts = [each.request.text for each in asked]
        self.batches.append(texts)
        await tx.executemany(INSERT, [{"tenant": each.tenant, "id": each.request.text} for each in asked])
        await self.go_on.wait()
        if self.failing is not None and (not self.fails_on or set(texts) & set(self.fails_on)):
            raise self.failing
        return [self._answer(each) for each in asked]

    def _answer(self, asked: Asked) -> Answer:
        match asked.request.text:
            case "rejected":
                return Answer(Rejection(Code.NOT_FOUND, "there is no such thing"))
            case "large":
                return Answer(RawJson('"' + "x" * MIB + '"'))
            case "wakes":
                return Answer(Note(text="ok"), ("outbox",), (((asked.tenant, "default", "order"), NOW + 5),))
            case text:
                return Answer(Note(text=text))


class Service:
    """The requests of one instance, on an in-memory broker and a real database."""

    def __init__(
        self,
        database: SqliteDatabase,
        clock: ManualClock,
        metrics: RecordingMetrics,
        *,
        batch_bytes: int = MIB,
        waiting: int = 100,
    ) -> None:
        self.broker = MemoryBroker()
        self.slice = Slice()
        self.metrics = metrics
        self.wakes: list[tuple[set[str], int]] = []
        self.lanes: list[tuple[Lane, int]] = []
        self.seconds = 0.0
        self.queue = RequestQueue(
            [ROUTE],
            metrics,
            waiting_bytes=16 * MIB,
            batch_bytes=batch_bytes,
            waiting=waiting,
            monotonic=lambda: self.seconds,
        )
        self._database = database
        self.requests = Requests(
            database=database,
            clock=clock,
            metrics=metrics,
            prepare=self.slice.prepare,
            wake=self._wake,
            offer=lambda lane, at: self.lanes.append((lane, at)),
            outages=OutageLog(),
        )

    async def _wake(self, loops: Collection[str], at: int) -> None:
        self.wakes.append((set(loops), at))

    async def send(self, *bodies: object, tenant: str = "acme") -> list[asyncio.Task[QueryReply]]:
        """Send requests. Return when all were received."""
        tasks = [asyncio.create_task(self.broker.request("note", tenant, self._body(body))) for body in bodies]
        await asyncio.sleep(0)
        return tasks

    @staticmethod
    def _body(body: object) -> bytes:
        return body if isinstance(body, bytes) else json.dumps({"text": body}).encode()

    async def ask(self, *bodies: object, tenant: str = "acme") -> list[Any]:
        """Send requests together. Return the replies, or the code of an error."""
        async with asyncio.timeout(10):
            replies = await asyncio.gather(*await self.send(*bodies, tenant=tenant))
        return [each.code or json.loads(each.body)["text"] for each in replies]

    async def stored(self) -> list[str]:
        rows = await self._database.reader.fetch("SELECT worker_id FROM workflow_workers ORDER BY worker_id")
        return [row["worker_id"] for row in rows]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Apply requests during the block, and drain them at its end."""
        subscription = await self.broker.serve(Kind.REQUEST, ["note"], self.queue.receive)
        task = asyncio.create_task(self.requests.run(self.queue, subscription))
        yield
        await subscription.close()
        self.queue.close()
        async with asyncio.timeout(10):
            await task

    @asynccontextmanager
    async def collecting(self) -> AsyncIterator[None]:
        """Collect the requests that are sent during the block, and apply them at its end."""
        subscription = await self.broker.serve(Kind.REQUEST, ["note"], self.queue.receive)
        yield
        self.queue.close()
        async with asyncio.timeout(10):
            await self.requests.run(self.queue, subscription)


@pytest.fixture
async def service(sqlite: SqliteDatabase, clock: ManualClock, metrics: RecordingMetrics) -> AsyncIterator[Service]:
    started = Service(sqlite, clock, metrics)
    async with started.running():
        yield started


async def test_bad_requests_beside_a_good_one(service: Service) -> None:
    """Each bad request gets an error that names the field. The good ones of the same batch are applied."""
    bad = await service.send(b"{", b'{"text": 1}', b'{"text": "a", "more": 1}', b"[]")
    assert await service.ask("good") == ["good"]
    replies = [await each for each in bad]
    assert [each.code for each in replies] == [Code.INVALID_JSON] + [Code.INVALID_PAYLOAD] * 3
    paths = [json.loads(each.body)["error"].get("errors", [{}])[0].get("path") for each in replies]
    assert paths == [None, "text", "more", "(body)"]
    assert await service.stored() == ["good"]


@pytest.mark.parametrize("tenant", ["", "\u00e9", "x" * 65])
async def test_invalid_tenant(service: Service, tenant: str) -> None:
    """A request whose subject names no valid tenant is refused."""
    assert await service.ask("a", tenant=tenant) == [Code.INVALID_PAYLOAD]
    assert await service.stored() == []


async def test_requests_are_collected_while_a_transaction_runs(service: Service) -> None:
    """The requests that arrive while a transaction runs are applied together in the next one."""
    service.slice.go_on.clear()
    first = await service.send("a")
    while not service.slice.batches:
        await asyncio.sleep(0.001)
    later = await service.send("b", "c", "d")
    service.slice.go_on.set()
    assert [(await each).code for each in (*first, *later)] == [None] * 4
    assert service.slice.batches == [["a"], ["b", "c", "d"]]


async def test_reply_comes_after_the_commit(service: Service) -> None:
    """When a worker has the reply, every reader sees what the request wrote."""
    for number in range(20):
        await service.ask(f"{number:02}")
        assert (await service.stored())[-1] == f"{number:02}"


async def test_bug_affects_one_request(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    """If a transaction fails by an error of one request, only this one fails, and the others are applied once."""
    service.slice.failing, service.slice.fails_on = RuntimeError("a bug"), {"5"}
    replies = await service.ask(*(str(number) for number in range(10)))
    assert replies == [Code.INTERNAL if number == 5 else str(number) for number in range(10)]
    assert await service.stored() == ["0", "1", "2", "3", "4", "6", "7", "8", "9"]
    assert "request failed" in caplog.text
    assert await service.ask("5") == [Code.INTERNAL]
    assert not service.requests.health.usable
    assert await service.ask("next") == ["next"]
    assert service.requests.health.usable


@pytest.mark.parametrize("error", [DatabaseUnavailableError("away"), DatabaseBlockedError("locked")])
async def test_environment_at_fault(service: Service, error: Exception) -> None:
    """If the database is away or blocks, the requests get BUSY, so that workers repeat them. Nothing is stored."""
    service.slice.failing = error
    assert await service.ask("a", "b") == [Code.BUSY, Code.BUSY]
    service.slice.failing = None
    assert await service.ask("a", "b") == ["a", "b"]
    assert await service.stored() == ["a", "b"]
    assert service.metrics.requests == {("note", "BUSY"): 2, ("note", "answered"): 2}


async def test_a_commit_that_the_next_process_would_not_find(
    service: Service, sqlite: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no commit would last, for example because the file was deleted, workers repeat their requests later."""

    def away() -> NoReturn:
        raise DatabaseUnavailableError("the file was deleted")

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "accepting", away)
        assert await service.ask("a") == [Code.BUSY]
    assert await service.ask("a") == ["a"]


async def test_replies_are_sent_a_few_at_a_time(
    sqlite: SqliteDatabase, clock: ManualClock, metrics: RecordingMetrics
) -> None:
    """Large replies of one transaction are not kept until all are encoded. Each request gets its own."""
    service = Service(sqlite, clock, metrics)
    sent: list[int] = []
    names = [f"{number}" + "x" * 30_000 for number in range(10)]
    subscription = await service.broker.serve(Kind.REQUEST, ["note"], service.queue.receive)
    reply = subscription.reply

    async def record(replies: Sequence[tuple[Request, QueryReply]]) -> None:
        sent.append(sum(len(each.body) for _, each in replies))
        await reply(replies)

    subscription.reply = record  # type: ignore[method-assign]
    tasks = await service.send(*names)
    service.queue.close()
    async with asyncio.timeout(10):
        await service.requests.run(service.queue, subscription)
        assert [json.loads((await each).body)["text"] for each in tasks] == names
    assert max(sent) < 3 * 32_000
    assert len(service.slice.batches) == 1


async def test_blocked_request_does_not_block_others(service: Service) -> None:
    """If one request waits for a locked row, the others of its transaction are applied."""
    service.slice.failing, service.slice.fails_on = DatabaseBlockedError("locked"), {"50"}
    replies = await service.ask(*(str(number) for number in range(100)))
    assert replies == [Code.BUSY if number == 50 else str(number) for number in range(100)]


async def test_wakes_after_the_commit(service: Service) -> None:
    """The loops and the lanes of an answer are woken."""
    assert await service.ask("wakes") == ["ok"]
    assert (service.wakes, service.lanes) == ([({"outbox"}, NOW)], [(("acme", "default", "order"), NOW + 5)])


async def test_errors_of_answers(service: Service) -> None:
    """An answer may be an error. A reply that is too large for the broker becomes one."""
    assert await service.ask("rejected", "large", "b") == [Code.NOT_FOUND, Code.TOO_LARGE, "b"]


async def test_requests_that_are_not_applied(
    sqlite: SqliteDatabase, clock: ManualClock, metrics: RecordingMetrics
) -> None:
    """What finds the queue full, or makes room for another tenant, or waits for too long, gets BUSY."""
    service = Service(sqlite, clock, metrics, waiting=3)
    async with service.collecting():
        waiting = await service.send("a", "b", "c", "d")
        waiting += await service.send("e", tenant="other")
        async with asyncio.timeout(10):
            assert [(await each).code for each in waiting[2:4]] == [Code.BUSY, Code.BUSY]
        service.seconds = 6
        waiting += await service.send("f", tenant="other")
    assert [(await each).code for each in waiting] == [Code.BUSY] * 5 + [None]
    assert (await service.stored(), metrics.waiting_requests) == (["f"], 0)
    assert metrics.requests == {("note", "BUSY"): 5, ("note", "answered"): 1}


async def test_requests_have_several_transactions(
    sqlite: SqliteDatabase, clock: ManualClock, metrics: RecordingMetrics
) -> None:
    """What one transaction has not applied is applied next, and none is lost.

    Each tenant has one request before any has its second, and those of a tenant keep their order.
    """
    service = Service(sqlite, clock, metrics)
    service.slice.most = 3
    async with service.collecting():
        tasks = [*await service.send(*"abcde"), *await service.send(*"12", tenant="other")]
    assert [json.loads((await each).body)["text"] for each in tasks] == [*"abcde", *"12"]
    assert service.slice.batches == [["a", "1", "b"], ["2", "c", "d"], ["e"]]
    assert await service.stored() == sorted("abcde12")
    assert metrics.waiting_requests == 0


@pytest.mark.parametrize("bodies", [100, 30_000])
async def test_batches_are_bounded(
    sqlite: SqliteDatabase, clock: ManualClock, metrics: RecordingMetrics, bodies: int
) -> None:
    """The requests of a batch have a limit. A single request may have more."""
    service = Service(sqlite, clock, metrics, batch_bytes=5000)
    async with service.collecting():
        waiting = await service.send(*(chr(97 + number) * bodies for number in range(12)))
    assert [(await each).code for each in waiting] == [None] * 12
    assert {len(batch) for batch in service.slice.batches} == {4 if bodies == 100 else 1}
