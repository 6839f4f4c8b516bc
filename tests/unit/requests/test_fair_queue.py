"""The queue in which tenants take turns: nothing is lost, its bounds hold, and its turns are fair."""

from collections.abc import Sequence
from copy import deepcopy

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from timer_service.core.requests.fair_queue import MOST_REFUSALS, Entry, FairQueue, QueueLimits, Refusals

LIMITS = QueueLimits(waiting_bytes=1000, waiting=10)
LINES = st.sampled_from("abcd")


class Queue:
    """A queue at a time that the test sets. The line of an item is its first letter."""

    def __init__(self, limits: QueueLimits = LIMITS) -> None:
        self.now = 0.0
        self.queue = FairQueue[str](limits, lambda: self.now)

    def add(self, *items: str, size: int = 1, weight: int = 1) -> list[str]:
        """Add items. Return those that left."""
        return [left.item for item in items for left in self.queue.add(item[0], item, size=size, weight=weight)]

    def take(self, most: int = 100, room: int = 100, skip: str = "") -> list[str]:
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
        """What waits, by its line and in its order."""
        self.count = 0

    @rule(line=LINES, size=st.integers(0, 400), weight=st.integers(0, 20))
    def add(self, line: str, size: int, weight: int) -> None:
        """The entries that leave a full queue are the newest ones of the line with the most bytes."""
        entry = Entry(line, f"{line}{self.count}", size, weight, self.site.now)
        self.count += 1
        self.inside.setdefault(line, []).append(entry)
        for left in self.queue.add(line, entry.item, size=size, weight=weight):
            used = {line: sum(each.size for each in entries) for line, entries in self.inside.items()}
            assert used[left.line] == max(used.values())
            assert self.inside[left.line].pop() == left
        assert len(self.queue) <= LIMITS.waiting
        assert sum(each.size for line in self.inside.values() for each in line) <= LIMITS.waiting_bytes

    @rule(
        most=st.integers(1, 5),
        room=st.integers(0, 30),
        skip=st.sets(LINES, max_size=2),
        puts_back=st.integers(0, 3),
        weight=st.integers(0, 40),
    )
    def take(self, most: int, room: int, skip: set[str], puts_back: int, weight: int) -> None:
        """Entries leave in their order. Those without a turn are before all others. What is put back is the next."""
        before = self.next_lines()
        taken = self.queue.take(most, room, skip)
        assert len(taken.entries) <= most
        assert len(taken.entries) <= 1 or sum(each.weight for each in taken.entries) <= room
        for each in sorted([*taken.entries, *taken.late], key=lambda each: int(each.item[1:])):
            assert self.inside[each.line].pop(0) == each
            assert (each in taken.late) is self.is_late(each)
        served = {each.line for each in taken.entries}
        assert not served & skip
        after = self.next_lines()
        unserved = [line for line in before if line in after and line not in served]
        assert after[: len(unserved)] == unserved
        if len(taken.entries) < most:
            assert not [each for entries in self.inside.values() for each in entries[:1] if self.is_late(each)]
        back = [each._replace(weight=weight) for each in taken.entries[::-1][:puts_back][::-1]]
        self.queue.put_back(back)
        for each in reversed(back):
            self.inside.setdefault(each.line, []).insert(0, each)
        assert self.next_lines()[: len({each.line for each in back})] == list(dict.fromkeys(each.line for each in back))

    @rule(seconds=st.sampled_from([0.5, 3, 6]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.site.now += seconds

    @invariant()
    def nothing_is_lost(self) -> None:
        """The queue has exactly what was added and has not left."""
        assert len(self.queue) == sum(map(len, self.inside.values()))
        assert set(self.next_lines()) == {line for line, entries in self.inside.items() if entries}

    def is_late(self, entry: Entry[str]) -> bool:
        return self.site.now - entry.since > LIMITS.seconds

    def next_lines(self) -> list[str]:
        """Return the lines that have entries, that of the next turn first."""
        drained, lines = deepcopy(self.queue), list[str]()
        while len(drained):
            taken = drained.take(1)
            lines += [each.line for each in (*taken.late, *taken.entries)]
        return list(dict.fromkeys(lines))


test_anything = Anything.TestCase


def test_lines_take_turns(queue: Queue) -> None:
    """Each line has one turn, then the next one. A new line waits for one turn of each other line."""
    queue.add("a1", "a2", "a3", "b1", "c1", "c2")
    assert queue.take(2) == ["a1", "b1"]
    queue.add("d1")
    assert [queue.take(2), queue.take()] == [["c1", "a2"], ["d1", "c2", "a3"]]


def test_room(queue: Queue) -> None:
    """An entry that does not fit is the first one of the next batch. It does not end this one for the other lines."""
    queue.add("b1", "b2")
    queue.add("a1", "a2", weight=10)
    queue.add("c1", "b3", "c2")
    assert [queue.take(room=10) for _ in range(4)] == [["b1", "c1", "b2", "c2", "b3"], ["a1"], ["a2"], []]


def test_skipped_lines(queue: Queue) -> None:
    """A line that has no turn now keeps its place."""
    queue.add("a1", "b1", "a2")
    assert [queue.take(skip="a"), queue.take()] == [["b1"], ["a1", "a2"]]


def test_what_is_put_back(queue: Queue) -> None:
    """Entries that are put back keep their order and age, and are next."""
    queue.add("a1", "b1", "a2", "c1")
    entries = queue.queue.take(100, 100).entries
    assert items(entries) == ["a1", "b1", "c1", "a2"]
    queue.now = 4
    queue.add("d1", "a3")
    queue.queue.put_back(entries[1:])
    assert queue.take(4) == ["b1", "c1", "a2", "d1"]
    queue.queue.put_back(entries[:1])
    queue.now = 6
    taken = queue.queue.take(100, 100)
    assert (items(taken.late), items(taken.entries)) == (["a1"], ["a3"])


@pytest.mark.parametrize(
    ("size", "left"), [(1, ["a10", "a11", "a9"]), (190, ["a5", "a6", "a7", "a8", "a9", "a10", "a11", "a4"])]
)
def test_newest_of_the_largest_line_leaves(queue: Queue, size: int, left: list[str]) -> None:
    """If the queue is full, the newest entry of the line with the most bytes leaves. Those of others stay."""
    assert queue.add(*(f"a{number}" for number in range(12)), "b1", size=size) == left
    assert "b1" in queue.take(room=10_000)


def refuse(refusals: Refusals, count: int) -> None:
    for _ in range(count):
        refusals.record("a")


def test_refusals_of_a_second() -> None:
    """After 100 refusals in any second, its next messages are refused, until the second ends. Others go on."""
    queue = Queue()
    refusals = Refusals(lambda: queue.now)
    for second in range(3):
        queue.now = second
        refuse(refusals, MOST_REFUSALS - 1)
        assert not refusals.too_many("a")
    refusals.record("a")
    assert (refusals.too_many("a"), refusals.too_many("b")) == (True, False)
    queue.now = 2.99
    assert refusals.too_many("a")
    queue.now = 3
    assert not refusals.too_many("a")
