"""The messages that wait: bounded by count and bytes, and tenants take turns. No I/O."""

import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

_T = TypeVar("_T")


class QueueLimits(NamedTuple):
    """The limits of a queue, for all tenants together."""

    waiting_bytes: int
    """How much memory the entries need."""
    waiting: int
    """How many entries there are."""
    seconds: float = 5
    """How long an entry waits. After that its client no longer listens: this is the usual timeout."""


class Entry(NamedTuple, Generic[_T]):
    """An item that waits."""

    tenant: str
    """Items of one tenant keep their order. Tenants take turns."""
    item: _T
    size: int
    """How much memory it needs while it waits, in bytes."""
    since: float
    """When it was received, in seconds."""


class Taken(NamedTuple, Generic[_T]):
    """What leaves the queue with its turn."""

    entries: Sequence[Entry[_T]]
    late: Sequence[Entry[_T]]
    """The entries that have waited for too long."""


class FairQueue(Generic[_T]):
    """Entries of tenants. `monotonic` returns seconds."""

    def __init__(self, limits: QueueLimits, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._waiting: OrderedDict[str, deque[Entry[_T]]] = OrderedDict()  # the tenant of the next turn comes first
        self._bytes: Counter[str] = Counter()
        self._total_bytes = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def is_full(self, tenant: str, size: int) -> bool:
        """Return whether an item of a tenant would leave at once: it has no room, and no tenant has more bytes."""
        is_full = self._count >= self._limits.waiting or self._total_bytes + size > self._limits.waiting_bytes
        return is_full and self._bytes.get(tenant, 0) == max(self._bytes.values(), default=0)

    def add(self, tenant: str, item: _T, *, size: int) -> list[Entry[_T]]:
        """Add an item. Return the entries that leave because the queue is full, perhaps also this one.

        The newest entries of the tenant with the most bytes leave, so that the other tenants go on.
        """
        entry = Entry(tenant, item, size, self._monotonic())
        self._waiting.setdefault(tenant, deque()).append(entry)
        self._count_in(entry, 1)
        left: list[Entry[_T]] = []
        while self._total_bytes > self._limits.waiting_bytes or self._count > self._limits.waiting:
            left.append(self._remove(max(self._bytes, key=self._bytes.__getitem__), newest=True))
        return left

    def take(self, most: int, most_bytes: float = math.inf, skip: Collection[str] = ()) -> Taken[_T]:
        """Remove and return the next entries, one of each tenant, then the next one of each, and so on.

        There are at most `most`. They have at most `most_bytes` together; the first one may have more. Tenants in
        `skip` have no turn now, and keep their places.
        """
        now = self._monotonic()
        entries: list[Entry[_T]] = []
        late: list[Entry[_T]] = []
        used = 0
        while len(entries) < most:
            tenant = next((each for each in self._waiting if each not in skip), None)
            if tenant is None:
                break
            first = self._waiting[tenant][0]
            if now - first.since > self._limits.seconds:
                late.append(self._remove(tenant))
                continue
            used += first.size
            if entries and used > most_bytes:
                break
            entries.append(self._remove(tenant))
            if tenant in self._waiting:
                self._waiting.move_to_end(tenant)
        return Taken(entries, late)

    def put_back(self, entries: Iterable[Entry[_T]]) -> None:
        """Return entries, in the order in which they were taken, to the front. Their tenants have the next turns."""
        for each in reversed(list(entries)):
            self._waiting.setdefault(each.tenant, deque()).appendleft(each)
            self._waiting.move_to_end(each.tenant, last=False)
            self._count_in(each, 1)

    def _remove(self, tenant: str, *, newest: bool = False) -> Entry[_T]:
        waiting = self._waiting[tenant]
        entry = waiting.pop() if newest else waiting.popleft()
        self._count_in(entry, -1)
        if not waiting:
            del self._waiting[tenant], self._bytes[tenant]
        return entry

    def _count_in(self, entry: Entry[_T], change: int) -> None:
        self._bytes[entry.tenant] += change * entry.size
        self._total_bytes += change * entry.size
        self._count += change
