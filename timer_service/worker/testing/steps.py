"""The steps of a simulated workflow: they run on the event loop of the test, and sleep in simulated time."""

import asyncio
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from timer_service.user_code import UserCode
from timer_service.worker.context import current_step, variables_of_step
from timer_service.worker.errors import NotInWorkflowError
from timer_service.worker.names import name_of
from timer_service.worker.steps import Attempt, end_of, run_attempt, timed_out
from timer_service.worker.values import Effect, StepCall

_MOST_THREADS = 100


_attempt: ContextVar[object] = ContextVar("timer_service_simulated_attempt")
_TURNS = 4
"""In so many turns of the event loop, code that was cancelled has ended, if it awaits nothing more."""


class _Running(NamedTuple):
    id: object
    attempt: "asyncio.Task[Attempt]"
    ends_at: int | None
    """When its timeout is over."""
    timeout: float | None


class _Sleeper(NamedTuple):
    at: int
    attempt_id: object
    woken: "asyncio.Future[None]"


class SimulatedSteps:
    """The attempts in progress."""

    def __init__(self, stand_ins: Mapping[str, Any]) -> None:
        self._stand_ins = stand_ins
        self._running: dict[str, _Running] = {}
        self._sleepers: list[_Sleeper] = []
        self._changed = asyncio.Event()
        self._code = UserCode(_MOST_THREADS, patience=0)
        self._has_stopped = False
        """Whether attempts were stopped that may not have ended."""

    def begin(self, effect: Effect, now: int) -> None:
        """Begin an attempt of a step, or of its stand-in."""
        assert effect.call is not None  # noqa: S101 - only a step has a call
        call = self._stand_in(effect.key, effect.call)
        variables, attempt_id = variables_of_step(effect.key, call.variables), object()
        variables.run(_attempt.set, attempt_id)
        running = run_attempt(call, f"the step {effect.key}", self._code)
        attempt = asyncio.get_running_loop().create_task(running, context=variables)
        attempt.add_done_callback(lambda _: self._changed.set())
        timeout = effect.call.timeout
        ends_at = None if timeout is None else now + round(timeout * 1000)
        self._running[effect.key] = _Running(attempt_id, attempt, ends_at, timeout)

    def stop(self, keys: Iterable[str]) -> None:
        """Stop the attempts of steps, and forget them. An attempt that has ended is only forgotten."""
        for key in keys:
            if (running := self._running.pop(key, None)) is not None:
                running.attempt.cancel()
                self._has_stopped = True
                self._sleepers = [each for each in self._sleepers if each.attempt_id is not running.id]

    def next_at(self) -> int | None:
        """Return when the next attempt goes on or times out."""
        instants = [each.at for each in self._sleepers]
        instants += [each.ends_at for each in self._running.values() if each.ends_at is not None]
        return min(instants, default=None)

    async def sleep(self, until: int) -> None:
        """Sleep in simulated time. In an attempt that was stopped, the sleep does not end."""
        key = current_step()
        if key is None:
            raise NotInWorkflowError("SimulatedWorkflow.sleep is for steps: use ctx.sleep in the workflow function")
        running, attempt_id = self._running.get(key), _attempt.get()
        sleeper = _Sleeper(until, attempt_id, asyncio.get_running_loop().create_future())
        if running is not None and running.id is attempt_id:
            self._sleepers.append(sleeper)
            self._changed.set()
        await sleeper.woken

    async def settle(self, now: int) -> list[tuple[str, Attempt]]:
        """Run the attempts until each has ended or sleeps for longer. Return those that have ended."""
        if self._has_stopped:
            self._has_stopped = False
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        self._wake(now)
        while self._has_active():
            self._changed.clear()
            await self._changed.wait()
            self._wake(now)
        ended = [(key, end_of(each.attempt)) for key, each in self._running.items() if each.attempt.done()]
        late = [(key, each) for key, each in self._running.items() if each.ends_at is not None and each.ends_at <= now]
        ended += [(key, timed_out(each.timeout)) for key, each in late if not each.attempt.done()]
        self.stop([key for key, _ in ended])
        return ended

    def _wake(self, now: int) -> None:
        """Wake the attempts whose sleep is over."""
        due = [each for each in self._sleepers if each.at <= now]
        self._sleepers = [each for each in self._sleepers if each.at > now]
        for each in due:
            if not each.woken.done():  # else its attempt was cancelled
                each.woken.set_result(None)

    def _has_active(self) -> bool:
        """Return whether an attempt neither sleeps nor has ended."""
        asleep = {each.attempt_id for each in self._sleepers}
        return any(each.id not in asleep and not each.attempt.done() for each in self._running.values())

    def _stand_in(self, key: str, call: StepCall) -> StepCall:
        """Return what an attempt calls: the step or its stand-in. `settle` simulates the timeout."""
        call = call._replace(timeout=None)
        name = name_of(key)
        if name not in self._stand_ins:
            return call
        stand_in = self._stand_ins[name]
        is_error_class = isinstance(stand_in, type) and issubclass(stand_in, BaseException)
        is_error = is_error_class or isinstance(stand_in, BaseException)
        if callable(stand_in) and not is_error:
            return call._replace(function=stand_in)

        async def end(*_: Any) -> Any:
            if is_error:
                raise stand_in
            return stand_in

        return call._replace(function=end)
