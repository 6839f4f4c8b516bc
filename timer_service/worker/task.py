"""One task of a worker: its function, its steps, and what its next report says. Pure: time is an argument."""

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from timer_service.worker.definition import WorkflowFunction
from timer_service.worker.errors import ErrorText, HiddenTextError, NonDeterministicError, describe_error
from timer_service.worker.names import Identity
from timer_service.worker.replay import Replay
from timer_service.worker.report import (
    CONTINUE,
    PARK,
    RELEASE,
    Item,
    Report,
    dump,
    end_of_function,
    take_part,
    write_attempt,
    write_report,
    write_seen,
    write_wait,
)
from timer_service.worker.steps import DROPPED, Attempt
from timer_service.worker.values import Decision, Effect, Kind, Outcome, StoredEffect

log = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS = 0.1
_GOES_ON = {"recorded", "resumed"}


class RunningTask:
    """A task that a worker holds.

    After each event (`start`, `step_ended`, `waits_over`, `reported`, `end`) the worker asks what to do next:
    `take_steps_to_stop`, `take_steps_to_start`, `next_report` and `wake_at`.

    A step is unbegun until an attempt starts, then running. After a failed attempt it is undecided, until the service
    says whether there is another attempt. A dropped step is one that the function no longer waits for.
    """

    def __init__(
        self, view: Mapping[str, Any], workflow: WorkflowFunction[Any, Any], tenant: str, lease_until: float
    ) -> None:
        self.workflow_id: str = view["workflowId"]
        self.token: str = view["token"]
        self.lease_until = lease_until
        self.is_over = False
        self.mismatch: NonDeterministicError | None = None
        """Why the function does not match its stored effects."""
        self.running: set[str] = set()
        """The keys of the steps in progress."""
        self._identity = Identity(tenant, self.workflow_id, view["startedAt"])
        self._workflow = workflow
        self._input = view.get("input")
        self._replay: Replay | None = None
        self._items: deque[Item] = deque()
        self._steps: dict[str, Effect] = {}
        self._unbegun: dict[str, tuple[Effect, float]] = {}
        """The steps that are unbegun, and when each may start."""
        self._undecided: dict[str, ErrorText] = {}
        self._to_stop: list[str] = []
        self._dropped: set[str] = set()
        self._wait_due: dict[str, float] = {}
        self._end: str | None = None
        """The `then` of the last report, once the function has ended."""
        self._under_way: Report | None = None
        self._reports = 0
        self._stored_seq = 0
        """How many results of the function are stored."""

    # Events

    def start(self, effects: Iterable[Mapping[str, Any]], now: float) -> None:
        """Run the function with all stored effects."""
        stored = [StoredEffect.read(each) for each in effects]
        self._replay = Replay(self._workflow, self._identity, self._input, stored)
        try:
            decision = self._replay.advance()
        except NonDeterministicError as error:
            self._end_by_mismatch(error)
            return
        self._stored_seq = self._replay.seq  # the results so far came from the service
        self._wait_due = {each.key: now + each.over_in_ms / 1000 for each in stored if each.over_in_ms is not None}
        self._apply(decision, now)
        # Outcomes that the service stored, but that no worker gave to the function: each gets the next number now.
        for key, outcome in self._replay.unseen():
            self._give(key, outcome, now)

    def _end_by_mismatch(self, error: NonDeterministicError) -> None:
        """Release the workflow: it runs again later, perhaps by a worker that has the function as it was."""
        log.warning("the workflow %s does not match its stored effects: %s", self.workflow_id, error)
        self.mismatch = error
        self._end = dump({"action": "release", "reason": "non_deterministic", "error": describe_error(error).message})

    def step_ended(self, key: str, attempt: Attempt, now: float) -> None:
        """Note how an attempt of a step ended. The service decides whether a failed step has another attempt."""
        if key not in self.running:  # it was stopped
            return
        self.running.remove(key)
        text = write_attempt(self._steps[key], attempt)
        if attempt.error is None:
            self._give(key, Outcome(from_json(attempt.text)), now, text)
        elif self._end is None:  # else the function has ended, and nothing waits for the step
            self._items.append(Item(step=text))
            self._undecided[key] = attempt.error

    def waits_over(self, views: Iterable[Mapping[str, Any]], now: float) -> None:
        """Give the function the results of its waits that are over."""
        for effect in map(StoredEffect.read, views):
            self._wait_due.pop(effect.key, None)
            if effect.outcome is not None:
                self._give(effect.key, effect.outcome, now)

    def reported(self, reply: Mapping[str, Any], lease_until: float, now: float) -> None:
        """Note the outcome of the report under way."""
        report, self._under_way = self._under_way, None
        if report is None or self.is_over:  # the lease ran out meanwhile, for example
            return
        outcome = reply["outcome"]
        if outcome not in _GOES_ON:
            if outcome in {"lost", "conflict"}:
                log.warning("the report of the workflow %s was not stored: %s", self.workflow_id, outcome)
            self.end()
            return
        self.lease_until = max(self.lease_until, lease_until)
        self._stored_seq = report.seq
        self._wait_due |= {key: now + ms / 1000 for key, ms in report.waits}
        self.waits_over(reply.get("over", ()), now)
        for step in reply.get("failedSteps", ()):
            self._note_decision(step["key"], step.get("startInMs"), now)

    def end(self) -> None:
        """End the task here: the function is interrupted, and its steps stop."""
        self.is_over = True
        self._to_stop += self.running
        self.running.clear()
        if self._replay is not None:
            self._replay.close()

    def stop_steps(self) -> None:
        """Stop the steps in progress. They run again when the next worker has the task."""
        self._to_stop += self.running
        for key in self.running:
            self._unbegun[key] = (self._steps[key], 0)
        self.running.clear()

    # What to do next

    def take_steps_to_stop(self) -> Sequence[str]:
        """Return the keys of the attempts to stop. They are no longer running for this task."""
        found, self._to_stop = self._to_stop, []
        return found

    def take_steps_to_start(self, now: float) -> Sequence[Effect]:
        """Return the steps to start now. They are running from now on.

        A step starts after the results are stored that the function had got before it asked for the step. While a
        report is under way that may end the task, no step starts: its result could not be stored.
        """
        if self._end is not None or self.is_over or (self._under_way is not None and self._under_way.may_end_task):
            return ()
        found = [each for each, at in self._unbegun.values() if at <= now and each.after <= self._stored_seq]
        for effect in found:
            del self._unbegun[effect.key]
            self.running.add(effect.key)
        return found

    def next_report(self, now: float, *, is_draining: bool) -> Report | None:
        """Return the next report, or None if there is nothing to report or a report is under way."""
        if self._under_way is not None or self.is_over:
            return None
        part = take_part(self._items)
        then = CONTINUE if self._items else self._then(now, is_draining)
        is_continue = then == CONTINUE
        is_wait_due = any(at <= now for at in self._wait_due.values())
        if is_continue and not part and not is_wait_due:
            return None
        if is_wait_due:  # the reply to any report says which waits are over; if this one is not, ask again later
            self._wait_due = {key: max(at, now + _LOOK_AGAIN_SECONDS) for key, at in self._wait_due.items()}
        self._reports += 1
        text = write_report(self.workflow_id, self.token, self._reports, part, then)
        waits = [(item.wait_key, item.wait_ms) for item in part if item.wait_ms is not None]
        seq = max([self._stored_seq, *(item.seq for item in part)])
        self._under_way = Report(text, seq, waits, may_end_task=not is_continue)
        return self._under_way

    def wake_at(self, now: float) -> float | None:
        """Return when to ask again although nothing happened: a step may start again, or a wait should be over."""
        starts = [at for _, at in self._unbegun.values()]
        return min((at for at in (*starts, *self._wait_due.values()) if at > now), default=None)

    # Parts of the above

    def _then(self, now: float, is_draining: bool) -> str:  # noqa: FBT001
        """Return what the next report asks for, as JSON, if nothing is left to report after it."""
        if self._end is not None:
            return self._end
        if self._replay is None:  # its effects are still read
            return RELEASE if is_draining else CONTINUE
        if self.running or self._undecided:
            return CONTINUE
        if is_draining and self._unbegun:
            return RELEASE
        may_start = any(at <= now for _, at in self._unbegun.values())
        return CONTINUE if may_start else PARK

    def _give(self, key: str, outcome: Outcome, now: float, step: str = "") -> None:
        """Give the function a result that it has not got, and report its number. `step`: the attempt, as JSON."""
        replay = self._replay
        if replay is None or self._end is not None or self.is_over or replay.has_got(key):
            return
        decision = replay.deliver(key, outcome)
        self._items.append(Item(step=step, seen=write_seen(key, replay.seq), seq=replay.seq))
        self._apply(decision, now)

    def _apply(self, decision: Decision, now: float) -> None:
        """Note what the idle function wants. Its end stops the steps in progress: nothing waits for them."""
        if decision.finished is not None:
            if (error := decision.finished.error) is not None:
                kind = describe_error(error).type
                log.warning("the workflow %s fails: %s", self.workflow_id, kind, exc_info=HiddenTextError(error))
            self._end = end_of_function(decision.finished)
            self._to_stop += self.running
            self.running.clear()
            return
        for effect in decision.begin:
            if effect.kind is Kind.STEP:
                self._steps[effect.key] = effect
                self._unbegun[effect.key] = (effect, now + effect.start_in_ms / 1000)
            else:
                self._items.append(Item(wait=write_wait(effect), wait_key=effect.key, wait_ms=effect.ms))
        for effect in decision.dropped:
            self._drop(effect, now)

    def _drop(self, effect: Effect, now: float) -> None:
        """Fail a step that the function no longer waits for. If the service does not know it, nothing is reported."""
        key = effect.key
        self._dropped.add(key)
        step = self._steps.setdefault(key, effect)
        self._unbegun.pop(key, None)
        if key in self.running:
            self._to_stop.append(key)
            self.step_ended(key, DROPPED, now)
        elif step.is_stored and key not in self._undecided:  # else `_note_decision` fails it
            self._fail_dropped(key)

    def _fail_dropped(self, key: str) -> None:
        """Report one more failure of a dropped step, after which it has no attempt left."""
        self._items.append(Item(step=write_attempt(self._steps[key], DROPPED)))
        self._undecided[key] = DROPPED.error or ErrorText("", "")

    def _note_decision(self, key: str, start_in_ms: int | None, now: float) -> None:
        """Note when the next attempt of a step may start. None: the step has failed, and there is no next attempt."""
        start_at = now + (start_in_ms or 0) / 1000
        error = self._undecided.pop(key, None)
        if error is None:  # no attempt was reported: the step is due by the clock of the service, so it cannot park
            if key in self._unbegun:
                self._unbegun[key] = (self._steps[key], start_at)
            return
        step = self._steps[key]
        self._steps[key] = step._replace(failures=step.failures + 1, is_stored=True)
        if start_in_ms is None:
            self._give(key, Outcome(failed=True, error=error), now)
        elif key in self._dropped:  # it was dropped after its attempt had failed
            self._fail_dropped(key)
        else:
            self._unbegun[key] = (self._steps[key], start_at)
