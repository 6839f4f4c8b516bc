"""The dispatcher: holds the polls of workers, and answers each when it has claimed tasks for it.

A poll is held before the first look at its lanes, and every commit of this instance that makes rows available calls
`offer`. So no row waits while a poll waits for it. Rows that no poll of this instance takes are made known to the other
instances by a hint. A lost hint costs at most a poll interval.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
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
from timer_service.workflows.protocol import MAX_SLOTS
from timer_service.workflows.tasks.claims import Claimed, Claims, Share, share_tasks
from timer_service.workflows.tasks.hints import Hints
from timer_service.workflows.tasks.lanes import LaneLook
from timer_service.workflows.tasks.polls import HeldPolls, Poll, PollEnds
from timer_service.workflows.tasks.registry import WorkerRegistry

WakeLoops = Callable[[Collection[str], int], Awaitable[None]]

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
_GRACE_MS = 3000
"""How long a poll whose time is up waits for a look that is due or under way. It waits for a claim without limit."""
_MOST_WAITING = 1000
"""How many answers may wait. Then their senders wait until all are sent."""
_ROUNDING = timedelta(milliseconds=1)
_NO_TASKS = QueryReply(b'{"tasks":[]}')
_FULL = error_reply(Rejection(Code.BUSY, "too many polls are held; poll again later"))


class Answers:
    """The answers to polls that wait to be sent, in order.

    One task sends them, so that who answers need not wait for the broker.
    """

    def __init__(self, subscription: RequestSubscription) -> None:
        self._subscription = subscription
        self._waiting: list[tuple[Request, QueryReply]] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, answers: Iterable[tuple[Request, QueryReply]]) -> None:
        """Send some answers soon."""
        self._waiting += answers
        if self._waiting and self._task is None:
            self._task = asyncio.create_task(self._run(), name="answers")

    async def until_few(self) -> None:
        """Wait while many answers wait: the broker takes them slowly."""
        if len(self._waiting) > _MOST_WAITING:
            await self.until_sent()

    async def until_sent(self) -> None:
        """Wait until all answers are sent."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                answers, self._waiting = self._waiting, []
                await self._subscription.reply(answers)
        finally:
            self._task = None


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
        self._claims = Claims(
            parts.database, max_attempts=parts.max_attempts, claim_bytes=parts.budget.portion, rng=parts.rng
        )
        self._hints = Hints(lambda: parts.broker.hint(LOOP, parts.clock.now()))
        self._held = HeldPolls()
        self._registry = WorkerRegistry(parts)
        self._ends = PollEnds(self._expire)
        self._overdue: dict[Poll, None] = {}
        """The polls whose time is up. Each is answered when the claim or the look for it is over."""
        self._subscription: RequestSubscription
        self._answers: Answers
        self._outages = 0
        self._set_back_ms = parts.clock.set_back_ms
        self._wake_loops: WakeLoops
        self._pass = asyncio.Lock()
        """Held during a pass."""
        self._stopping = False

    @property
    def registry(self) -> WorkerRegistry:
        """The worker that records which processes execute workflows."""
        return self._registry

    def open(self, subscription: RequestSubscription, wake_loops: WakeLoops) -> None:
        """Set where replies go, and what wakes other loops. Call it before `run` and the first pass."""
        self._subscription, self._outages = subscription, subscription.outages
        self._answers = Answers(subscription)
        self._wake_loops = wake_loops

    async def run(self, queue: RequestQueue) -> None:
        """Hold the polls of a queue until it is closed. Then answer all of them."""
        while (batch := await queue.next_batch()) is not None:
            await self._subscription.reply(batch.errors)
            turns = Turns(_TYPES_PER_TURN)
            for entry, asked in batch.valid:
                await turns.take(len(asked.request.types))
                self._hold(Poll(entry.request._replace(body=b""), asked.request))
            await self._answers.until_few()
        self._stopping = True
        async with self._pass:
            self._answer_all()
        await self._answers.until_sent()
        await self._hints.close()

    def offer(self, lane: Lane, at: int) -> None:
        """Look at a lane when its row becomes available, at the instant `at`. The row is committed."""
        has_poll = self._held.wake(lane, at)
        now = self._clock.now()
        if has_poll:
            self._wake(at)
        if not has_poll or at > now:  # at that time, only another instance may have a poll
            self._hint(at, now)

    def look_everywhere(self, at: int) -> None:
        """Look at every lane that has a poll, at an instant: another instance has a row that no poll there takes."""
        self._held.wake_all(at)
        self._wake(at)

    async def tick(self, now: int) -> Pass:
        """Claim workflows for the held polls whose lanes are due, and answer these polls."""
        async with self._pass:
            return Pass(0) if self._stopping else await self._tick(now)

    async def _tick(self, now: int) -> Pass:
        if self._subscription.outages != self._outages:  # a reply may not reach a poll from before
            self._outages = self._subscription.outages
            self._answer_all()
        if not self._subscription.health.usable:
            return Pass(0, now + _AWAY_MS)
        if self._clock.set_back_ms != self._set_back_ms:  # the next looks were planned for times that are far away now
            self._set_back_ms = self._clock.set_back_ms
            self._held.wake_all(now)
        lanes = self._held.take_due(now, _MOST_LANES)
        try:
            sent = await self._dispatch(lanes, now) if lanes else 0
        finally:
            for lane in lanes:
                self._held.wake(lane, now + self._poll_ms)
            self._answer_overdue()
        return Pass(sent, self._held.next_look())

    async def _dispatch(self, lanes: Sequence[Lane], now: int) -> int:
        try:
            looks = dict(zip(lanes, await self._claims.look(lanes, now, MAX_SLOTS + 1), strict=True))
            available = {lane: look.available for lane, look in looks.items() if look.available}
            shares = share_tasks(available, self._held.polls_of, self._held.fitting, _MOST_TASKS)
            claimed = await self._claim(shares, now) if shares else None
        except BaseException:
            for lane in lanes:
                self._held.wake(lane, now)
            raise
        self._plan_looks(looks, shares, claimed, now)
        return 0 if claimed is None else sum(map(len, claimed.tasks.values()))

    async def _claim(self, shares: Sequence[Share], now: int) -> Claimed:
        polls = {each.poll for each in shares}
        for poll in polls:
            poll.taken = True
        try:
            may_time_out = await self._gate.is_open(now)
            claimed = await self._claims.claim(shares, now, may_time_out=may_time_out)
            replies = self._take_replies(claimed)
        finally:
            for poll in polls:
                poll.taken = False
                if (newer := self._held.current(poll)) is not None:
                    newer.taken = False
        await self._subscription.reply(replies)
        self._metrics.claimed(sum(claimed.found))
        for each, found, kept in zip(shares, claimed.found, claimed.kept, strict=True):
            self._held.record_fitting(each.lane, kept, found)
        if claimed.adds_events:
            await self._wake_loops(("outbox",), self._clock.now())
        return claimed

    def _take_replies(self, claimed: Claimed) -> list[tuple[Request, QueryReply]]:
        """Return the replies with tasks, and forget their polls. A worker that has polled again gets them there."""
        replies: list[tuple[Request, QueryReply]] = []
        for taken, tasks in claimed.tasks.items():
            poll = self._held.current(taken) or taken
            self._forget([poll])
            reply = encode_answer(write_object({}, {"tasks": write_list(tasks)}))
            replies.append((poll.request, reply))
            self._metrics.request_answered(poll.request.name, reply.code or ANSWERED)
            self._metrics.tasks_sent(len(tasks))
        return replies

    def _plan_looks(
        self, looks: dict[Lane, LaneLook], shares: Sequence[Share], claimed: Claimed | None, now: int
    ) -> None:
        """Plan the next look at each lane. Make rows known to other instances that no poll here takes."""
        kept, locked = dict.fromkeys(looks, 0), False
        if claimed is not None:
            for each, found, count in zip(shares, claimed.found, claimed.kept, strict=True):
                kept[each.lane] += count
                locked = locked or found < each.tasks
        for lane, look in looks.items():
            if look.next_at is not None:
                self._held.wake(lane, look.next_at)
            if look.available > kept[lane]:
                has_poll = self._held.wake(lane, now + _LOCKED_MS if locked else now)
                if not has_poll:
                    self._hint(now, now)

    def _hint(self, at: int, now: int) -> None:
        if not self._alone and at < now + self._poll_ms:  # their next poll finds later rows in time
            self._hints.want()

    def _hold(self, poll: Poll) -> None:
        if not poll.wanted.slots:
            self._stop_polling(poll)
            return
        self._registry.record_poll(poll.request.tenant, poll.wanted)
        leaving = self._held.add(poll)
        if leaving.replaced is not None:
            poll.taken = leaving.replaced.taken
            self._answer([leaving.replaced], _NO_TASKS)
        self._answer(leaving.refused, _FULL)
        if self._stopping:
            self._answer([poll], _NO_TASKS)
        elif self._held.current(poll) is poll:
            self._ends.add(poll, poll.wanted.wait_ms)
            self._metrics.polls_held(len(self._held))
            if (at := self._held.look_at(poll)) is not None:
                self._wake(max(at, self._clock.now()))  # no row woke the loop while the lane had no poll

    def _stop_polling(self, poll: Poll) -> None:
        """Answer a poll without slots, and the held one of its worker. If a claim for that is under way, it goes on."""
        held = self._held.current(poll)
        if held is not None and held.taken:
            self._overdue[held] = None
        self._answer([poll] if held is None or held.taken else [poll, held], _NO_TASKS)

    def _expire(self, polls: Iterable[Poll]) -> None:
        """Answer polls whose time is up. If a look or a claim for one is under way, the end of the pass answers it."""
        now = self._clock.now()
        over: list[Poll] = []
        for poll in polls:
            if poll.taken or (poll not in self._overdue and self._held.must_look(poll, now)):
                self._overdue[poll] = None
                self._ends.add(poll, _GRACE_MS)
            else:
                over.append(poll)
        self._answer(over, _NO_TASKS)

    def _answer_overdue(self) -> None:
        self._answer([poll for poll in self._overdue if not poll.taken], _NO_TASKS)

    def _answer_all(self) -> None:
        self._answer([poll for poll in self._held.all if not poll.taken], _NO_TASKS)

    def _answer(self, polls: Iterable[Poll], reply: QueryReply) -> None:
        """Answer polls. The caller need not wait for the broker."""
        polls = list(polls)
        self._forget(polls)
        for poll in polls:
            self._metrics.request_answered(poll.request.name, reply.code or ANSWERED)
        self._answers.add((poll.request, reply) for poll in polls)

    def _forget(self, polls: Iterable[Poll]) -> None:
        for poll in polls:
            self._ends.remove(poll)
            self._overdue.pop(poll, None)
            if self._held.current(poll) is poll:
                self._held.remove(poll)
        self._metrics.polls_held(len(self._held))
