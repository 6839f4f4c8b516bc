"""What can befall a process at its awaits, and the thin proxies around database and broker that let it happen."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from timer_service.adapters.memory import MemoryBroker
from timer_service.core.broker import BrokerFeatures, Delivery, PublishResult, QueryHandler, Reply, Subscription
from timer_service.core.database import Database, Parameters, Reader, Row, Transaction
from timer_service.core.errors import DatabaseUnavailableError
from timer_service.core.health import HEALTHY, Health
from timer_service.core.message import Message

_NONE: Parameters = {}


class Crash(BaseException):
    """The process is gone: no handler of the service may catch this."""


class Point(StrEnum):
    """An await at which something can happen, before or after it took effect."""

    BEFORE_BEGIN = "before begin"
    BEFORE_STATEMENT = "before statement"
    AFTER_STATEMENT = "after statement"
    BEFORE_COMMIT = "before commit"
    AFTER_COMMIT = "after commit"
    BEFORE_PUBLISH = "before publish"
    AFTER_PUBLISH = "after publish"
    BEFORE_REPLY = "before reply"
    AFTER_REPLY = "after reply"
    BEFORE_SETTLING = "before settling deliveries"
    AFTER_SETTLING = "after settling deliveries"


_AROUND = (Point.BEFORE_BEGIN, Point.AFTER_COMMIT, Point.BEFORE_PUBLISH, Point.AFTER_PUBLISH)
_INSIDE = (Point.BEFORE_STATEMENT, Point.AFTER_STATEMENT, Point.BEFORE_COMMIT)
RELAY = (*_AROUND, *_INSIDE)
"""What a relay passes; a consumer passes them all."""
RELAY_MAY_HOLD = _AROUND
CONSUMER_MAY_HOLD = tuple(point for point in Point if point not in _INSIDE)
"""Not inside of a transaction, for all others would wait with it."""
OUTAGES = (Point.BEFORE_BEGIN, *_INSIDE)


class Happening(StrEnum):
    """What happens at a point."""

    CRASH = "crash"
    HOLD = "hold"
    """Stop there until let on, while the world goes on."""
    OUTAGE = "outage"
    """The database can't be used."""


class Fault(NamedTuple):
    """What happens the nth time a point is reached."""

    happening: Happening
    point: Point
    nth: int


def crash(point: Point, nth: int) -> Fault:
    return Fault(Happening.CRASH, point, nth)


def hold(point: Point, nth: int) -> Fault:
    return Fault(Happening.HOLD, point, nth)


def outage(point: Point, nth: int) -> Fault:
    return Fault(Happening.OUTAGE, point, nth)


class Life:
    """Whether a process lives. When it ends, every await of it raises `Crash` before anything else takes effect."""

    def __init__(self, at_end: Callable[[], None]) -> None:
        self.over = False
        self._at_end = at_end

    def end(self) -> None:
        if not self.over:
            self.over = True
            self._at_end()

    def check(self) -> None:
        if self.over:
            raise Crash


class Gate:
    """What every await of one actor (a consumer or a relay) passes."""

    def __init__(self, life: Life, counts: Counter[str]) -> None:
        self._life = life
        self._counts = counts
        self._fault: Fault | None = None
        self._reached = 0
        self._held: list[asyncio.Future[None]] = []

    @property
    def holds(self) -> bool:
        """Whether something waits here to be let on."""
        return bool(self._held)

    def arm(self, fault: Fault | None) -> None:
        """Let this happen from now on, or nothing."""
        self._fault, self._reached = fault, 0

    def let_on(self) -> None:
        for future in self._held:
            future.set_result(None)
        self._held.clear()

    def check(self) -> None:
        """Raise `Crash` if the process is gone."""
        self._life.check()

    async def reach(self, point: Point) -> None:
        self._life.check()
        if self._fault is None or self._fault.point is not point:
            return
        self._reached += 1
        if self._reached == self._fault.nth:
            happening, self._fault = self._fault.happening, None
            self._counts[happening] += 1
            await self._meet(happening)

    async def _meet(self, happening: Happening) -> None:
        match happening:
            case Happening.CRASH:
                self._life.end()
            case Happening.HOLD:
                future = asyncio.get_running_loop().create_future()
                self._held.append(future)
                await future
            case Happening.OUTAGE:
                raise DatabaseUnavailableError("the database is away")
        self._life.check()


class FaultyTransaction:
    """A transaction behind a gate; notes which leases its statements name."""

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

    @asynccontextmanager
    async def _statement(self, many: Sequence[Parameters]) -> AsyncIterator[None]:
        await self._gate.reach(Point.BEFORE_STATEMENT)
        self.tokens |= {each["token"] for each in many if "token" in each}
        yield
        await self._gate.reach(Point.AFTER_STATEMENT)


