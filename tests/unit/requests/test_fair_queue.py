"""The queue in which tenants take turns: nothing is lost, its bounds hold, and its turns are fair."""

import math
from collections.abc import Sequence
from copy import deepcopy

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from timer_service.core.requests.fair_queue import Entry, FairQueue, QueueLimits

LIMITS = QueueLimits(waiting_bytes=1000, waiting=10)
TENANTS = st.sampled_from("abcd")


class Queue:
    """A queue at a time that the test sets. The tenant of an item is its first letter."""

    def __init__(self, limits: QueueLimits = LIMITS) -> None:
        self.now = 0.0
        self.queue = FairQueue[str](limits, lambda: self.now)

    def add(self, *items: str, size: int = 1) -> list[str]:
        """Add items. Return those that left."""
        return [left.item for item in items for left in self.queue.add(item[0], item, size=size)]

    def take(self, most: int = 100, room: float = math.inf, skip: str = "") -> list[str]:
        return items(self.queue.take(most, room, skip).entries)


def items(entries: Sequence[Entry[str]]) -> list[str]:
    return [each.item for each in entries]


@pytest.fixture
def queue() -> Queue:
    return Queue()


class Anything(RuleBasedStateMachine):
    """Adds, takes and puts back entries, and lets time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.site = Queue()
        self.queue = self.site.queue
        self.inside: dict[str, list[Entry[str]]] = {}
        """What waits, by its tenant and in its order."""
        self.count = 0

    @rule(tenant=TENANTS, size=st.integers(0, 400))
    def add(self, tenant: str, size: int) -> None:
        """The entries that leave a full queue are the newest ones of the tenant with the most bytes."""
        entry = Entry(tenant, f"{tenant}{self.count}", size, self.site.now)
        self.count += 1
        self.inside.setdefault(tenant, []).append(entry)
        for left in self.queue.add(tenant, entry.item, size=size):
            used = {tenant: sum(each.size for each in entries) for tenant, entries in self.inside.items()}
            assert used[left.tenant] == max(used.values())
            assert self.inside[left.tenant].pop() == left
        assert len(self.queue) <= LIMITS.waiting
        assert sum(each.size for entries in self.inside.values() for each in entries) <= LIMITS.waiting_bytes

    @rule(
        most=st.integers(1, 5), room=st.integers(0, 600), skip=st.sets(TENANTS, max_size=2), puts_back=st.integers(0, 3)
    )
    def take(self, most: int, room: int, skip: set[str], puts_back: int) -> None:
        """Entries leave in their order. Those without a turn are before all others. What is put back is the next."""
        before = self.next_tenants()
        taken = self.queue.take(most, room, skip)
        assert len(taken.entries) <= most
        assert len(taken.entries) <= 1 or sum(each.size for each in taken.entries) <= room
        for each in sorted([*taken.entries, *taken.late], key=lambda each: int(each.item[1:])):
            assert self.inside[each.tenant].pop(0) == each
            assert (each in taken.late) is self.is_late(each)
        served = {each.tenant for each in taken.entries}
        assert not served & skip
        after = self.next_tenants()
        unserved = [tenant for tenant in before if tenant in after and tenant not in served]
        assert after[: len(unserved)] == unserved
        back = taken.entries[::-1][:puts_back][::-1]
        self.queue.put_back(back)
        for each in reversed(back):
            self.inside.setdefault(each.tenant, []).insert(0, each)
        first = list(dict.fromkeys(each.tenant for each in back))
        assert self.next_tenants()[: len(first)] == first

    @rule(seconds=st.sampled_from([0.5, 3, 6]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.site.now += seconds

    @invariant()
    def nothing_is_lost(self) -> None:
        """The queue has exactly what was added and has not left."""
        assert len(self.queue) == sum(map(len, self.inside.values()))
        assert set(self.next_tenants()) == {tenant for tenant, entries in self.inside.items() if entries}

    def is_late(self, entry: Entry[str]) -> bool:
        return self.site.now - entry.since > LIMITS.seconds

    def next_tenants(self) -> list[str]:
        """Return the tenants that have entries, that of the next turn first."""
        drained, tenants = deepcopy(self.queue), list[str]()
        while len(drained):
            taken = drained.take(1)
            tenants += [each.tenant for each in (*taken.late, *taken.entries)]
        return list(dict.fromkeys(tenants))


test_anything = Anything.TestCase


def test_tenants_take_turns(queue: Queue) -> None:
    """Each tenant has one turn, then the next one. A new tenant waits for one turn of each other tenant."""
    queue.add("a1", "a2", "a3", "b1", "c1", "c2")
    assert queue.take(2) == ["a1", "b1"]
    queue.add("d1")
    assert [queue.take(2), queue.take()] == [["c1", "a2"], ["d1", "c2", "a3"]]


def test_room(queue: Queue) -> None:
    """An entry that does not fit is the first one of the next batch. A single one may have more."""
    queue.add("b1", "b2")
    queue.add("a1", "a2", size=20)
    queue.add("c1")
    assert [queue.take(room=10) for _ in range(5)] == [["b1"], ["a1"], ["c1", "b2"], ["a2"], []]


def test_skipped_tenants(queue: Queue) -> None:
    """A tenant that has no turn now keeps its place."""
    queue.add("a1", "b1", "a2")
    assert [queue.take(skip="a"), queue.take()] == [["b1"], ["a1", "a2"]]


def test_what_is_put_back(queue: Queue) -> None:
    """Entries that are put back keep their order and age, and are next."""
    queue.add("a1", "b1", "a2", "c1")
    entries = queue.queue.take(100).entries
    assert items(entries) == ["a1", "b1", "c1", "a2"]
    queue.now = 4
    queue.add("d1", "a3")
    queue.queue.put_back(entries[1:])
    assert queue.take(4) == ["b1", "c1", "a2", "d1"]
    queue.queue.put_back(entries[:1])
    queue.now = 6
    taken = queue.queue.take(100)
    assert (items(taken.late), items(taken.entries)) == (["a1"], ["a3"])


@pytest.mark.parametrize(
    ("size", "left"), [(1, ["a10", "a11", "a9"]), (190, ["a5", "a6", "a7", "a8", "a9", "a10", "a11", "a4"])]
)
def test_newest_of_the_largest_tenant_leaves(queue: Queue, size: int, left: list[str]) -> None:
    """If the queue is full, the newest entry of the tenant with the most bytes leaves. Those of others stay."""
    assert queue.add(*(f"a{number}" for number in range(12)), "b1", size=size) == left
    assert "b1" in queue.take(room=10_000)
