"""Which poll gets how many tasks of which lane: tenants take turns, and so do their lanes and the polls of a lane."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from timer_service.core.due.lanes import Lane
from timer_service.workflows.polls import Poll


class Share(NamedTuple):
    """How many tasks of a lane a poll gets."""

    poll: Poll
    lane: Lane
    tasks: int


def share(
    available: Mapping[Lane, int],
    polls_of: Callable[[Lane], Collection[Poll]],
    fitting: Callable[[Lane], int],
    limit: int,
) -> list[Share]:
    """Return who gets the tasks that are available, at most `limit` in total, and as many as its slots for a poll.

    `fitting` returns how many tasks of a lane fit into a reply. If tasks are few, the polls of a lane share them.
    """
    free: dict[Poll, int] = {}
    counts: Counter[tuple[Poll, Lane]] = Counter()
    turns: OrderedDict[str, deque[_Turn]] = OrderedDict()
    for lane, count in available.items():
        polls = deque(each for each in polls_of(lane) if not each.taken)
        free.update({each: each.wanted.slots for each in polls})
        turns.setdefault(lane[0], deque()).append(_Turn(lane, count, fitting(lane), polls))
    while turns and limit > 0:
        tenant, lanes = turns.popitem(last=False)
        turn = lanes.popleft()
        if (poll := turn.next_poll(free, counts)) is not None:
            counts[poll, turn.lane] += 1
            free[poll] -= 1
            turn.left -= 1
            limit -= 1
            lanes.append(turn)
        if lanes:
            turns[tenant] = lanes
    return [Share(poll, lane, count) for (poll, lane), count in counts.items()]


class _Turn:
    """The tasks of a lane that are left, and the polls that may get one more."""

    def __init__(self, lane: Lane, left: int, fitting: int, polls: deque[Poll]) -> None:
        self.lane = lane
        self.left = left
        self._fitting = fitting
        self._polls = polls

    def next_poll(self, free: Mapping[Poll, int], counts: Mapping[tuple[Poll, Lane], int]) -> Poll | None:
        """Return the poll that gets the next task, or None. The others come before it in the next turn."""
        while self.left and self._polls:
            poll = self._polls.popleft()
            if free[poll] and counts[poll, self.lane] < self._fitting:
                self._polls.append(poll)
                return poll
        return None
