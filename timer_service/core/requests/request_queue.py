"""The queue of the requests of workers: bounded, and tenants take turns. It does no I/O."""

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

from timer_service.core.ports.broker import Request

_REQUEST_BYTES = 1024
"""The memory of a waiting request besides its body."""
_MOST_SKIPPED = 100
"""After so many tenants whose next request does not fit, a batch ends."""


class QueueLimits(NamedTuple):
    """The limits of the queue."""

    waiting_bytes: int
    """The memory of the waiting requests of all tenants."""
    batch_bytes: int
    """The bodies of a batch. A single request may have more."""
    waiting: int = 20_000
    """How many requests of all tenants wait."""
    batch: int = 1000
    """How many requests a batch has."""
    seconds: float = 5
    """How long a request waits. After that its worker no longer listens."""


class Batch(NamedTuple):
    """The requests to handle next, and those that waited for too long."""

    requests: list["Waiting"]
    expired: list[Request]


class Waiting(NamedTuple):
    """A request, and when it was received."""

    request: Request
    since: float

    @property
    def size(self) -> int:
        """The memory that it needs."""
        return len(self.request.body) + _REQUEST_BYTES


class RequestQueue:
    """The waiting requests of each tenant."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._waiting: OrderedDict[str, deque[Waiting]] = OrderedDict()  # the tenant of the next turn comes first
        self._bytes: Counter[str] = Counter()
        self._total_bytes = 0
        self._count = 0
        self._taken: Counter[str] = Counter()
        """How many requests of each tenant the last batch had."""
        self._fitting: dict[str, int] = {}
        """How many requests of a tenant a batch has, if not all were applied lately."""

    def __len__(self) -> int:
        return self._count

    def add(self, request: Request, now: float) -> list[Request]:
        """Add a request. Return the requests that leave the queue because it is full.

        The newest requests of the tenant with the most waiting bytes leave, so that the other tenants go on.
        """
        added = Waiting(request, now)
        self._waiting.setdefault(request.tenant, deque()).append(added)
        self._count_in(request.tenant, added.size, 1)
        left: list[Request] = []
        while self._total_bytes > self._limits.waiting_bytes or self._count > self._limits.waiting:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            left.append(self._remove(largest, newest=True).request)
        return left

    def take(self, now: float) -> Batch:
        """Remove and return the next batch. Each tenant gets one request after the other.

        A tenant whose requests were put back has fewer: reading them again takes time. A tenant whose next request does
        not fit has the first turn of the next batch, and the others go on.
        """
        self._grow()
        batch = Batch([], [])
        used = 0
        first: dict[str, deque[Waiting]] = {}
        done: dict[str, deque[Waiting]] = {}
        skipped: set[str] = set()
        while self._waiting and len(batch.requests) < self._limits.batch:
            tenant, waiting = next(iter(self._waiting.items()))
            if self._taken[tenant] >= self._fitting.get(tenant, self._limits.batch):
                done[tenant] = self._waiting.pop(tenant)
                continue
            size = len(waiting[0].request.body)
            if batch.requests and used + size > self._limits.batch_bytes:
                if len(skipped) >= _MOST_SKIPPED:
                    break
                (done if self._taken[tenant] else first)[tenant] = self._waiting.pop(tenant)
                skipped.add(tenant)
                continue
            taken = self._remove(tenant, newest=False)
            if tenant in self._waiting:
                self._waiting.move_to_end(tenant)
            if self.is_late(taken, now):
                batch.expired.append(taken.request)
            else:
                batch.requests.append(taken)
                self._taken[tenant] += 1
                used += size
        self._waiting.update(done)
        for tenant, waiting in reversed(first.items()):
            self._waiting[tenant] = waiting
            self._waiting.move_to_end(tenant, last=False)
        return batch

    def put_back(self, left: Sequence[Waiting], later: Sequence[Waiting] = ()) -> None:
        """Return requests of the last batch, in its order.

        Those in `left` keep their places, and their tenants have the next turns. Those in `later` cannot be applied
        yet. They go behind the other requests of their tenants, which have the last turns: with the next turn, such a
        request could fill a batch alone, and would keep out all others.
        """
        for tenant, count in Counter(each.request.tenant for each in (*left, *later)).items():
            self._fitting[tenant] = max(self._taken.pop(tenant) - count, 1)
        for each in reversed(left):
            self._waiting.setdefault(each.request.tenant, deque()).appendleft(each)
            self._waiting.move_to_end(each.request.tenant, last=False)
        for each in later:
            self._waiting.setdefault(each.request.tenant, deque()).append(each)
            self._waiting.move_to_end(each.request.tenant)
        for each in (*left, *later):
            self._count_in(each.request.tenant, each.size, 1)

    def _grow(self) -> None:
        """Let the next batch have more requests of the tenants whose last ones were all applied."""
        grown = {
            tenant: count * 2 if tenant in self._taken else count
            for tenant, count in self._fitting.items()
            if tenant in self._waiting
        }
        self._fitting = {tenant: count for tenant, count in grown.items() if count < self._limits.batch}
        self._taken.clear()

    def is_late(self, waiting: Waiting, now: float) -> bool:
        """Return whether a request has waited for so long that its worker no longer listens."""
        return now - waiting.since > self._limits.seconds

    def _remove(self, tenant: str, *, newest: bool) -> Waiting:
        waiting = self._waiting[tenant]
        removed = waiting.pop() if newest else waiting.popleft()
        self._count_in(tenant, -removed.size, -1)
        if not waiting:
            del self._waiting[tenant], self._bytes[tenant]
        return removed

    def _count_in(self, tenant: str, size: int, count: int) -> None:
        self._bytes[tenant] += size
        self._total_bytes += size
        self._count += count
