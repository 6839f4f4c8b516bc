"""The polls that wait for tasks: when to look at which lane, and when each poll ends. It does no I/O.

A lane is (tenant, queue, type). After a look, this instance knows when the lane has its next row, because every commit
that makes rows available says so. So a poll of a lane that was looked at before needs no look of its own. Lost hints of
other instances are the reason to look again after the poll interval.
"""

import asyncio
import heapq
import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from timer_service.core.intake.route import Lane
from timer_service.core.ports.broker import Request
from timer_service.workflows.protocol import MAX_SLOTS, PollTasks

MOST_POLLS = 10_000
MOST_TYPES = 20_000
"""The types of all polls. Each may be a lane of its own, which is looked at after each poll interval."""

_EARLY_MS = 100
"""How much earlier than its `waitMs` a poll ends at most."""
_LONG_MS = 1000
"""A poll with a shorter `waitMs` does not end earlier."""
_PER_TURN = 200
"""How many polls end before other tasks run."""


@dataclass(slots=True, eq=False)
class Poll:
    """A held poll."""

    request: Request
    wanted: PollTasks
    taken: bool = False
    """Whether a claim for its worker is under way. It is not answered before the claim is over."""

    @property
    def lanes(self) -> list[Lane]:
        """The lanes whose tasks it takes."""
        tenant, queue = self.request.tenant, self.wanted.queue
        return [(tenant, queue, each) for each in dict.fromkeys(self.wanted.types)]

    @property
    def worker(self) -> tuple[str, str, str]:
        """The tenant, the worker and the queue. A worker has one poll for a queue."""
        return self.request.tenant, self.wanted.worker_id, self.wanted.queue


@dataclass(slots=True)
class _LaneState:
    look_at: float
    """When to look at the lane; infinity while a look is under way."""
    number: int
    """The number of this look. Looks that are due at the same instant come in the order of their numbers."""
    is_known: bool = False
    """Whether the lane was looked at."""
    polls: OrderedDict[Poll, None] = field(default_factory=OrderedDict)
    """The poll that gets the next task comes first."""
    fitting: int = MAX_SLOTS
    """How many tasks to claim for one poll. If tasks are large, fewer fit into a reply."""


_FEW = 1000


class _Look(NamedTuple):
    """A look at a lane, as it is ordered: by its instant, then by when it was planned."""

    at: int
    number: int
    lane: Lane


class Leaving(NamedTuple):
    """The polls that leave because another one came."""

    replaced: Poll | None
    """The earlier poll of the same worker, which no longer waits for it."""
    refused: Sequence[Poll]
    """The newest polls of the tenant with the most, because there are too many."""


