"""Runs the deliveries of a consumer: how many at a time, in which order, alone, and what happens at the stop."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import NamedTuple

from timer_service.client.link import Source
from timer_service.client.receive.attempt import Attempts, Done, Failed, Result
from timer_service.client.receive.delivery import Arrival, Delivery, judge, turn
from timer_service.user_code import end_tasks
from timer_service.watchdog import watch_loop

log = logging.getLogger(__name__)

_MOST_HELD = 1000
_MOST_HELD_BYTES = 16 * 1024 * 1024
"""With `in_order`: how many events wait here for others with the same key, at most."""
SUSPECTS_PAUSE = timedelta(seconds=0.5)
"""How long a suspect waits for others: a harmful one that ran as soon as it arrives would run first each time."""
_BLOCKED = (
    "all handlers of this app wait, and no event is renewed: after ack_wait, another process gets those in progress"
)


class Rules(NamedTuple):
    """How a consumer runs its deliveries."""

    concurrency: int
    attempts: int
    in_order: bool
    ack_wait: timedelta
    shutdown_timeout: timedelta


class Runner:
    """The deliveries in this process. Those with the same key run one after the other, in the order of arrival.

    The key is the id of the event, so that two deliveries of it do not run at once; with `in_order`, what it is about.
    """

    def __init__(self, source: Source, attempts: Attempts, rules: Rules) -> None:
        self._source = source
        self._attempts = attempts
        self._rules = rules
        self._slots = asyncio.Semaphore(rules.concurrency)
        self._lanes: dict[str, deque[Delivery]] = {}
        """For each key in progress, the deliveries that wait for it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        """The tasks that wait for a slot or for a delay. They can be cancelled at the stop."""
        self._delayed: set[asyncio.Task[None]] = set()
        """Those that wait for a delay."""
        self._suspects: list[Delivery] = []
        """Deliveries that have to run alone."""
        self._held: dict[Delivery, None] = {}
        """The deliveries that are not settled, oldest first."""
        self._held_bytes = 0
        self._changed = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Run deliveries until `stop` is set. Then give back those that have not begun, and let the others finish."""
        parts = [asyncio.create_task(each) for each in (self._take(), self._renew(), watch_loop(_BLOCKED))]
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([*parts, stopping], return_when=asyncio.FIRST_COMPLETED)
            parts[0].cancel()
            await asyncio.wait(parts[:1])
            await self._drain()
        finally:
            for task in (*parts, stopping, *self._tasks):
                task.cancel()
        for part in parts:
            if part.done() and not part.cancelled() and (error := part.exception()) is not None:
                raise error

    async def _take(self) -> None:
        """Begin with each delivery as soon as there is room. Never ends."""
        while True:
            await self._until(self._has_room)
            delivery = await self._source.next()
            match self._judge(delivery):
                case Arrival.ALONE:
                    await self._run_alone(delivery)
                case _:
                    self._begin(delivery)

    async def _run_alone(self, suspect: Delivery) -> None:
        """Run a delivery that may end the process, and others of this kind that arrive soon, one at a time.

        Others come first, then the suspects by their `turn`.
        """
        self._suspects.append(suspect)
        self._hold(suspect)
        await asyncio.sleep(SUSPECTS_PAUSE.total_seconds())
        while (other := self._source.next_waiting()) is not None:
            if self._judge(other) is Arrival.ALONE:
                self._suspects.append(other)
                self._hold(other)
            else:
                self._begin(other)
        self._suspects.sort(key=turn, reverse=True)
        while self._suspects:
            await self._until(self._is_idle)
            self._begin(self._suspects.pop())
        await self._until(self._is_idle)

    def _judge(self, delivery: Delivery) -> Arrival:
        failed_here = self._attempts.has_failed(delivery.event)
        return judge(delivery, self._rules.attempts, failed_here=failed_here)

    def _begin(self, delivery: Delivery) -> None:
        """Run a delivery, or let it wait for the one with its key."""
        self._hold(delivery)
        event = delivery.event
        key = event.about if self._rules.in_order else event.id
        lane = self._lanes.get(key)
        if lane is not None:
            lane.append(delivery)
            return
        self._lanes[key] = deque()
        task = asyncio.create_task(self._run_lane(key, delivery))
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a handler's task has failed", exc_info=error)

    async def _run_lane(self, key: str, delivery: Delivery) -> None:
        """Run a delivery and those that wait for it. If it is cancelled, those that have not begun are given back."""
        lane = self._lanes[key]
        try:
            while True:
                await self._settle(delivery)
                self._drop(delivery)
                if not lane:
                    break
                delivery = lane.popleft()
        finally:
            del self._lanes[key]
            self._drop(delivery)
            for each in lane:  # all of them first: another cancellation can end the waits
                self._drop(each)
            for each in lane:
                await each.retry()

    async def _settle(self, delivery: Delivery) -> None:
        """Try a delivery until it is settled."""
        attempt = delivery.attempt
        while True:
            if self._slots.locked():
                async with self._interruptible(delivery, self._waiting):
                    await self._slots.acquire()
            else:  # this does not wait
                await self._slots.acquire()
            try:
                result = await self._try(delivery, attempt)
            finally:
                self._slots.release()
            if isinstance(result, Done):
                await delivery.ack()
                return
            if isinstance(result, Failed):
                if not self._rules.in_order:
                    await delivery.retry(result.delay)
                    return
                attempt += 1  # a later event with its key must wait, so it stays here
            self._changed.set()
            async with self._interruptible(delivery, self._waiting, self._delayed):
                await asyncio.sleep(result.delay.total_seconds())

    async def _try(self, delivery: Delivery, attempt: int) -> Result:
        if self._judge(delivery) is Arrival.PARK:
            reason = f"it was delivered {delivery.attempt} times; each time the process ended, lost it or gave it back"
            return await self._attempts.give_up(delivery, reason, delivery.attempt)
        return await self._attempts.run(delivery, attempt)

    @asynccontextmanager
    async def _interruptible(self, delivery: Delivery, *states: set[asyncio.Task[None]]) -> AsyncIterator[None]:
        """Let the stop cancel the block. The delivery is given back then. The task has these states in the block."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this runs in a task
        for state in states:
            state.add(task)
        try:
            yield
        except asyncio.CancelledError:
            await delivery.retry()
            raise
        finally:
            for state in states:
                state.discard(task)

    async def _drain(self) -> None:
        """Give back what has not begun, and wait for the handlers in progress."""
        log.info("stopping; %d handlers are in progress", len(self._tasks - self._waiting))
        await self._source.stop()
        for suspect in self._suspects:
            self._drop(suspect)
            await suspect.retry()
        self._suspects.clear()
        for lane in self._lanes.values():
            while lane:
                self._drop(lane[0])
                await lane.popleft().retry()
        for task in self._waiting:
            task.cancel()
        if not self._tasks:
            return
        await asyncio.wait(self._tasks, timeout=self._rules.shutdown_timeout.total_seconds())
        hung = set(self._tasks)
        if hung:
            log.warning("%d handlers have not ended; their events come again", len(hung))
            await end_tasks(hung)

    async def _renew(self) -> None:
        """Renew the deliveries that are not settled, in their order, and log handlers that take long. Never ends."""
        while True:
            await asyncio.sleep(self._rules.ack_wait.total_seconds() / 3)
            for delivery in list(self._held):
                await delivery.renew()
            self._attempts.log_long()

    def _has_room(self) -> bool:
        most = _MOST_HELD if self._rules.in_order else self._rules.concurrency
        return len(self._held) < most and (self._held_bytes < _MOST_HELD_BYTES or not self._rules.in_order)

    def _is_idle(self) -> bool:
        return self._tasks <= self._delayed

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _hold(self, delivery: Delivery) -> None:
        if delivery not in self._held:
            self._held[delivery] = None
            self._held_bytes += delivery.size

    def _drop(self, delivery: Delivery) -> None:
        if delivery in self._held:
            del self._held[delivery]
            self._held_bytes -= delivery.size
            self._changed.set()
