"""Faults at the awaits of a simulated process, and the proxies of database and broker that cause them.

Every await on the database, the broker or the command log passes a `Gate`. A `Gate` pauses, crashes or fails the awaits
of one reader or worker.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from tests.harness.memory_broker import MemoryBroker
from timer_service.core.intake.cursor import LostCursorError
from timer_service.core.intake.route import TooManyCommandsError
from timer_service.core.ports.broker import (
    PublishResult,
    QueryReply,
    ReceiveRequest,
    Reply,
    Request,
    RequestSubscription,
)
from timer_service.core.ports.database import Database, Parameters, Reader, Row, Transaction
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.ports.log import CommandLog, LogBatch, LogCursor, LogUnavailableError, Opening
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import DatabaseBlockedError, DatabaseUnavailableError
from timer_service.core.values.message import Message
from timer_service.core.values.raw_command import RawCommand

_T = TypeVar("_T")
_NONE: Parameters = {}


class Crash(BaseException):
    """The process crashed. It is a `BaseException`, so that no handler of the service catches it."""


class InjectedError(Exception):
    """A bug in a handler, or another error that no rule of the service expects."""


EXPECTED_ERRORS = (DatabaseUnavailableError, LogUnavailableError, LostCursorError, InjectedError)
"""What a reader of the log may raise. It then begins again."""


class Point(StrEnum):
    """A point before or after an await takes effect, at which a fault can happen."""

    BEFORE_BEGIN = "before begin"
    BEFORE_STATEMENT = "before statement"
    AFTER_STATEMENT = "after statement"
    BEFORE_COMMIT = "before commit"
    AFTER_COMMIT = "after commit"
    BEFORE_PUBLISH = "before publish"
    AFTER_PUBLISH = "after publish"
    BEFORE_REPLY = "before reply"
    AFTER_REPLY = "after reply"
    BEFORE_QUERY = "before a query outside a transaction"
    AFTER_QUERY = "after a query outside a transaction"
    BEFORE_LOG = "before a call to the log"
    AFTER_LOG = "after a call to the log"


_OUTSIDE_TRANSACTION = (Point.BEFORE_BEGIN, Point.AFTER_COMMIT, Point.BEFORE_PUBLISH, Point.AFTER_PUBLISH)
_INSIDE_TRANSACTION = (Point.BEFORE_STATEMENT, Point.AFTER_STATEMENT, Point.BEFORE_COMMIT)
RELAY_POINTS = (*_OUTSIDE_TRANSACTION, *_INSIDE_TRANSACTION)
"""The points that a relay reaches, without its queries. A reader of the log reaches all points."""
RELAY_PAUSE_POINTS = _OUTSIDE_TRANSACTION
READER_PAUSE_POINTS = tuple(point for point in Point if point not in _INSIDE_TRANSACTION)
"""No point is inside a transaction, because a paused transaction blocks all other transactions."""
OUTAGE_POINTS = (Point.BEFORE_BEGIN, *_INSIDE_TRANSACTION)
_LOG_POINTS = (Point.BEFORE_LOG, Point.AFTER_LOG)
READER_OUTAGE_POINTS = (*OUTAGE_POINTS, Point.BEFORE_QUERY, *_LOG_POINTS)
ERROR_POINTS = _INSIDE_TRANSACTION


class FaultKind(StrEnum):
    """The kinds of faults."""

    CRASH = "crash"
    PAUSE = "pause"
    """The await pauses until `Gate.resume`. Other tasks continue."""
    OUTAGE = "outage"
    """The database is unavailable, or the log if it is called."""
    BLOCKED = "blocked"
    """A statement waits too long for a lock."""
    ERROR = "error"
    """The transaction of the commands raises an error that may be their fault."""


class Fault(NamedTuple):
    """A fault that happens when a point is reached for the nth time."""

    kind: FaultKind
    point: Point
    nth: int


def crash(point: Point, nth: int) -> Fault:
    return Fault(FaultKind.CRASH, point, nth)


def pause(point: Point, nth: int) -> Fault:
    return Fault(FaultKind.PAUSE, point, nth)


def outage(point: Point, nth: int) -> Fault:
    return Fault(FaultKind.OUTAGE, point, nth)


def blocked(point: Point, nth: int) -> Fault:
    return Fault(FaultKind.BLOCKED, point, nth)


def error(point: Point, nth: int) -> Fault:
    return Fault(FaultKind.ERROR, point, nth)


class Process:
    """A simulated process. After its end, each of its awaits raises `Crash` and has no effect."""

    def __init__(self, at_end: Callable[[], None]) -> None:
        """Call `at_end` when the process ends."""
        self.ended = False
        self.commits = 0
        """How many transactions are being committed. The process does not end meanwhile: the test could not say how."""
        self._at_end = at_end

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self._at_end()

    def check(self) -> None:
        if self.ended:
            raise Crash


class Gate:
    """The faults of one reader or worker. Each of its awaits calls `reach`."""

    def __init__(self, process: Process, counts: Counter[str]) -> None:
        self._process = process
        self._counts = counts
        self._fault: Fault | None = None
        self._reached = 0
        self._paused: list[asyncio.Future[None]] = []

    @property
    def is_paused(self) -> bool:
        """Whether an await is paused."""
        return bool(self._paused)

    def arm(self, fault: Fault | None) -> None:
        """Set the next fault, or remove it."""
        self._fault, self._reached = fault, 0

    def resume(self) -> None:
        """Continue the paused awaits."""
        for future in self._paused:
            future.set_result(None)
        self._paused.clear()

    def check(self) -> None:
        """Raise `Crash` if the process ended."""
        self._process.check()

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Note that a transaction is being committed."""
        self._process.commits += 1
        try:
            yield
        finally:
            self._process.commits -= 1

    async def reach(self, point: Point) -> None:
        """Cause the fault if it is set for this point."""
        self._process.check()
        if self._fault is None or self._fault.point is not point:
            return
        self._reached += 1
        if self._reached == self._fault.nth:
            kind, self._fault = self._fault.kind, None
            self._counts[kind] += 1
            await self._cause(kind, point)

    @asynccontextmanager
    async def around(self, before: Point, after: Point) -> AsyncIterator[None]:
        """Cause the fault if it is set for the point before or after the block."""
        await self.reach(before)
        yield
        await self.reach(after)

    async def _cause(self, kind: FaultKind, point: Point) -> None:
        match kind:
            case FaultKind.CRASH:
                while self._process.commits:
                    await asyncio.sleep(0)
                self._process.end()
            case FaultKind.PAUSE:
                future = asyncio.get_running_loop().create_future()
                self._paused.append(future)
                await future
            case FaultKind.OUTAGE if point in _LOG_POINTS:
                raise LogUnavailableError("the log is unavailable")
            case FaultKind.OUTAGE:
                raise DatabaseUnavailableError("the database is unavailable")
            case FaultKind.BLOCKED:
                raise DatabaseBlockedError("a row is locked")
            case FaultKind.ERROR:
                raise InjectedError("an injected error")
        self._process.check()


