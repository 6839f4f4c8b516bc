"""A generated load over every slice: timers, signals and runs, published by a user while something is disturbed."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from tests.harness.load_user import LoadUser, SeenEvent, Sent, now_ms
from tests.harness.runs import jobs
from timer_service.core.values.instant import format_instant

DIAMOND = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}
_BLOCKED = {"kind": "work_item.status.transition", "to": ["blocked"]}
_ACKNOWLEDGED_SECONDS = 3
_LONGEST_PAUSE_SECONDS = 0.05


def instant(at_ms: float) -> str:
    """Return epoch milliseconds, rounded up, as the events show them."""
    return format_instant(math.ceil(at_ms))


_Story = Callable[[str, random.Random], Awaitable[None]]


class Load:
    """Stories of one tenant. Each story uses a timer, a signal or a run of its own; its commands follow each other."""

    def __init__(self, user: LoadUser, seed: int, *, writers: int, far_ms: int) -> None:
        self.user = user
        self._rng = random.Random(seed)
        self._writers = writers
        self._far_ms = far_ms
        """How long a timer waits at most."""
        self.timers: dict[str, list[Sent]] = {}
        """The commands of each timer, in their order in the stream."""
        self.signals: dict[str, list[Sent]] = {}
        self.runs: dict[str, Sent] = {}
        self.reports: dict[tuple[str, str], Sent] = {}
        """The report of each job of a run."""
        self._stopping = asyncio.Event()
        self._reporting: set[asyncio.Task[None]] = set()
        user.on_event = self._execute

    @classmethod
    @asynccontextmanager
    async def running(
        cls, urls: str | Sequence[str], *, seed: int, tenant: str = "acme", writers: int = 6, far_ms: int = 2_000
    ) -> AsyncIterator[Self]:
        """Run the load. `stop` ends it."""
        async with LoadUser.connect(urls, tenant) as user:
            load = cls(user, seed, writers=writers, far_ms=far_ms)
            writing = asyncio.gather(*(load._write(number) for number in range(writers)))
            try:
                yield load
            finally:
                load._stopping.set()
                user.close()
                reporting = asyncio.gather(*load._reporting)
                writing.cancel()
                reporting.cancel()
                await asyncio.gather(writing, reporting, return_exceptions=True)

    async def until_answered(self, count: int, *, seconds: float = 60) -> None:
        """Wait until `count` commands that are published from now on have their replies."""
        first = len(self.user.sent)
        async with asyncio.timeout(seconds):
            while sum(each.replied.is_set() for each in self.user.sent[first:]) < count:
                await asyncio.sleep(0.01)

    async def stop(self, *, seconds: float = 60) -> None:
        """End the stories. Return when every command of a story is stored."""
        self._stopping.set()
        async with asyncio.timeout(seconds):
            while self._writers:
                await asyncio.sleep(0.01)

    async def _write(self, number: int) -> None:
        story = 0
        kinds: list[_Story] = [*[self._timer] * 7, *[self._signal] * 2, self._run]
        while not self._stopping.is_set():
            rng = random.Random(self._rng.random())
            await rng.choice(kinds)(f"{number}-{story}", rng)
            story += 1
            await asyncio.sleep(rng.uniform(0, _LONGEST_PAUSE_SECONDS))
        self._writers -= 1

    async def _timer(self, name: str, rng: random.Random) -> None:
        call = f"call-{name}"
        commands = self.timers[call] = []

        async def send(message_type: str, **fields: Any) -> Sent:
            sent = await self.user.publish(message_type, serviceCallId=call, **fields)
            commands.append(sent)
            return sent

        await send("ScheduleTimer", dueAt=self._due(rng), data={"story": name})
        for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
            match rng.choice(["ScheduleTimer", "ScheduleTimer", "CancelTimer", "CancelTimer", "RetryTimer"]):
                case "ScheduleTimer":
                    await send("ScheduleTimer", dueAt=self._due(rng), data={"story": name})
                case message_type:
                    await send(message_type)

    async def _signal(self, name: str, rng: random.Random) -> None:
        signal, item = f"signal-{name}", f"item-{name}"
        commands = self.signals[signal] = []
        if rng.random() < 0.3:
            fields = {"triggerKind": "time", "triggerSpec": {"kind": "time.at", "at": self._due(rng)}}
        else:
            fields = {"workItemId": item, "triggerKind": "event", "triggerSpec": _BLOCKED}
        commands.append(await self.user.publish("CreateWorkSignal", signalId=signal, **fields))
        if fields["triggerKind"] == "event":
            if rng.random() < 0.3:
                seconds = _ACKNOWLEDGED_SECONDS
                commands.append(await self.user.request("CancelWorkSignal", signalId=signal, seconds=seconds))
            commands.append(await self.user.publish("TransitionWorkItem", workItemId=item, to="doing"))
            commands.append(await self.user.publish("TransitionWorkItem", workItemId=item, to="blocked"))

    async def _run(self, name: str, _: random.Random) -> None:
        run = f"run-{name}"
        self.runs[run] = await self.user.publish("StartRun", runId=run, jobs=jobs(DIAMOND), groups=[])

    def _due(self, rng: random.Random) -> str:
        return instant(now_ms() + rng.uniform(100, self._far_ms))

    def _execute(self, event: SeenEvent) -> None:
        """Report the success of a job when its first JobReady arrives, as an executor does."""
        if event.type == "JobReady":
            job = event.payload["runId"], event.payload["jobName"]
            if job not in self.reports:
                task = asyncio.create_task(self._report(*job))
                self._reporting.add(task)
                task.add_done_callback(self._reporting.discard)

    async def _report(self, run: str, job: str) -> None:
        sent = Sent("ReportJobStatus", {}, now_ms())
        self.reports[run, job] = sent
        self.reports[run, job] = await self.user.publish(
            "ReportJobStatus", runId=run, jobName=job, status="success", outputs={"of": job}
        )