class HeldPolls:
    """All held polls, by lane."""

    def __init__(self, most: int = MOST_POLLS, most_types: int = MOST_TYPES) -> None:
        self._most = most
        self._most_types = most_types
        self._polls: OrderedDict[tuple[str, str, str], Poll] = OrderedDict()
        self._lanes: dict[Lane, _LaneState] = {}
        self._looks: list[_Look] = []  # a heap; entries that no longer match the state are skipped
        self._numbers = itertools.count()
        self._now = 0
        """When the last looks were taken. A look that is planned for an earlier instant becomes due only now."""
        self._types: Counter[str] = Counter()  # how many the polls of each tenant have
        self._total_types = 0

    def __len__(self) -> int:
        return len(self._polls)

    def current(self, poll: Poll) -> Poll | None:
        """Return the poll that is held for the worker of a poll: this poll, a newer one, or none."""
        return self._polls.get(poll.worker)

    @property
    def all(self) -> list[Poll]:
        """All held polls, the oldest first."""
        return list(self._polls.values())

    def add(self, poll: Poll) -> Leaving:
        """Hold a poll. Return those that leave, which may be this one."""
        replaced = self._polls.get(poll.worker)
        if replaced is not None:
            self.remove(replaced)
        refused = self._make_room(poll)
        if poll not in refused:
            self._polls[poll.worker] = poll
            self._count(poll, 1)
            for lane in poll.lanes:
                if (state := self._lanes.get(lane)) is None:
                    state = self._lanes[lane] = _LaneState(math.inf, 0)
                    self._plan(state, self._now, lane)
                state.polls[poll] = None
        return Leaving(replaced, refused)

    def remove(self, poll: Poll) -> None:
        """Forget a poll. Its lanes are known until their next look, unless there are too many."""
        del self._polls[poll.worker]
        self._count(poll, -1)
        for lane in poll.lanes:
            if (state := self._lanes.get(lane)) is None:
                continue
            state.polls.pop(poll, None)
            if not state.polls and (not state.is_known or len(self._lanes) > self._most_types):
                del self._lanes[lane]

    def polls_of(self, lane: Lane) -> Collection[Poll]:
        """Return the polls of a lane, in the order in which they get tasks."""
        state = self._lanes.get(lane)
        return () if state is None else state.polls.keys()

    def fitting(self, lane: Lane) -> int:
        """Return how many tasks of a lane to claim for one poll."""
        state = self._lanes.get(lane)
        return MAX_SLOTS if state is None else state.fitting

    def record_fitting(self, lane: Lane, kept: int, claimed: int) -> None:
        """Record how many of the tasks that were claimed for a poll did fit into its reply."""
        if (state := self._lanes.get(lane)) is not None:
            state.fitting = 2 * max(kept, 1) if kept < claimed else min(MAX_SLOTS, max(state.fitting, 2 * claimed))

    def wake(self, lane: Lane, at: int) -> bool:
        """Look at a lane at an instant, or earlier. Return whether a poll waits for it."""
        state = self._lanes.get(lane)
        if state is None:
            return False
        at = max(at, self._now)
        if at < state.look_at:
            self._plan(state, at, lane)
        return bool(state.polls)

    def wake_all(self, at: int) -> None:
        """Look at all lanes at an instant, or earlier."""
        for lane in list(self._lanes):
            self.wake(lane, at)

    def take_due(self, now: int, most: int) -> list[Lane]:
        """Return up to `most` lanes to look at now, the longest due first.

        They are not due again before the next `wake`, which the caller does after the look.
        """
        was, self._now = self._now, now
        if now < was:  # the clock was set back
            self.wake_all(now)
        due: list[Lane] = []
        while len(due) < most and (lane := self._first(now)) is not None:
            state = self._lanes[lane]
            heapq.heappop(self._looks)
            state.look_at, state.is_known = math.inf, True
            if state.polls:
                due.append(lane)
            else:
                del self._lanes[lane]
        return due

    def must_look(self, poll: Poll, now: int) -> bool:
        """Return whether a look at one of the lanes of a poll is due or under way."""
        states = (self._lanes.get(lane) for lane in poll.lanes)
        return any(state is not None and not now < state.look_at < math.inf for state in states)

    def look_at(self, poll: Poll) -> int | None:
        """Return when the first lane of a poll is looked at; None if all looks are under way."""
        states = (self._lanes.get(lane) for lane in poll.lanes)
        at = min((state.look_at for state in states if state is not None), default=math.inf)
        return int(at) if at < math.inf else None

    def next_look(self) -> int | None:
        """Return when to look at a lane next; None without one."""
        self._first(0)
        return self._looks[0].at if self._looks else None

    def _first(self, now: int) -> Lane | None:
        """Return the lane whose look is due first, if it is due."""
        while self._looks:
            look = self._looks[0]
            state = self._lanes.get(look.lane)
            if state is not None and (state.look_at, state.number) == (look.at, look.number):
                return look.lane if look.at <= now else None
            heapq.heappop(self._looks)
        return None

    def _plan(self, state: _LaneState, at: int, lane: Lane) -> None:
        state.look_at, state.number = at, next(self._numbers)
        heapq.heappush(self._looks, _Look(at, state.number, lane))
        if len(self._looks) > 2 * len(self._lanes) + _FEW:  # most entries no longer match
            planned = [(name, each) for name, each in self._lanes.items() if each.look_at < math.inf]
            self._looks = [_Look(int(each.look_at), each.number, name) for name, each in planned]
            heapq.heapify(self._looks)

    def _make_room(self, poll: Poll) -> list[Poll]:
        """Remove polls until this one has room. Return those, or this one if its tenant has the most types."""
        tenant, types = poll.request.tenant, len(poll.wanted.types)
        refused: list[Poll] = []
        while len(self._polls) >= self._most or self._total_types + types > self._most_types:
            largest = max(self._types, key=self._types.__getitem__)
            of_largest = (each for each in reversed(self._polls.values()) if each.request.tenant == largest)
            newest = next((each for each in of_largest if not each.taken), None)
            if newest is None or self._types[tenant] + types >= self._types[largest]:
                return [*refused, poll]
            self.remove(newest)
            refused.append(newest)
        return refused

    def _count(self, poll: Poll, sign: int) -> None:
        tenant, types = poll.request.tenant, len(poll.wanted.types)
        self._types[tenant] += sign * types
        self._total_types += sign * types
        if not self._types[tenant]:
            del self._types[tenant]


def end_of(now_ms: int, wait_ms: int) -> int:
    """Return when a poll ends that may wait so long from now."""
    end = now_ms + wait_ms
    return end if wait_ms < _LONG_MS else end - end % _EARLY_MS


class PollEnds:
    """The ends of the held polls, by the monotonic clock of the event loop.

    Those of about the same instant end together, with one timer and one write of replies: to wake the process costs
    several times as much as to answer a poll. The workers poll again together, so the service also receives their next
    polls together.
    """

    def __init__(self, on_end: Callable[[Sequence[Poll]], None]) -> None:
        """`on_end` is called with polls whose time is up. They are forgotten before."""
        self._on_end = on_end
        self._ends: dict[Poll, int] = {}
        self._polls: dict[int, dict[Poll, None]] = {}
        self._timers: dict[int, asyncio.Handle] = {}

    def add(self, poll: Poll, wait_ms: int) -> None:
        """Let a poll end, at the latest after `wait_ms`."""
        loop = asyncio.get_running_loop()
        end = self._ends[poll] = end_of(math.ceil(loop.time() * 1000), wait_ms)
        if end not in self._polls:
            self._polls[end] = {}
            self._timers[end] = loop.call_at(end / 1000, self._end, end)
        self._polls[end][poll] = None

    def remove(self, poll: Poll) -> None:
        """Forget a poll, if it is known."""
        if (end := self._ends.pop(poll, None)) is None:
            return
        del self._polls[end][poll]
        if not self._polls[end]:
            del self._polls[end]
            self._timers.pop(end).cancel()

    def _end(self, end: int) -> None:
        """End some polls, and the others in the next turn of the loop."""
        polls = list(islice(self._polls[end], _PER_TURN))
        self._timers[end] = asyncio.get_running_loop().call_soon(self._end, end)
        for poll in polls:
            self.remove(poll)
        self._on_end(polls)
