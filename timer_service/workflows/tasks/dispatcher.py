"""The dispatcher: holds the polls of workers, and answers each when it has claimed tasks for it.

A poll is held before the first look at its lanes, and every commit of this instance that makes rows available calls
`offer`. So no row waits while a poll waits for it. Rows that no poll of this instance takes are made known to the other
instances by a hint. A lost hint costs at most a poll interval.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from timer_service.core.due.loop import Pass
from timer_service.core.intake.backlog import BacklogGate
from timer_service.core.intake.route import Lane
from timer_service.core.ports.broker import QueryReply, Request, RequestSubscription
from timer_service.core.ports.turns import Turns
from timer_service.core.requests.bodies import ANSWERED, encode_answer, error_reply
from timer_service.core.requests.requests import RequestQueue
from timer_service.core.service.slice import Parts
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.stored_json import write_list, write_object
from timer_service.workflows.protocol import MAX_SLOTS, PollTasks
from timer_service.workflows.tasks.claims import NOTHING, Claimed, Claims, Share, share_tasks
from timer_service.workflows.tasks.hints import Hints
from timer_service.workflows.tasks.lanes import LaneLook, look
from timer_service.workflows.tasks.polls import HeldPolls, Poll, end_of
from timer_service.workflows.tasks.registry import WorkerRegistry

Reply = tuple[Request, QueryReply]

LOOP = "tasks"
_MOST_TASKS = 1000
"""How many workflows one transaction claims."""
_MOST_LANES = 1000
"""How many lanes one pass looks at."""
_TYPES_PER_TURN = 200
"""The types of the polls that are held before other tasks run."""
_LOCKED_MS = 5
"""When to look again at rows that another instance has locked."""
_AWAY_MS = 250
"""How often to look whether the broker can be used again."""
_ROUNDING = timedelta(milliseconds=1)
_NO_TASKS = QueryReply(b'{"tasks":[]}')
_FULL = error_reply(Rejection(Code.BUSY, "too many polls are held; poll again later"))


class Dispatcher:
    """Holds polls and answers them: each with tasks, or without when its `waitMs` is over or the service stops."""

    def __init__(self, parts: Parts, *, polling_interval: timedelta, wake: Callable[[int], None]) -> None:
        """`wake` wakes the loop of the dispatcher at an instant."""
        self._clock = parts.clock
        self._metrics = parts.metrics
        self._alone = parts.database.exclusive
        self._poll_ms = polling_interval // _ROUNDING
        self._wake = wake
        self._gate = BacklogGate(parts.broker, parts.database)
        self._database = parts.database
        self._claims = Claims(parts, claim_bytes=parts.budget.portion)
        self._hints = Hints(lambda: parts.broker.hint(LOOP, parts.clock.now()))
        self._held = HeldPolls()
        self.registry = WorkerRegistry(parts)
        """The worker that records which processes execute workflows."""
        self._subscription: RequestSubscription
        self._outages = 0
        """The outages of the subscription when the waiting polls were last looked at."""
        self._lock = asyncio.Lock()
        """Held during a pass, and while polls come."""
        self._stopping = False

    def open(self, subscription: RequestSubscription) -> None:
        """Set where replies go. Call it before `run` and the first pass."""
        self._subscription, self._outages = subscription, subscription.outages

    async def run(self, queue: RequestQueue) -> None:
        """Hold the polls of a queue until it is closed. Then answer all of them."""
        while (batch := await queue.next_batch()) is not None:
            await self._subscription.reply(batch.errors)
            replies: list[Reply] = []
            turns = Turns(_TYPES_PER_TURN)
            async with self._lock:  # no poll comes or goes while a claim is under way
                for entry, asked in batch.valid:
                    await turns.take(len(asked.request.types))
                    replies += self._hold(entry.request._replace(body=b""), asked.request)
            await self._reply(replies)
        self._stopping = True
        async with self._lock:
            await self._reply(_without_tasks(self._held.take_all()))
        await self._hints.close()

    def offer(self, lane: Lane, at: int) -> None:
        """Look at a lane when its row becomes available, at the instant `at`. The row is committed."""
        now = self._clock.now()
        if at >= now + self._poll_ms:  # the next look after the poll interval finds it in time
            return
        has_poll = self._held.wake(lane, at)
        if has_poll:
            self._wake(at)
        if not has_poll or at > now:  # at that time, only another instance may have a poll
            self._hint()

    def look_everywhere(self, at: int) -> None:
        """Look at every lane that has a poll, at an instant: another instance has a row that no poll there takes."""
        self._held.wake_all(at)
        self._wake(at)

    async def tick(self, now: int) -> Pass:
        """Claim workflows for the held polls whose lanes are due, and answer these polls and those that are over."""
        async with self._lock:
            return Pass(0) if self._stopping else await self._tick(now)

    async def _tick(self, now: int) -> Pass:
        """Look at the lanes that are due. After an error, look at them again at once."""
        if self._subscription.outages != self._outages:  # a reply may not reach a poll from before
            self._outages = self._subscription.outages
            await self._reply(_without_tasks(self._held.take_all()))
        if not self._subscription.health.usable:
            return Pass(0, now + _AWAY_MS)
        lanes = self._held.take_due(now, _MOST_LANES)
        sent, next_looks = 0, dict.fromkeys(lanes, now)
        try:
            if lanes:
                sent, next_looks = await self._dispatch(lanes, now)
        finally:
            for lane, at in next_looks.items():
                has_poll = self._held.wake(lane, at)
                if at <= now + _LOCKED_MS and not has_poll:  # it has rows for the polls of other instances
                    self._hint()
            await self._reply(_without_tasks(self._held.take_ended(_monotonic_ms())))
        return Pass(sent, self._next_pass(now))

    def _next_pass(self, now: int) -> int | None:
        """Return when a look is due or the time of a poll is up; None without one."""
        end = self._held.next_end
        instants = [self._held.next_look(), None if end is None else now + max(math.ceil(end - _monotonic_ms()), 0)]
        return min((each for each in instants if each is not None), default=None)

    async def _dispatch(self, lanes: Sequence[Lane], now: int) -> tuple[int, dict[Lane, int]]:
        """Claim workflows of lanes, and send them. Return how many, and when to look at each lane next."""
        looks = await look(self._database.reader, lanes, now, MAX_SLOTS + 1)
        available = {lane: each.available for lane, each in looks.items() if each.available}
        shares = share_tasks(available, self._held.polls_of, self._held.fitting, _MOST_TASKS)
        claimed = await self._claim(shares, now) if shares else NOTHING
        return sum(map(len, claimed.tasks.values())), self._plan_looks(looks, shares, claimed, now)

    async def _claim(self, shares: Sequence[Share], now: int) -> Claimed:
        """Claim workflows and send them. The polls that get any are no longer held."""
        may_time_out = await self._gate.is_open(now)
        claimed = await self._claims.claim(shares, now, may_time_out=may_time_out)
        replies = [
            (poll.request, encode_answer(write_object({}, {"tasks": write_list(tasks)})))
            for poll, tasks in claimed.tasks.items()
        ]
        self._held.take(claimed.tasks)
        await self._reply(replies)
        self._metrics.claimed(sum(claimed.found))
        self._metrics.tasks_sent(sum(map(len, claimed.tasks.values())))
        for each, found, kept in zip(shares, claimed.found, claimed.kept, strict=True):
            self._held.record_fitting(each.lane, kept, found)
        return claimed

    def _plan_looks(
        self, looks: dict[Lane, LaneLook], shares: Sequence[Share], claimed: Claimed, now: int
    ) -> dict[Lane, int]:
        """Return when to look at each lane next: soon if it has more available rows than were sent."""
        sent = Counter[Lane]()
        for share, count in zip(shares, claimed.kept, strict=True):
            sent[share.lane] += count
        are_locked = any(count < share.tasks for share, count in zip(shares, claimed.found, strict=True))
        soon = now + _LOCKED_MS if are_locked else now
        planned = {}
        for lane, found in looks.items():
            instants = [soon if found.available > sent[lane] else None, found.next_at, now + self._poll_ms]
            planned[lane] = min(each for each in instants if each is not None)
        return planned

    def _hint(self) -> None:
        """Make rows known to other instances that no poll of this one takes."""
        if not self._alone:
            self._hints.want()

    def _hold(self, request: Request, wanted: PollTasks) -> Sequence[Reply]:
        """Hold a poll, and wake the loop for it. Return the replies to polls that end because of it, perhaps itself."""
        poll = Poll(request, wanted, end_of(int(_monotonic_ms()), wanted.wait_ms))
        ended = self._held.take_of_worker(poll)  # the worker no longer waits for its older poll
        if not wanted.slots:
            return _without_tasks([*ended, poll])
        self.registry.record(request.tenant, wanted.worker_id, wanted)
        refused = self._held.add(poll)
        if poll not in refused:
            now = self._clock.now()
            self._wake(min(max(self._held.first_look(poll), now), now + wanted.wait_ms))
        return [*_without_tasks(ended), *((each.request, _FULL) for each in refused)]

    async def _reply(self, replies: Sequence[Reply]) -> None:
        """Send replies, and count them and the polls that are left."""
        self._metrics.polls_held(len(self._held))
        for request, reply in replies:
            self._metrics.request_answered(request.name, reply.code or ANSWERED)
        if replies:
            await self._subscription.reply(replies)


def _without_tasks(polls: Iterable[Poll]) -> list[Reply]:
    return [(poll.request, _NO_TASKS) for poll in polls]


def _monotonic_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
