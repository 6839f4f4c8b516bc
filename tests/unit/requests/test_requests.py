"""Requests of workers: batches, replies, and whose fault a failed transaction is."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.metrics import RecordingMetrics
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.route import Lane
from timer_service.core.ports.broker import QueryReply
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.health import OutageLog
from timer_service.core.requests.bodies import ANSWERED
from timer_service.core.requests.requests import Answer, Asked, HandleRequests, RequestQueue, RequestRoute, Requests
from timer_service.core.values.address import Kind
from timer_service.core.values.budget import MIB
from timer_service.core.values.errors import Code, DatabaseBlockedError, DatabaseUnavailableError, Rejection
from timer_service.core.values.message import Payload
from timer_service.core.values.stored_json import RawJson

INSERT = (
    "INSERT INTO workflow_workers (tenant_id, worker_id, queue, types, slots, first_seen_at, seen_at) "
    "VALUES (:tenant, :id, '', '[]', 1, 0, 0)"
)


class Note(Payload):
    """A request of these tests."""

    absent: str | None = None
    text: str = ""


ANSWERS = {
    "rejected": Answer(Rejection(Code.NOT_FOUND, "there is no such thing")),
    "large": Answer(RawJson('"' + "x" * MIB + '"')),
    "wakes": Answer(Note(text="wakes"), ("outbox",), ((("acme", "default", "order"), NOW + 5),)),
}


class Service:
    """The requests of one instance, on an in-memory broker and a real database.

    It stores each request, up to `most` in one transaction. A test makes it fail.
    """

    def __init__(self, database: SqliteDatabase, clock: ManualClock, metrics: RecordingMetrics, **limits: int) -> None:
        self.broker = MemoryBroker()
        self.metrics = metrics
        self.batches: list[list[str]] = []
        self.most = 1000
        self.failing: Exception | None = None
        self.fails_on: Collection[str] = ()
        self.wakes: list[tuple[set[str], int]] = []
        self.lanes: list[tuple[Lane, int]] = []
        self.seconds = 0.0
        self.queue = RequestQueue(
            [RequestRoute("note", Note, Note)],
            metrics,
            waiting_bytes=16 * MIB,
            batch_bytes=limits.get("batch_bytes", MIB),
            waiting=limits.get("waiting", 100),
            monotonic=lambda: self.seconds,
        )
        self._database = database
        self.requests = Requests(
            database=database,
            clock=clock,
            metrics=metrics,
            prepare=self._prepare,
            wake=self._wake,
            offer=lambda lane, at: self.lanes.append((lane, at)),
            outages=OutageLog(),
        )

    async def _prepare(self, now: int) -> HandleRequests:
        assert now == NOW
        return self._handle

    async def _handle(self, tx: Transaction, asked: Sequence[Asked], _now: int) -> Sequence[Answer]:
        texts = [each.request.text for each in asked[: self.most]]
        self.batches.append(texts)
        await tx.executemany(INSERT, [{"tenant": "acme", "id": each} for each in texts])
        if self.failing is not None and (not self.fails_on or set(texts) & set(self.fails_on)):
            raise self.failing
        return [ANSWERS.get(text, Answer(Note(text=text))) for text in texts]

    async def _wake(self, loops: Collection[str], at: int) -> None:
        self.wakes.append((set(loops), at))

    async def send(self, *bodies: object, tenant: str = "acme") -> list[asyncio.Task[QueryReply]]:
        """Send requests. Return when all were received."""
        encoded = [body if isinstance(body, bytes) else json.dumps({"text": body}).encode() for body in bodies]
        tasks = [asyncio.create_task(self.broker.request("note", tenant, body)) for body in encoded]
        await asyncio.sleep(0)
        return tasks

    async def ask(self, *bodies: object, tenant: str = "acme") -> list[Any]:
        """Send requests together. Return the replies, or the code of an error."""
        async with asyncio.timeout(10):
            replies = await asyncio.gather(*await self.send(*bodies, tenant=tenant))
        return [each.code or next(iter(json.loads(each.body).values())) for each in replies]

    async def stored(self) -> list[str]:
        rows = await self._database.reader.fetch("SELECT worker_id FROM workflow_workers ORDER BY worker_id")
        return [row["worker_id"] for row in rows]

    @asynccontextmanager
    async def running(self, *, collects: bool = False) -> AsyncIterator[None]:
        """Apply requests during the block, or collect them and apply them at its end."""
        subscription = await self.broker.serve(Kind.REQUEST, ["note"], self.queue.receive)
        task = None if collects else asyncio.create_task(self.requests.run(self.queue, subscription))
        yield
        if not collects:
            await subscription.close()
        self.queue.close()
        async with asyncio.timeout(10):
            await (task or self.requests.run(self.queue, subscription))


@pytest.fixture
async def service(sqlite: SqliteDatabase, clock: ManualClock, metrics: RecordingMetrics) -> AsyncIterator[Service]:
    started = Service(sqlite, clock, metrics)
    async with started.running():
        yield started


async def test_bad_requests_beside_a_good_one(service: Service) -> None:
    """Each bad request gets an error that names the field. The good ones of the same batch are applied."""
    bad = await service.send(b"{", b'{"text": 1}', b'{"text": "a", "more": 1}', b"[]")
    bad += await service.send("a", tenant="\u00e9")
    bad += await service.send(b"[" + b"{}," * (128 * 1024) + b"{}]")
    assert await service.ask("good") == ["good"]
    replies = [await each for each in bad]
    found = [each.code for each in replies]
    assert found == [Code.INVALID_JSON, *[Code.INVALID_PAYLOAD] * 4, Code.TOO_LARGE]
    assert service.metrics.requests == {("note", code): found.count(code) for code in found} | {("note", ANSWERED): 1}
    paths = [json.loads(each.body)["error"].get("errors", [{}])[0].get("path") for each in replies]
    assert paths == [None, "text", "more", "(body)", "tenantId", None]
    assert await service.stored() == ["good"]


async def test_answers_after_the_commit(service: Service) -> None:
    """When a worker has the reply, every reader sees what the request wrote, and loops and lanes are woken.

    An answer may be an error. A reply that is too large for the broker becomes one.
    """
    for number in range(20):
        await service.ask(f"{number:02}")
        assert (await service.stored())[-1] == f"{number:02}"
    assert await service.ask("rejected", "large", "wakes") == [Code.NOT_FOUND, Code.TOO_LARGE, "wakes"]
    assert (service.wakes, service.lanes) == ([({"outbox"}, NOW)], [(("acme", "default", "order"), NOW + 5)])


@pytest.mark.parametrize(
    ("error", "code", "usable"),
    [(RuntimeError("a bug"), Code.INTERNAL, False), (DatabaseBlockedError("no"), "BUSY", True)],
)
async def test_failure_affects_one_request(service: Service, error: Exception, code: str, *, usable: bool) -> None:
    """If a transaction fails because of one request, only this one fails, and the others are applied once."""
    service.failing, service.fails_on = error, {"5"}
    replies = await service.ask(*(str(number) for number in range(10)))
    assert replies == [code if number == 5 else str(number) for number in range(10)]
    assert await service.stored() == ["0", "1", "2", "3", "4", "6", "7", "8", "9"]
    assert await service.ask("5") == [code]
    assert service.requests.health.usable is usable
    assert (await service.ask("next"), service.requests.health.usable) == (["next"], True)


@pytest.mark.parametrize("error", [DatabaseUnavailableError("away"), DatabaseBlockedError("locked")])
async def test_environment_at_fault(service: Service, error: Exception) -> None:
    """If the database is away or blocks, the requests get BUSY, so that workers repeat them. Nothing is stored."""
    service.failing = error
    assert await service.ask("a", "b") == [Code.BUSY, Code.BUSY]
    service.failing = None
    assert await service.ask("a", "b") == ["a", "b"]
    assert await service.stored() == ["a", "b"]
    assert service.metrics.requests == {("note", "BUSY"): 2, ("note", "answered"): 2}


async def test_a_database_that_accepts_nothing(
    service: Service, sqlite: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the file of the database was deleted, no worker is told that its request was applied."""

    def refuse() -> None:
        raise DatabaseUnavailableError("the file was deleted")

    monkeypatch.setattr(sqlite, "accepting", refuse)
    assert (await service.ask("a"), await service.stored()) == (["BUSY"], [])