class FaultyTransaction:
    """A transaction with faults. `tokens` are the lease tokens in its statements."""

    def __init__(self, tx: Transaction, gate: Gate) -> None:
        self._tx = tx
        self._gate = gate
        self.tokens: set[str] = set()

    async def fetch(self, sql: str, parameters: Parameters = _NONE) -> Sequence[Row]:
        async with self._statement([parameters]):
            return await self._tx.fetch(sql, parameters)

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> Sequence[Row]:
        async with self._statement(many):
            return await self._tx.fetch_each(sql, many)

    async def execute(self, sql: str, parameters: Parameters = _NONE) -> int:
        async with self._statement([parameters]):
            return await self._tx.execute(sql, parameters)

    async def executemany(self, sql: str, many: Sequence[Parameters]) -> int:
        async with self._statement(many):
            return await self._tx.executemany(sql, many)

    async def insert(self, sql: str, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        async with self._statement([]):
            return await self._tx.insert(sql, rows)

    async def lock(self, names: Sequence[str], *, wait: bool = True) -> Sequence[str]:
        async with self._statement([]):
            return await self._tx.lock(names, wait=wait)

    async def wait_briefly(self) -> None:
        async with self._statement([]):
            await self._tx.wait_briefly()

    def on_commit(self, then: Callable[[], None]) -> None:
        self._tx.on_commit(then)

    @asynccontextmanager
    async def _statement(self, many: Sequence[Parameters]) -> AsyncIterator[None]:
        async with self._gate.around(Point.BEFORE_STATEMENT, Point.AFTER_STATEMENT):
            self.tokens |= {each["token"] for each in many if "token" in each}
            yield


def _ignore(_: object) -> None:
    """Do nothing."""


class FaultyReader:
    """Queries outside a transaction, with faults."""

    def __init__(self, inner: Reader, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    async def fetch(self, sql: str, parameters: Parameters = _NONE) -> Sequence[Row]:
        async with self._gate.around(Point.BEFORE_QUERY, Point.AFTER_QUERY):
            return await self._inner.fetch(sql, parameters)

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> Sequence[Row]:
        async with self._gate.around(Point.BEFORE_QUERY, Point.AFTER_QUERY):
            return await self._inner.fetch_each(sql, many)


class FaultyDatabase:
    """A database with faults.

    It calls `committed` with each transaction that is committed, and `failed` with each error of a transaction that
    neither a fault nor another reader has caused.
    """

    engine = "sqlite"
    health = HEALTHY
    read_health = HEALTHY

    def __init__(
        self,
        inner: Database,
        gate: Gate,
        *,
        exclusive: bool,
        committed: Callable[["FaultyTransaction"], None] = _ignore,
        failed: Callable[[Exception], None] = _ignore,
    ) -> None:
        self._inner = inner
        self._gate = gate
        self._committed = committed
        self._failed = failed
        self.exclusive = exclusive

    @property
    def reader(self) -> Reader:
        return FaultyReader(self._inner.reader, self._gate)

    @property
    def queries(self) -> Reader:
        return self._inner.queries

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        await self._gate.reach(Point.BEFORE_BEGIN)
        try:
            with ExitStack() as stack:
                async with self._inner.transaction() as tx:
                    faulty = FaultyTransaction(tx, self._gate)
                    yield faulty
                    await self._gate.reach(Point.BEFORE_COMMIT)
                    stack.enter_context(self._gate.committing())
                self._committed(faulty)
        except (*EXPECTED_ERRORS, TooManyCommandsError):
            raise
        except Exception as error:
            self._failed(error)
            raise
        await self._gate.reach(Point.AFTER_COMMIT)

    async def run(self, work: Callable[[Transaction], Awaitable[_T]]) -> _T:
        async with self.transaction() as tx:
            return await work(tx)

    accepting = transaction
    migrating = transaction

    async def close(self) -> None:
        raise NotImplementedError


class BrokerObserver:
    """An observer of the calls to the broker, which also decides how much of the log a call returns."""

    most_commands = 1_000_000
    """The most commands that one call to the log returns."""
    is_crowded = False
    """Whether the log says that it may have commands of other tenants. It may always say so."""

    def published(self) -> None:
        """Observe a publish, whether the broker stored the message or not."""


class FaultyBroker:
    """A broker with faults. A crash can happen between any two messages of a batch."""

    def __init__(self, inner: MemoryBroker, gate: Gate, observer: BrokerObserver) -> None:
        self._inner = inner
        self._gate = gate
        self._observer = observer

    @property
    def log(self) -> CommandLog:
        return FaultyLog(self._inner.log, self._gate, self._observer)

    @property
    def max_message_bytes(self) -> int:
        return self._inner.max_message_bytes

    @property
    def reply_prefixes(self) -> tuple[str, ...]:
        return self._inner.reply_prefixes

    @property
    def health(self) -> Health:
        return self._inner.health

    @property
    def outages(self) -> int:
        return self._inner.outages

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        return [await self._publish(message) for message in messages]

    async def _publish(self, message: Message) -> PublishResult:
        async with self._gate.around(Point.BEFORE_PUBLISH, Point.AFTER_PUBLISH):
            (result,) = await self._inner.publish([message])
            self._observer.published()
        return result

    async def hint(self, loop: str, at: int) -> None:
        self._gate.check()
        await self._inner.hint(loop, at)

    async def subscribe_hints(self, on_hint: Callable[[str, int], None]) -> None:
        await self._inner.subscribe_hints(on_hint)

    async def serve(self, kind: Kind, names: Sequence[str], receive: ReceiveRequest) -> RequestSubscription:
        raise NotImplementedError

    async def reply(self, replies: Sequence[Reply]) -> None:
        async with self._gate.around(Point.BEFORE_REPLY, Point.AFTER_REPLY):
            await self._inner.reply(replies)


class FaultyRequests:
    """The requests of workers that one instance takes, with faults. `answer` gets each reply."""

    def __init__(self, inner: MemoryBroker, gate: Gate, answer: Callable[[Request, QueryReply], None]) -> None:
        self._inner = inner
        self._gate = gate
        self._answer = answer

    @property
    def health(self) -> Health:
        return self._inner.health

    @property
    def outages(self) -> int:
        return self._inner.outages

    async def reply(self, replies: Sequence[tuple[Request, QueryReply]]) -> None:
        for request, reply in replies:
            async with self._gate.around(Point.BEFORE_REPLY, Point.AFTER_REPLY):
                self._answer(request, reply)

    async def close(self) -> None:
        raise NotImplementedError


class FaultyLog:
    """The command log of one reader, with faults."""

    def __init__(self, inner: CommandLog, gate: Gate, observer: BrokerObserver) -> None:
        self._inner = inner
        self._gate = gate
        self._observer = observer

    async def open(self, cursor: LogCursor | None, owner: str) -> Opening:
        async with self._call():
            return await self._inner.open(cursor, owner)

    async def read(self, limit: int, most_bytes: int, seconds: float) -> LogBatch:
        async with self._call():
            return await self._inner.read(min(limit, self._observer.most_commands), most_bytes, seconds)

    async def body(self, raw: RawCommand) -> bytes | None:
        async with self._call():
            return await self._inner.body(raw)

    async def end(self) -> LogCursor:
        async with self._call():
            return await self._inner.end()

    async def has_others(self, tenant: str) -> bool:
        async with self._call():
            return self._observer.is_crowded or await self._inner.has_others(tenant)

    async def close(self) -> None:
        await self._inner.close()

    def _call(self) -> AbstractAsyncContextManager[None]:
        return self._gate.around(Point.BEFORE_LOG, Point.AFTER_LOG)
