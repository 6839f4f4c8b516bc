"""Which requests of workers one transaction applies: as many as there is memory for. It does no I/O.

Before a request is applied, its slice says about how much memory each of its items will need. What one transaction
applies, a portion, has a limit. Up to half of it is for a large request, which is divided: each portion applies some of
its items, and the reply follows the last ones. Large requests take turns. The rest is for other requests: first one of
each tenant, the smallest first, then the next ones. Requests that have no room wait for the next portion.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from timer_service.core.requests.request_intake import Asked
from timer_service.core.requests.request_queue import Waiting
from timer_service.core.values.stored_json import RawJson

Lists = Mapping[str, Sequence[RawJson]]
"""The reply to items of a request: lists by their names in the reply. Those of several portions are joined."""


@dataclass(slots=True, eq=False)
class Work:
    """A request, and how far it was applied."""

    waiting: Waiting
    asked: Asked
    sizes: Sequence[int]
    """About how many bytes of memory each item needs."""
    applied: int = 0
    """How many items were applied."""
    lists: dict[str, list[RawJson]] = field(default_factory=dict)
    """The reply to these items."""
    replied: int = 0
    """The bytes of this reply."""

    def record(self, lists: Lists) -> None:
        """Add the reply to the items of a portion."""
        for name, items in lists.items():
            self.lists.setdefault(name, []).extend(items)
            self.replied += sum(len(each.encode()) for each in items)


class Piece(NamedTuple):
    """The items of a request that one transaction applies."""

    work: Work
    asked: Asked
    items: int
    """How many these are."""

    @property
    def is_last(self) -> bool:
        """Whether no items of the request are left after these."""
        return self.work.applied + self.items == len(self.work.sizes)


class Portions:
    """Divides requests in portions. It keeps the large ones that were begun."""

    def __init__(self, most_bytes: int, large_bytes: int) -> None:
        """`most_bytes`: the memory of a portion. `large_bytes`: the bodies of the large requests; one may have more."""
        self._room = most_bytes
        self._large_bytes = large_bytes
        self._large: deque[Work] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether no large request is kept."""
        return not self._large

    def is_large(self, work: Work) -> bool:
        """Return whether a request is divided."""
        return sum(work.sizes) > self._room // 2

    def remove_late(self, is_late: Callable[[Waiting], bool]) -> list[Work]:
        """Forget and return the large requests that are late."""
        late = [each for each in self._large if is_late(each.waiting)]
        self._large = deque(each for each in self._large if each not in late)
        return late

    def choose(self, works: Sequence[Work]) -> tuple[list[Piece], list[Work]]:
        """Return the next portion of new requests and of those that are kept, and the new ones that have no room."""
        small = [each for each in works if not self.is_large(each)]
        too_many = [each for each in works if self.is_large(each) and not self._keep(each)]
        pieces, room = [], self._room
        if self._large:
            piece, size = self._part(self._large.popleft())
            if not piece.is_last:
                self._large.append(piece.work)
            pieces.append(piece)
            room -= min(size, self._room // 2)
        chosen = _choose(small, room)
        pieces += [Piece(each, each.asked, len(each.sizes)) for each in small if each in chosen]
        waiting = {*too_many, *small} - chosen
        return pieces, [each for each in works if each in waiting]

    def forget(self, work: Work) -> None:
        """Forget a request that has failed."""
        if work in self._large:
            self._large.remove(work)

    def _keep(self, work: Work) -> bool:
        """Keep a large request if there is room for it. A tenant may have one."""
        if any(each.asked.tenant == work.asked.tenant for each in self._large):
            return False
        used = sum(len(each.waiting.request.body) for each in (*self._large, work))
        if self._large and used > self._large_bytes:
            return False
        self._large.append(work)
        return True

    def _part(self, work: Work) -> tuple[Piece, int]:
        """Return the next items of a request that fit into half of a portion, at least one, and their size."""
        end = work.applied + 1
        size = work.sizes[work.applied]
        while end < len(work.sizes) and size + work.sizes[end] <= self._room // 2:
            size += work.sizes[end]
            end += 1
        if end - work.applied == len(work.sizes):
            return Piece(work, work.asked, end), size
        return Piece(work, work.asked.part(work.applied, end, work.replied), end - work.applied), size


def _choose(works: Sequence[Work], room: int) -> set[Work]:
    """Return the requests that a portion has room for. The first one always fits."""
    rounds: Counter[str] = Counter()
    order: list[tuple[int, int, int]] = []
    for number, each in enumerate(works):
        tenant = each.asked.tenant
        order.append((rounds[tenant] if number else -1, sum(each.sizes), number))
        rounds[tenant] += 1
    chosen: set[Work] = set()
    waiting: set[str] = set()
    for _, size, number in sorted(order):
        work = works[number]
        if work.asked.tenant in waiting or size > room:
            waiting.add(work.asked.tenant)
            continue
        room -= size
        chosen.add(work)
    return chosen
