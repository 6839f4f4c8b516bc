"""The queue in which tenants take turns: nothing is lost, its bounds hold, and its turns are fair."""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from timer_service.core.ports.broker import Replies, Request
from timer_service.core.requests.fair_queue import Entry, FairQueue, QueueLimits, Taken
from timer_service.core.values.errors import Code

EMPTY = Entry(Request("ask", "a", b"", ""), 0).size
LIMITS = QueueLimits(waiting_bytes=10 * EMPTY, waiting=10)
TENANTS = st.sampled_from("abcd")


class Queue:
    """A closed queue at a time that the test sets. The tenant of a request is the first letter of its address."""

    def __init__(self, limits: QueueLimits = LIMITS) -> None:
        self.now = 0.0
        self.answered: Counter[str] = Counter()
        self.gauge = 0
        self.queue = FairQueue(limits, answered=self._answer, waiting=self._wait, monotonic=lambda: self.now)
        self.queue.close()  # so that `next` does not wait

    def _answer(self, name: str, outcome: str) -> None:
        assert name == "ask"
        self.answered[outcome] += 1

    def _wait(self, change: int) -> None:
        self.gauge += change

    def add(self, *names: str) -> None:
        """Add requests. There is room for all."""
        assert not any(self.queue.receive(ask(name)) for name in names)

    def next(self, most: int = 100, room: float = math.inf, skip: str = "") -> Taken:
        return asyncio.run(self.queue.next(most, room, lambda tenant: tenant not in skip))


def ask(name: str, size: int = 0) -> Request:
    return Request("ask", name[0], b"x" * size, name)


def names(entries: Sequence[Entry]) -> list[str]:
    return [each.request.reply_to for each in entries]


def refused(replies: Replies) -> list[str]:
    """Return who got BUSY. Nothing refers to its body any more."""
    assert {(request.body, reply.code) for request, reply in replies} <= {(b"", Code.BUSY)}
    return [request.reply_to for request, _ in replies]


class Anything(RuleBasedStateMachine):
    """Adds, takes and puts back entries, and lets time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.site = Queue()
        self.inside: dict[str, list[Entry]] = {tenant: [] for tenant in "abcd"}
        """What waits, by its tenant and in its order."""
        self.received = self.busy = 0

    def used(self, tenant: str) -> int:
        return sum(each.size for each in self.inside[tenant])

    @rule(tenant=TENANTS, size=st.integers(0, 4 * EMPTY))
    def receive(self, tenant: str, size: int) -> None:
        """The entries that leave a full queue are the newest ones of the tenant with the most bytes."""
        request = ask(f"{tenant}{self.received}", size)
        self.received += 1
        self.inside[tenant].append(Entry(request, self.site.now))
        for left in refused(self.site.queue.receive(request)):
            assert self.used(left[0]) == max(map(self.used, self.inside))
            assert names([self.inside[left[0]].pop()]) == [left]
            self.busy += 1
        assert sum(map(len, self.inside.values())) <= LIMITS.waiting
        assert sum(map(self.used, self.inside)) <= LIMITS.waiting_bytes

    @rule(
        most=st.integers(1, 5),
        room=st.integers(0, 6 * EMPTY),
        skip=st.sampled_from(["", "a", "bc"]),
        puts_back=st.integers(0, 3),
    )
    def take(self, most: int, room: int, skip: str, puts_back: int) -> None:
        """Entries leave in their order, late ones without a turn. What is put back waits at its old place."""
        taken = self.site.next(most, room, skip)
        entries, late = taken.entries, refused(taken.late)
        assert len(entries) <= most
        assert len(entries) <= 1 or sum(each.size for each in entries) <= room
        for name in sorted([*names(entries), *late], key=lambda each: int(each[1:])):
            first = self.inside[name[0]].pop(0)
            assert names([first]) == [name]
            assert (name in late) is (self.site.now - first.since > LIMITS.seconds)
            assert name[0] not in skip
        assert entries or not any(self.inside[tenant] for tenant in self.inside if tenant not in skip)
        self.busy += len(late)
        back = entries[::-1][:puts_back][::-1]
        self.site.queue.put_back(back)
        for each in reversed(back):
            self.inside[each.request.tenant].insert(0, each)

    @rule(seconds=st.sampled_from([0.5, 3, 6]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.site.now += seconds

    @invariant()
    def nothing_is_lost(self) -> None:
        """The gauge has what was added and has not left. Each refusal is counted."""
        assert self.site.gauge == sum(map(len, self.inside.values()))
        assert self.site.answered["BUSY"] == self.busy


test_anything = Anything.TestCase


def test_tenants_take_turns() -> None:
    """Each tenant has one turn, then the next one. A new tenant waits for one turn of each other tenant.

    What is put back keeps its order, and is next.
    """
    site = Queue()
    site.add("a1", "a2", "a3", "b1", "c1", "c2")
    first = site.next(2).entries
    assert names(first) == ["a1", "b1"]
    site.queue.put_back(first)
    assert names(site.next(2).entries) == ["a1", "b1"]
    site.add("d1")
    assert [names(site.next(most).entries) for most in (2, 9)] == [["c1", "a2"], ["d1", "c2", "a3"]]
