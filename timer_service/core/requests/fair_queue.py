"""The messages that wait: bounded by count and bytes, and tenants take turns. No I/O."""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

_T = TypeVar("_T")

MOST_REFUSALS = 100
_REFUSALS_SECONDS = 1


class QueueLimits(NamedTuple):
    """The limits of a queue, for all lines together."""

    waiting_bytes: int
    """How much memory the entries need."""
    waiting: int
    """How many entries there are."""
    seconds: float = 5
    """How long an entry waits. After that its client no longer listens: this is the usual timeout."""


class Entry(NamedTuple, Generic[_T]):
    """An item that waits."""

    line: str
    """Items with the same line keep their order. Lines take turns. A line is that of a tenant."""
    item: _T
    size: int
    """How much memory it needs while it waits, in bytes."""
    weight: int
    """How much of the room of one `FairQueue.take` it needs, in any unit."""
    since: float
    """When it was received, in seconds."""


class Taken(NamedTuple, Generic[_T]):
    """What leaves the queue with its turn."""

    entries: Sequence[Entry[_T]]
    late: Sequence[Entry[_T]]
    """The entries that have waited for too long."""


class FairQueue(Generic[_T]):
    """Entries in lines. `monotonic` returns seconds."""

    def __init__(self, limits: QueueLimits, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._lines: OrderedDict[str, deque[Entry[_T]]] = OrderedDict()  # the line of the next turn comes first
        self._bytes: Counter[str] = Counter()
        self._total_bytes = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, line: str, item: _T, *, size: int, weight: int = 0) -> list[Entry[_T]]:
        """Add an item. Return the entries that leave because the queue is full, perhaps also this one.

        The newest entries of the line with the most bytes leave, so that the other lines go on.
        """
        entry = Entry(line, item, size, weight, self._monotonic())
        self._lines.setdefault(line, deque()).append(entry)
        self._count_in(entry, 1)
        left: list[Entry[_T]] = []
        while self._total_bytes > self._limits.waiting_bytes or self._count > self._limits.waiting:
            left.append(self._remove(max(self._bytes, key=self._bytes.__getitem__), newest=True))
        return left

    def take(self, most: int, room: int = 0, skip: Collection[str] = ()) -> Taken[_T]:
        """Remove and return the next entries, one of each line, then the next one of each, and so on.

        There are at most `most`, and together they weigh at most `room`; the first one may weigh more. A line whose
        next entry does not fit has the first turn of the next `take`, unless it had one in this. Lines in `skip` have
        no turn now, and keep their places.
        """
        now = self._monotonic()
        entries: list[Entry[_T]] = []
        late: list[Entry[_T]] = []
        used = 0
        had_turn: set[str] = set()
        first: list[tuple[str, deque[Entry[_T]]]] = []
        last: list[tuple[str, deque[Entry[_T]]]] = []
        while self._lines and len(entries) < most:
            line, waiting = next(iter(self._lines.items()))
            is_late = now - waiting[0].since > self._limits.seconds
            if not is_late and (line in skip or (entries and used + waiting[0].weight > room)):
                (last if line in had_turn else first).append((line, self._lines.pop(line)))
                continue
            entry = self._remove(line)
            if is_late:
                late.append(entry)
                continue
            entries.append(entry)
            used += entry.weight
            had_turn.add(line)
            if line in self._lines:
                self._lines.move_to_end(line)
        self._lines.update(last)
        for line, waiting in reversed(first):
            self._lines[line] = waiting
            self._lines.move_to_end(line, last=False)
        return Taken(entries, late)

    def put_back(self, entries: Iterable[Entry[_T]]) -> None:
        """Return entries, in the order in which they were taken, to the front of their lines.

        These lines have the next turns. An entry may have another size or weight now. If there are too many entries
        then, the next `add` removes some.
        """
        for each in reversed(list(entries)):
            self._lines.setdefault(each.line, deque()).appendleft(each)
            self._lines.move_to_end(each.line, last=False)
            self._count_in(each, 1)

    def _remove(self, line: str, *, newest: bool = False) -> Entry[_T]:
        waiting = self._lines[line]
        entry = waiting.pop() if newest else waiting.popleft()
        self._count_in(entry, -1)
        if not waiting:
            del self._lines[line], self._bytes[line]
        return entry

    def _count_in(self, entry: Entry[_T], change: int) -> None:
        self._bytes[entry.line] += change * entry.size
        self._total_bytes += change * entry.size
        self._count += change


class Refusals:
    """The messages of each tenant that were refused in the current second.

    After too many, the next ones of this tenant are refused unread until the second ends. To read a message and refuse
    it takes several times as long, so a flood of them would leave no time for other tenants.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._counts: Counter[str] = Counter()
        self._until = monotonic() + _REFUSALS_SECONDS

    def record(self, tenant: str) -> None:
        """Record that a message of a tenant was refused."""
        self._start_second()
        self._counts[tenant] += 1

    def too_many(self, tenant: str) -> bool:
        """Return whether too many messages of a tenant were refused in this second."""
        self._start_second()
        return self._counts.get(tenant, 0) >= MOST_REFUSALS

    def _start_second(self) -> None:
        if (now := self._monotonic()) >= self._until:
            self._counts.clear()
            self._until = now + _REFUSALS_SECONDS
