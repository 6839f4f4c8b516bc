"""The queries or requests that wait: bounded by count and bytes, and tenants take turns."""

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from timer_service.core.ports.broker import QueryReply, Replies, Request
from timer_service.core.requests.bodies import error_reply
from timer_service.core.values.errors import Code, Rejection

_ENTRY_BYTES = 1024
"""The memory of an entry besides its body."""
_FULL = error_reply(Rejection(Code.BUSY, "too many requests are waiting; ask again later"))
_LATE = error_reply(Rejection(Code.BUSY, "the request waited for too long; ask again later"))


class QueueLimits(NamedTuple):
    """The limits of a queue, for all tenants together."""

    waiting_bytes: int
    """How much memory the entries need."""
    waiting: int
    """How many entries there are."""
    seconds: float = 5
    """How long an entry waits. After that its client no longer listens: this is the usual timeout."""


class Entry(NamedTuple):
    """A query or a request that waits."""

    request: Request
    """Those of one tenant keep their order. Tenants take turns."""
    since: float
    """When it was received, in seconds."""

    @property
    def size(self) -> int:
        """How much memory it needs, in bytes."""
        return len(self.request.body) + _ENTRY_BYTES


class Taken(NamedTuple):
    """What leaves the queue with its turn."""

    entries: Sequence[Entry]
    late: Replies
    """The replies to those that have waited for too long."""


class FairQueue:
    """The queue of some queries or requests. `receive` is called by the broker, `next` by the tasks that answer."""

    def __init__(
        self,
        limits: QueueLimits,
        *,
        answered: Callable[[str, str], None],
        waiting: Callable[[int], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`answered` counts a refusal by its name and code. `waiting` adds a change to a gauge."""
        self._limits = limits
        self._answered = answered
        self._gauge = waiting
        self._monotonic = monotonic
        self._waiting: OrderedDict[str, deque[Entry]] = OrderedDict()  # the tenant of the next turn comes first
        self._bytes: Counter[str] = Counter()
        self._total_bytes = 0
        self._count = 0
        self._changed = asyncio.Event()
        self._closed = False

    def receive(self, request: Request) -> Replies:
        """Add a request. Return BUSY for those that leave because the queue is full, perhaps also for this one.

        The newest ones of the tenant with the most bytes leave, so that the other tenants go on.
        """
        entry = Entry(request, self._monotonic())
        self._waiting.setdefault(request.tenant, deque()).append(entry)
        self._count_in(entry, 1)
        left: list[Request] = []
        while self._total_bytes > self._limits.waiting_bytes or self._count > self._limits.waiting:
            left.append(self._remove(max(self._bytes, key=self._bytes.__getitem__), newest=True).request)
        self._changed.set()
        return self.refuse(left, _FULL)

    def refuse(self, requests: Iterable[Request], reply: QueryReply) -> Replies:
        """Count requests under the code of an error. Return the replies, which keep no bodies."""
        refused = [(each._replace(body=b""), reply) for each in requests]
        for each, _ in refused:
            self._answered(each.name, reply.code or Code.INTERNAL)
        return refused

    async def next(
        self, most: int, most_bytes: float = math.inf, may_go: Callable[[str], bool] = lambda _tenant: True
    ) -> Taken:
        """Wait for entries. Remove and return the next ones: one of each tenant, then the next one of each, and so on.

        There are at most `most`. They have at most `most_bytes` together; the first one may have more. Tenants for
        which `may_go` is false have no turn now, and keep their places: the caller that makes it true calls this again.
        If the queue is closed and nothing waits, nothing is returned.
        """
        while True:
            taken = self._take(most, most_bytes, may_go)
            if any(taken) or self._closed:
                return taken
            self._changed.clear()
            await self._changed.wait()

    def put_back(self, entries: Sequence[Entry]) -> None:
        """Return entries, in the order in which they were taken, to the front. Their tenants have the next turns."""
        for each in reversed(entries):
            tenant = each.request.tenant
            self._waiting.setdefault(tenant, deque()).appendleft(each)
            self._waiting.move_to_end(tenant, last=False)
            self._count_in(each, 1)

    def close(self) -> None:
        """Make `next` return nothing after what waits now."""
        self._closed = True
        self._changed.set()

    def _take(self, most: int, most_bytes: float, may_go: Callable[[str], bool]) -> Taken:
        """Like `next`, without waiting. Requests that have waited too long are refused instead."""
        now = self._monotonic()
        entries: list[Entry] = []
        late: list[Request] = []
        used = 0
        while len(entries) < most and (tenant := next(filter(may_go, self._waiting), None)) is not None:
            first = self._waiting[tenant][0]
            if now - first.since > self._limits.seconds:
                late.append(self._remove(tenant).request)
                continue
            used += first.size
            if entries and used > most_bytes:
                break
            entries.append(self._remove(tenant))
            if tenant in self._waiting:
                self._waiting.move_to_end(tenant)
        return Taken(entries, self.refuse(late, _LATE))

    def _remove(self, tenant: str, *, newest: bool = False) -> Entry:
        """Remove and return the oldest entry of a tenant, or the newest one."""
        waiting = self._waiting[tenant]
        entry = waiting.pop() if newest else waiting.popleft()
        self._count_in(entry, -1)
        if not waiting:
            del self._waiting[tenant], self._bytes[tenant]
        return entry

    def _count_in(self, entry: Entry, change: int) -> None:
        """Count an entry that was added (`change` is 1) or removed (-1)."""
        self._bytes[entry.request.tenant] += change * entry.size
        self._total_bytes += change * entry.size
        self._count += change
        self._gauge(change)
