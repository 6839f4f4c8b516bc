"""The queue of queries: tenants take turns, and a few queries are answered at a time."""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, NamedTuple, TypeVar

from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import MAX_MESSAGE_BYTES

_T = TypeVar("_T")

_QUERY_BYTES = 4096
"""The memory of a waiting query besides its body."""


class QueryLimits(NamedTuple):
    """The limits of the queue."""

    waiting_bytes: int
    """The memory of the waiting queries of all tenants."""
    waiting_of_tenant: int = 1000
    """How many queries of one tenant wait at most."""
    seconds: float = 5
    """How long a query waits at most. After that, its client no longer listens: this is the usual timeout."""
    running: int = 4
    running_of_tenant: int = 3
    """How many queries of one tenant are answered at a time. The rest is for the other tenants."""

    @classmethod
    def of(cls, memory_bytes: int) -> "QueryLimits":
        """Return the limits if all queries that wait or are answered may use `memory_bytes`."""
        return cls(waiting_bytes=memory_bytes - cls._field_defaults["running"] * MAX_MESSAGE_BYTES)


class _Waiting(NamedTuple, Generic[_T]):
    query: _T
    size: int
    since: float


class Turn(NamedTuple, Generic[_T]):
    """A query that leaves the queue: it is answered now, or it has waited too long."""

    tenant: str
    query: _T
    expired: bool


class QueryQueue(Generic[_T]):
    """The waiting queries of each tenant, and how many queries are being answered. It does no I/O."""

    def __init__(self, limits: QueryLimits) -> None:
        self._limits = limits
        self._waiting: OrderedDict[str, deque[_Waiting[_T]]] = OrderedDict()  # the tenant of the next turn comes first
        self._bytes: Counter[str] = Counter()
        self._total_bytes = 0
        self._running: Counter[str] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, tenant: str, query: _T, body_bytes: int, now: float) -> list[_T]:
        """Add a query. Return the queries that leave the queue because it is full.

        The oldest queries of the tenant with the most waiting bytes leave first.
        """
        size = body_bytes + _QUERY_BYTES
        self._waiting.setdefault(tenant, deque()).append(_Waiting(query, size, now))
        self._bytes[tenant] += size
        self._total_bytes += size
        self._count += 1
        left: list[_T] = []
        if len(self._waiting[tenant]) > self._limits.waiting_of_tenant:
            left.append(self._remove_oldest(tenant).query)
        while self._total_bytes > self._limits.waiting_bytes:
            left.append(self._remove_oldest(max(self._bytes, key=self._bytes.__getitem__)).query)
        return left

    def take(self, now: float) -> Turn[_T] | None:
        """Remove and return the next query, or return None if no query may be answered now.

        Call `end` when it was answered. A query that has expired needs no `end`.
        """
        if self._running.total() >= self._limits.running:
            return None
        may_run = (each for each in self._waiting if self._running[each] < self._limits.running_of_tenant)
        tenant = next(may_run, None)
        if tenant is None:
            return None
        oldest = self._remove_oldest(tenant)
        if tenant in self._waiting:
            self._waiting.move_to_end(tenant)
        expired = now - oldest.since > self._limits.seconds
        if not expired:
            self._running[tenant] += 1
        return Turn(tenant, oldest.query, expired)

    def end(self, tenant: str) -> None:
        """Record that a query of a tenant was answered."""
        self._running[tenant] -= 1
        self._running += Counter()  # removes the zeros

    def _remove_oldest(self, tenant: str) -> _Waiting[_T]:
        waiting = self._waiting[tenant]
        oldest = waiting.popleft()
        self._bytes[tenant] -= oldest.size
        self._total_bytes -= oldest.size
        self._count -= 1
        if not waiting:
            del self._waiting[tenant], self._bytes[tenant]
        return oldest


class QueryTurns:
    """Lets each query wait for its turn."""

    def __init__(
        self, limits: QueryLimits, metrics: MetricsPort, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._queue = QueryQueue[asyncio.Future[str | None]](limits)
        self._metrics = metrics
        self._monotonic = monotonic

    @asynccontextmanager
    async def turn(self, tenant: str, body_bytes: int) -> AsyncIterator[None]:
        """Wait for the turn of a query, which lasts until the block ends. Raises `Rejection` if it has to give up."""
        turn: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        for each in self._queue.add(tenant, turn, body_bytes, self._monotonic()):
            _refuse(each, "too many queries are waiting; ask again later")
        self._start_queries()
        try:
            refusal = await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result() is None:  # its turn had begun
                self._end(tenant)
            raise
        if refusal is not None:
            raise Rejection(Code.BUSY, refusal)
        try:
            yield
        finally:
            self._end(tenant)

    def _end(self, tenant: str) -> None:
        self._queue.end(tenant)
        self._start_queries()

    def _start_queries(self) -> None:
        while turn := self._queue.take(self._monotonic()):
            if turn.expired:
                _refuse(turn.query, "the query waited for too long; ask again later")
            elif turn.query.cancelled():
                self._queue.end(turn.tenant)
            else:
                turn.query.set_result(None)
        self._metrics.queries_waiting(len(self._queue))


def _refuse(turn: asyncio.Future[str | None], message: str) -> None:
    """End the wait with a refusal. An exception in the future would be a cycle: it refers to a frame with the future.

    Such cycles would keep the bodies of refused queries until the next garbage collection, which comes late.
    """
    if not turn.cancelled():
        turn.set_result(message)