class FaultyDatabase:
    """A database behind a gate; tells of each commit which leases it named, and of every fault of ours in between."""

    engine = "sqlite"
    health = HEALTHY

    def __init__(
        self,
        inner: Database,
        gate: Gate,
        *,
        exclusive: bool,
        committed: Callable[[set[str]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._inner = inner
        self._gate = gate
        self._committed = committed
        self._failed = failed
        self.exclusive = exclusive

    @property
    def reader(self) -> Reader:
        return self._inner.reader

    @property
    def queries(self) -> Reader:
        return self._inner.queries

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        await self._gate.reach(Point.BEFORE_BEGIN)
        try:
            async with self._inner.transaction() as tx:
                faulty = FaultyTransaction(tx, self._gate)
                yield faulty
                await self._gate.reach(Point.BEFORE_COMMIT)
            self._committed(faulty.tokens)
        except DatabaseUnavailableError:
            raise
        except Exception as error:
            self._failed(error)
            raise
        await self._gate.reach(Point.AFTER_COMMIT)

    migrating = transaction

    async def close(self) -> None:
        raise NotImplementedError


class Witness:
    """Is told what the broker was told."""

    def published(self) -> None:
        """A message was published, and stored or not."""

    def acknowledged(self, deliveries: Sequence[Delivery]) -> None:
        """Commands will not be delivered again: they were handled."""

    def terminated(self, deliveries: Sequence[Delivery]) -> None:
        """Commands will not be delivered again: they were rejected."""


class FaultyBroker:
    """A broker behind a gate; a batch can be cut off between any two messages."""

    def __init__(self, inner: MemoryBroker, gate: Gate, witness: Witness) -> None:
        self._inner = inner
        self._gate = gate
        self._witness = witness
        self._backlog = inner.unsettled
        """A process that starts connects, while the broker in memory lives on."""

    @property
    def features(self) -> BrokerFeatures:
        return self._inner.features

    @property
    def health(self) -> Health:
        return self._inner.health

    async def caught_up(self, *, restart: bool = False) -> bool:
        self._gate.check()
        return await self._inner.caught_up(restart=restart) and self._backlog.isdisjoint(self._inner.unsettled)

    async def subscribe(self, *, alone: bool = False) -> Subscription:
        assert not alone, "the world itself says when deliveries lapse"
        return FaultySubscription(await self._inner.subscribe(), self._gate, self._witness)

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        return [await self._publish(message) for message in messages]

    async def _publish(self, message: Message) -> PublishResult:
        await self._gate.reach(Point.BEFORE_PUBLISH)
        (result,) = await self._inner.publish([message])
        self._witness.published()
        await self._gate.reach(Point.AFTER_PUBLISH)
        return result

    async def hint(self, loop: str, at: int) -> None:
        raise NotImplementedError

    async def subscribe_hints(self, heard: Callable[[str, int], None]) -> None:
        raise NotImplementedError

    async def serve_queries(self, names: Sequence[str], answer: QueryHandler) -> None:
        raise NotImplementedError

    async def reply(self, replies: Sequence[Reply]) -> None:
        await self._gate.reach(Point.BEFORE_REPLY)
        await self._inner.reply(replies)
        await self._gate.reach(Point.AFTER_REPLY)


class FaultySubscription:
    """A subscription behind a gate."""

    def __init__(self, inner: Subscription, gate: Gate, witness: Witness) -> None:
        self._inner = inner
        self._gate = gate
        self._witness = witness

    async def next_batch(self, limit: int) -> Sequence[Delivery]:
        return await self._inner.next_batch(limit)

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        await self._gate.reach(Point.BEFORE_SETTLING)
        await self._inner.acknowledge(deliveries)
        self._witness.acknowledged(deliveries)
        await self._gate.reach(Point.AFTER_SETTLING)

    async def retry(self, deliveries: Sequence[Delivery], delay: timedelta) -> None:
        await self._gate.reach(Point.BEFORE_SETTLING)
        await self._inner.retry(deliveries, delay)
        await self._gate.reach(Point.AFTER_SETTLING)

    async def terminate(self, deliveries: Sequence[Delivery]) -> None:
        await self._gate.reach(Point.BEFORE_SETTLING)
        await self._inner.terminate(deliveries)
        self._witness.terminated(deliveries)
        await self._gate.reach(Point.AFTER_SETTLING)

    async def close(self) -> None:
        await self._inner.close()
