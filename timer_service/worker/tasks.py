"""The tasks that a worker holds, their steps in progress, and the instants at which they go on."""

import asyncio
import logging
from collections.abc import Callable, Iterator

from timer_service.user_code import UserCode
from timer_service.worker.context import variables_of_step
from timer_service.worker.steps import Attempt, end_of, run_attempt
from timer_service.worker.task import RunningTask
from timer_service.worker.values import Effect

log = logging.getLogger(__name__)

_CLOCK_STEP = 0.001
"""A call of the event loop may come a little early, by the resolution of the clock."""
_StepId = tuple[RunningTask, str]


class Tasks:
    """The tasks of a worker."""

    def __init__(self, slots: int, code: UserCode) -> None:
        self.is_draining = False
        """Whether no step begins any more."""
        self.changed: dict[RunningTask, None] = {}
        """The tasks that may have something to report. `has_changed` is set if there are any."""
        self.has_changed = asyncio.Event()
        self._slots = slots
        self._code = code
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[RunningTask, asyncio.TimerHandle | None] = {}
        """The tasks, and what wakes each of them later."""
        self._by_workflow: dict[str, RunningTask] = {}
        self._steps: dict[_StepId, asyncio.Task[Attempt]] = {}
        self._left = asyncio.Event()

    def __iter__(self) -> Iterator[RunningTask]:
        return iter(list(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self._slots - len(self._tasks)

    async def until_free(self) -> bool:
        """Wait for a free slot. Return False if no step begins any more."""
        await self._until(lambda: self.is_draining or self.free > 0)
        return not self.is_draining

    async def until_empty(self) -> None:
        """Wait until there is no task."""
        await self._until(lambda: not self._tasks)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that a removed task, or the begin of the drain, can make true."""
        while not condition():
            self._left.clear()
            await self._left.wait()

    def drain(self) -> None:
        """Begin no step any more. The tasks are released as soon as their steps in progress have ended."""
        self.is_draining = True
        self._left.set()
        for task in self:
            self.update(task)

    def add(self, task: RunningTask) -> None:
        """Hold a task. An older task of the same workflow ends: the service has given the workflow a new token."""
        older = self._by_workflow.get(task.workflow_id)
        self._by_workflow[task.workflow_id] = task
        self._tasks[task] = None
        if older is not None:
            self.end(older)

    def handle(self, task: RunningTask, event: Callable[[], None]) -> None:
        """Let a task note an event, and do what it wants then. An error in it ends this task, and no other."""
        try:
            event()
        except Exception:
            log.exception("the task of the workflow %s has failed; it runs again after its lease", task.workflow_id)
            task.end()
        self.update(task)

    def update(self, task: RunningTask) -> None:
        """Do what a task wants after an event: start and stop steps, and wake it later. End it if it is over."""
        for key in task.take_steps_to_stop():  # also those of a task that was removed
            if (step := self._steps.pop((task, key), None)) is not None:
                step.cancel()
        if task not in self._tasks:
            return
        if (wake_up := self._tasks[task]) is not None:
            wake_up.cancel()
        if task.is_over:
            self._remove(task)
            return
        now = self._loop.time()
        self._tasks[task] = None
        for effect in () if self.is_draining else task.take_steps_to_start(now):
            self._start(task, effect)
        wake_at = task.wake_at(now)
        if wake_at is not None:
            self._tasks[task] = self._loop.call_at(max(wake_at, now + _CLOCK_STEP), self.update, task)
        self.changed[task] = None
        self.has_changed.set()

    def _remove(self, task: RunningTask) -> None:
        """Free the slot of a task that is over."""
        del self._tasks[task]
        if self._by_workflow[task.workflow_id] is task:  # else a newer task has replaced it
            del self._by_workflow[task.workflow_id]
        self._left.set()

    def end(self, task: RunningTask) -> None:
        """End a task that this worker has lost."""
        task.end()
        self.update(task)

    def _start(self, task: RunningTask, effect: Effect) -> None:
        """Start an attempt of a step."""
        assert effect.call is not None  # noqa: S101 - only a step has a call
        variables = variables_of_step(effect.key, effect.call.variables)
        name = f"the step {effect.key} of the workflow {task.workflow_id}"
        step = self._loop.create_task(run_attempt(effect.call, name, self._code), context=variables)
        self._steps[task, effect.key] = step
        step.add_done_callback(lambda step: self._ended(task, effect.key, step))

    def _ended(self, task: RunningTask, key: str, step: asyncio.Task[Attempt]) -> None:
        """Let a task note how an attempt ended. The task ignores the end of an attempt that it has stopped."""
        self._steps.pop((task, key), None)
        self.handle(task, lambda: task.step_ended(key, end_of(step), self._loop.time()))
