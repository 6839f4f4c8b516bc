"""Runs the function of a workflow, and repeats what it did before. Pure: no I/O, no clock.

The function runs until it is idle, gets one result, runs until it is idle, and so on. Each result that it gets has the
next number, `seq`. A replay gives the stored results in the order of their numbers, so the function does the same.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

from timer_service.client.convert import read_data, second_type
from timer_service.worker.context import Context
from timer_service.worker.definition import WorkflowFunction
from timer_service.worker.errors import Interrupted, NonDeterministicError, NotInWorkflowError, StepFailed
from timer_service.worker.loop import EndlessLoopError, ReplayFuture, ReplayLoop
from timer_service.worker.names import MAX_EFFECTS, Identity, check_name, effect_key, name_of
from timer_service.worker.values import Decision, Effect, Finished, Kind, Outcome, StepCall, StoredEffect

_MOST_INTERRUPTS = 1000
"""A function that catches `Interrupted` in a loop gets it this often. Then its effects never end."""
_CANCEL_ROUNDS = 3
_MOST_SHOWN = 5


class Replay:
    """One execution of a workflow function, from the stored effects to its end or to an interruption."""

    def __init__(
        self, workflow: WorkflowFunction[Any, Any], identity: Identity, data: Any, stored: Iterable[StoredEffect] = ()
    ) -> None:
        self.seq = 0
        """How many results the function has got."""
        self.is_closed = False
        """Whether the function, and all its branches, have ended after `close`."""
        self.is_replaying = False
        """Whether the function repeats what it did before, or is interrupted."""
        self._stored = {effect.key: effect for effect in stored}
        self._loop = ReplayLoop(int(identity.derive("loop")[:12], 16))  # type: ignore[abstract]  # it has the rest, see the end of loop.py
        self._effects: dict[str, Effect] = {}
        self._waiting: dict[str, ReplayFuture] = {}
        self._names: Counter[str] = Counter()
        self._unread: dict[str, deque[Any]] = {}
        """The data of messages that were taken by waits that are cancelled, by their names."""
        self._new: list[str] = []
        self._dropped: list[str] = []
        self._given: set[str] = set()
        self._mismatch: NonDeterministicError | None = None
        self._exceeded: BaseException | None = None
        self._is_closing = False
        """Whether `close` was called: every effect now raises `Interrupted`."""
        self._interrupts = 0
        """How many effects were asked for since."""
        self._function = workflow.function
        module = getattr(workflow.function, "__module__", None) or __name__
        context = Context(identity, self, workflow.retry, module)
        self._arguments: tuple[Context, Any] | None = (context, data)
        self._main: asyncio.Task[Any] | None = None

    @property
    def waiting(self) -> list[str]:
        """The keys of the effects that the function waits for."""
        return list(self._waiting)

    def advance(self) -> Decision:
        """Run the function with its stored results. Raises `NonDeterministicError` if they do not match.

        Stored results without a number are not given: see `unseen`.
        """
        assert self._arguments is not None, "a replay runs once"  # noqa: S101
        # With the first stored effect the function ran up to it. What follows a stored result ran before it was stored.
        self.is_replaying = bool(self._stored)
        self._main = self._loop.create_task(_call(self._function, *self._arguments))
        self._run()
        numbered = [effect for effect in self._stored.values() if effect.seq is not None]
        for effect in sorted(numbered, key=lambda effect: effect.seq or 0):  # as the function got them before
            if self._main.done() or effect.key not in self._effects:  # it did not ask for the effect by then
                raise self._unmatched(effect)
            self._give(effect.key, effect.outcome or Outcome())
        for effect in self._stored.values():
            if effect.key not in self._effects:
                raise self._unmatched(effect)
        self.is_replaying = False
        return self._decide()

    def unseen(self) -> list[tuple[str, Outcome]]:
        """Return the stored outcomes that the function has not got, in the order in which they were stored."""
        found = [(effect.key, effect.outcome) for effect in self._stored.values() if effect.seq is None]
        return [(key, outcome) for key, outcome in found if outcome is not None]

    def has_got(self, key: str) -> bool:
        """Return whether the function has got the result of an effect."""
        return key in self._given

    def deliver(self, key: str, outcome: Outcome) -> Decision:
        """Give the function one result, under the number `seq`, and run it until it is idle."""
        self._give(key, outcome)
        return self._decide()

    def close(self) -> None:
        """Raise `Interrupted` in each branch of the function, so that its `finally` blocks run."""
        if self._is_closing:
            return
        self._is_closing = self.is_replaying = True
        self._loop.is_quiet = True
        for future in self._waiting.values():
            future.set_exception(Interrupted())
        self._waiting.clear()
        with suppress(EndlessLoopError):  # then some branches have not ended
            self._end_branches()
        self.is_closed = all(task.done() for task in self._loop.tasks)
        self._loop.tasks.clear()  # references in a circle would wait for the garbage collector
        self._arguments = None

    def _end_branches(self) -> None:
        """Run the branches to their ends. A few rounds, because a branch may catch a cancellation and wait again."""
        self._loop.run_until_idle()
        for _ in range(_CANCEL_ROUNDS):
            for task in self._loop.tasks:
                if not task.done():
                    task.cancel()
            self._loop.run_until_idle()
            for generator in self._loop.take_generators():
                _ = self._loop.create_task(_close(generator))
            self._loop.run_until_idle()

    def ask(self, kind: Kind, name: str, *, call: StepCall | None = None, ms: int | None = None) -> ReplayFuture:
        """Return the future result of an effect that the function asks for."""
        if self._is_closing:  # also if the garbage collector ends the function, outside its loop
            return self._interrupted()
        if not self._loop.is_running():
            raise NotInWorkflowError("effects belong to the function of the workflow: a step has none")
        check_name("name", name)
        future = self._loop.create_future()
        if kind is Kind.MESSAGE and self._unread.get(name):  # so this wait is no new effect
            future.set_result(self._unread[name].popleft())
        else:
            self._add(future, kind, name, call, ms)
        return future

    def _interrupted(self) -> ReplayFuture:
        """Return an effect that raises `Interrupted`, or never ends if the function has caught that too often."""
        future = self._loop.create_future()
        self._interrupts += 1
        if self._interrupts <= _MOST_INTERRUPTS:
            future.set_exception(Interrupted())
        return future

    def _add(self, future: ReplayFuture, kind: Kind, name: str, call: StepCall | None, ms: int | None) -> None:
        """Note an effect that the function asks for. One beyond the limit never ends, and the function fails."""
        if len(self._effects) >= MAX_EFFECTS:
            self._exceeded = RuntimeError(f"a workflow has at most {MAX_EFFECTS} effects")
            return
        key = effect_key(name, self._names[name])
        self._names[name] += 1
        stored = self._stored.get(key)
        if stored is not None and stored.kind != kind and self._mismatch is None:
            self._mismatch = NonDeterministicError(_describe(stored.kind, key), _describe(kind, key))
        known = stored or StoredEffect(key, kind)
        start_in = known.start_in_ms or 0
        self._effects[key] = Effect(key, kind, self.seq, call, ms, start_in, known.failures, stored is not None)
        self._waiting[key] = future
        self._new.append(key)
        future.on_cancel = lambda: self._drop(key)

    def _drop(self, key: str) -> None:
        """Note that the function has cancelled the branch that waited for an effect. Only steps are dropped."""
        if self._waiting.pop(key, None) is not None and self._effects[key].kind is Kind.STEP:
            self._dropped.append(key)

    def _give(self, key: str, outcome: Outcome) -> None:
        """Give one result to the branch that waits for it, and run. If no branch does, only a message is kept."""
        self.seq += 1
        self._given.add(key)
        is_message = self._effects[key].kind is Kind.MESSAGE
        future = self._waiting.pop(key, None)
        if future is None:
            if is_message and not outcome.failed:
                self._pass_on(name_of(key), outcome.value)
        elif not outcome.failed:
            future.set_result(outcome.value)
        elif is_message:
            future.set_exception(TimeoutError(f"no message {name_of(key)} came in time"))
        else:
            future.set_exception(StepFailed(key, outcome.error))
        self._run()

    def _pass_on(self, name: str, data: Any) -> None:
        """Give a message whose wait was cancelled to the oldest other wait of its name, or keep it for the next."""
        for key in self._waiting:
            if self._effects[key].kind is Kind.MESSAGE and name_of(key) == name:
                self._waiting.pop(key).set_result(data)
                return
        self._unread.setdefault(name, deque()).append(data)

    def _run(self) -> None:
        """Run the function until it is idle. Raises `NonDeterministicError` if it has asked for a wrong effect."""
        try:
            self._loop.run_until_idle()
        except EndlessLoopError as error:
            self._exceeded = error
        if self._mismatch is not None:
            raise self._mismatch

    def _decide(self) -> Decision:
        """Return what the idle function wants."""
        if self._exceeded is not None:
            return Decision(finished=Finished(error=self._exceeded))
        if self._main is not None and self._main.done():
            return Decision(finished=_finish(self._main))
        if not self._waiting:
            reason = "every branch of the function waits for something that is not an effect, and nothing can wake it"
            return Decision(finished=Finished(error=RuntimeError(reason)))
        new, self._new = self._new, []
        dropped, self._dropped = self._dropped, []
        return Decision(
            [self._effects[key] for key in new if self._begins(key)],
            [self._effects[key] for key in dropped if self._has_no_outcome(key)],
        )

    def _begins(self, key: str) -> bool:
        """Return whether a new effect begins. A stored wait has begun, and a stored result is there."""
        if key not in self._waiting:  # it was dropped, or has a message already
            return False
        return key not in self._stored or (self._effects[key].kind is Kind.STEP and self._has_no_outcome(key))

    def _has_no_outcome(self, key: str) -> bool:
        """Return whether the service has stored no outcome of an effect, as far as was known at the start."""
        stored = self._stored.get(key)
        return stored is None or stored.outcome is None

    def _unmatched(self, stored: StoredEffect) -> NonDeterministicError:
        """Return the error of a stored effect that the idle function does not have, or has not got to."""
        return NonDeterministicError(_describe(stored.kind, stored.key), self._describe_state())

    def _describe_state(self) -> str:
        """Return what the idle function does: it has ended, or which effects it waits for."""
        if self._main is not None and self._main.done():
            return "the end of the function"
        waiting = [_describe(self._effects[key].kind, key) for key in self._waiting]
        more = f" and {len(waiting) - _MOST_SHOWN} more" if len(waiting) > _MOST_SHOWN else ""
        return ", ".join(waiting[:_MOST_SHOWN]) + more or "no effect"


async def _call(function: Callable[[Context, Any], Awaitable[Any]], context: Context, data: Any) -> Any:
    """Call the function inside a task, so that an error of the call, or of its input, is an error of the workflow."""
    return await function(context, read_data(second_type(function), data, "the input"))


async def _close(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def _finish(main: asyncio.Task[Any]) -> Finished:
    """Return how the function ended. A cancelled function has failed."""
    if main.cancelled():
        return Finished(error=RuntimeError("the function was cancelled by itself"))
    error = main.exception()
    return Finished(main.result()) if error is None else Finished(error=error)


def _describe(kind: str, key: str) -> str:
    return f"the {kind} {key}"
