"""The polls that wait for tasks: when to look at which lane, and when each poll ends. It does no I/O.

After a look, this instance knows when the lane has its next row, because every commit that makes rows available says
so. So a poll of a lane that was looked at before needs no look of its own. Lost hints of other instances are the reason
to look again after the poll interval.
"""

import heapq
import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from timer_service.core.intake.route import Lane
from timer_service.core.ports.broker import Request
from timer_service.workflows.protocol import MAX_SLOTS, PollTasks

MOST_POLLS = 10_000
MOST_TYPES = 20_000
"""The types of all polls. Each may be a lane of its own, which is looked at after each poll interval."""

_LONG_MS = 1000
_TOGETHER_MS = 100


@dataclass(slots=True, eq=False)
class Poll:
    """A held poll."""

    request: Request
    wanted: PollTasks
    ends_at: int
    """When its time is up, in ms of monotonic time."""

    @property
    def lanes(self) -> list[Lane]:
        """The lanes whose tasks it takes."""
        tenant, queue = self.request.tenant, self.wanted.queue
        return [(tenant, queue, each) for each in dict.fromkeys(self.wanted.types)]

    @property
    def worker(self) -> tuple[str, str, str]:
        """The tenant, the worker and the queue. A worker has one poll for a queue."""
        return self.request.tenant, self.wanted.worker_id, self.wanted.queue


def end_of(now_ms: int, wait_ms: int) -> int:
    """Return when a poll ends that may wait so long from now. Long ones of about the same instant end together."""
    end = now_ms + wait_ms
    return end if wait_ms < _LONG_MS else end - end % _TOGETHER_MS


@dataclass(slots=True)
class _LaneState:
    look_at: float
    """When to look at the lane; infinity while a look is under way."""
    number: int
    """The number of this look. Looks that are due at the same instant come in the order of their numbers."""
    is_known: bool = False
    """Whether the lane was looked at."""
    polls: OrderedDict[Poll, None] = field(default_factory=OrderedDict)
    fitting: int = MAX_SLOTS
    """How many tasks to claim for one poll. If tasks are large, fewer fit into a reply."""


class _Look(NamedTuple):
    """A look at a lane, as it is ordered: by its instant, then by when it was planned."""

    at: int
    number: int
    lane: Lane


class HeldPolls:
    """All held polls, by lane."""

    def __init__(self, most: int = MOST_POLLS, most_types: int = MOST_TYPES) -> None:
        self._most = most
        self._most_types = most_types
        self._polls: OrderedDict[tuple[str, str, str], Poll] = OrderedDict()
        self._ends: dict[int, dict[Poll, None]] = {}  # the polls by when their time is up
        self._lanes: dict[Lane, _LaneState] = {}
        self._looks: list[_Look] = []  # a heap; entries that no longer match the state are skipped
        self._numbers = itertools.count()
        self._now = 0
        """When the last looks were taken. A look that is planned for an earlier instant becomes due only now."""
        self._types: Counter[str] = Counter()  # how many the polls of each tenant have

    def __len__(self) -> int:
        return len(self._polls)

    def add(self, poll: Poll) -> Sequence[Poll]:
        """Hold a poll. Return those that are refused, because there are too many: perhaps this one."""
        refused = self._make_room(poll)
        if poll in refused:
            return refused
        self._polls[poll.worker] = poll
        self._ends.setdefault(poll.ends_at, {})[poll] = None
        self._types[poll.request.tenant] += len(poll.wanted.types)
        for lane in poll.lanes:
            if (state := self._lanes.get(lane)) is None:
                state = self._lanes[lane] = _LaneState(math.inf, 0)
                self._plan(state, self._now, lane)
            state.polls[poll] = None
        return refused

    def remove(self, poll: Poll) -> None:
        """Forget a poll. Its lanes are known until their next look, unless there are too many."""
        del self._polls[poll.worker], self._ends[poll.ends_at][poll]
        if not self._ends[poll.ends_at]:
            del self._ends[poll.ends_at]
        self._types[poll.request.tenant] -= len(poll.wanted.types)
        if not self._types[poll.request.tenant]:
            del self._types[poll.request.tenant]
        for lane in poll.lanes:
            state = self._lanes[lane]
            del state.polls[poll]
            if not state.polls and (not state.is_known or len(self._lanes) > self._most_types):
                del self._lanes[lane]

    def take(self, polls: Iterable[Poll]) -> list[Poll]:
        """Forget polls and return them."""
        taken = list(polls)
        for poll in taken:
            self.remove(poll)
        return taken

    def take_of_worker(self, poll: Poll) -> list[Poll]:
        """Forget and return the poll that is held for the worker of this one, if there is one."""
        return self.take([held] if (held := self._polls.get(poll.worker)) is not None else [])

    def take_all(self) -> list[Poll]:
        """Forget and return all polls, the oldest first."""
        return self.take(self._polls.values())

    def take_ended(self, now_ms: float) -> list[Poll]:
        """Forget and return the polls whose time is up, by monotonic time."""
        return self.take(poll for end in sorted(self._ends) if end <= now_ms for poll in self._ends[end])

    @property
    def next_end(self) -> int | None:
        """When the time of the next poll is up, in ms of monotonic time; None without one."""
        return min(self._ends, default=None)

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
        state = self._lanes.get(lane)
        if state is None:
            return
        if kept < claimed:
            state.fitting = 2 * max(kept, 1)
        else:  # all did fit: claim more the next time
            state.fitting = max(state.fitting, 2 * claimed)

    def wake(self, lane: Lane, at: int) -> bool:
        """Look at a lane at an instant, or earlier. Return whether a poll waits for it.

        Each wake can leave an entry that no longer matches until its instant, so the instants must be near.
        """
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
            else:  # it was known until this look
                del self._lanes[lane]
        return due

    def first_look(self, poll: Poll) -> int:
        """Return when the first lane of a held poll is looked at. Call it while no look is under way."""
        return int(min(self._lanes[lane].look_at for lane in poll.lanes))

    def next_look(self) -> int | None:
        """Return when to look at a lane next; None without one."""
        self._first(0)  # drops the entries that no longer match
        return self._looks[0].at if self._looks else None

    def _first(self, now: int) -> Lane | None:
        """Return the lane whose look is due first; None if none is due. Drops entries that no longer match."""
        while self._looks:
            look = self._looks[0]
            state = self._lanes.get(look.lane)
            if state is not None and (state.look_at, state.number) == (look.at, look.number):
                return look.lane if look.at <= now else None
            heapq.heappop(self._looks)
        return None

    def _plan(self, state: _LaneState, at: int, lane: Lane) -> None:
        """Plan the next look at a lane. It replaces an earlier plan."""
        state.look_at, state.number = at, next(self._numbers)
        heapq.heappush(self._looks, _Look(at, state.number, lane))

    def _make_room(self, poll: Poll) -> list[Poll]:
        """Remove the newest polls of the tenant with the most types until this one has room. Return those.

        If this one is the newest of that tenant, it has no room.
        """
        tenant, types = poll.request.tenant, len(poll.wanted.types)
        refused: list[Poll] = []
        while len(self._polls) >= self._most or self._types.total() + types > self._most_types:
            largest = max(self._types, key=self._types.__getitem__)
            if self._types[tenant] + types >= self._types[largest]:
                return [*refused, poll]
            newest = next(each for each in reversed(self._polls.values()) if each.request.tenant == largest)
            refused += self.take([newest])
        return refused