async def test_requests_that_are_not_applied(
    sqlite: SqliteDatabase, clock: ManualClock, metrics: RecordingMetrics
) -> None:
    """What finds the queue full, or makes room for another tenant, or waits for too long, gets BUSY."""
    service = Service(sqlite, clock, metrics, waiting=3)
    async with service.running(collects=True):
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
    service.most = 3
    async with service.running(collects=True):
        tasks = [*await service.send(*"abcde"), *await service.send(*"12", tenant="other")]
    assert [json.loads((await each).body)["text"] for each in tasks] == [*"abcde", *"12"]
    assert service.batches == [["a", "1", "b"], ["2", "c", "d"], ["e"]]
    assert (await service.stored(), metrics.waiting_requests) == (sorted("abcde12"), 0)


@pytest.mark.parametrize(("bodies", "sizes"), [(100, {4}), (30_000, {1})])
async def test_batches_are_bounded(
    sqlite: SqliteDatabase, clock: ManualClock, metrics: RecordingMetrics, bodies: int, sizes: set[int]
) -> None:
    """The requests of a batch have a limit. A single request may have more."""
    service = Service(sqlite, clock, metrics, batch_bytes=5000)
    async with service.running(collects=True):
        waiting = await service.send(*(chr(97 + number) * bodies for number in range(12)))
    assert [(await each).code for each in waiting] == [None] * 12
    assert {len(batch) for batch in service.batches} == sizes
