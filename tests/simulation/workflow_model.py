"""A plain model of workflows: commands, tasks and their leases, effects and messages. See docs/workflows.md.

It knows no worker: a report says what happened to a task, and the model says what the service must store of it.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.simulation.workflow_programs import BRANCHING
from timer_service.core.values.message import Position

_DELAYS_OF_LOST = {3: 10_000, 4: 20_000, 5: 40_000, 6: 80_000, 7: 160_000, 8: 300_000, 9: 300_000}
_MOST_BLOCK_MS = 300_000


class WorkflowName(NamedTuple):
    tenant: str
    workflow: str


@dataclass
class EffectModel:
    """A step, a sleep or a wait for a message."""

    kind: str
    due: int | None = None
    status: str = "open"
    seq: int | None = None
    failures: int = 0
    result: Any = None

    @property
    def is_over(self) -> bool:
        """Whether it is a wait whose end the function has not got."""
        return self.kind != "step" and self.status != "open" and self.seq is None


@dataclass
class MessageModel:
    """A message to a workflow."""

    name: str
    position: Position
    sent_at: int
    data: Any
    message_id: str | None
    is_taken: bool = False


class Rules(NamedTuple):
    """What the effect of a report depends on."""

    now: int
    may_time_out: bool
    retry_at: Callable[[str], int]
    """Returns when a failed step starts again. The service has drawn it."""


@dataclass
class WorkflowModel:
    """One workflow, or the messages to one that is not started."""

    name: WorkflowName
    definition: Mapping[str, Any] | None = None
    """The StartWorkflow."""
    status: str = "cancelled"
    available: int | None = None
    """When a worker may claim it."""
    due: int | None = None
    """When it becomes available if the lease is left out."""
    deadline: int | None = None
    created: int = 0
    place: int | None = None
    """Its place in the queue of its concurrency key."""
    frees_key: bool = False
    """Whether the key is to be looked at because of it."""
    token: str | None = None
    lease_ms: int = 0
    number: int = 0
    attempt: int = 0
    renewed: int = 0
    """The last of these attempts whose lease was renewed."""
    blocks: int = 0
    retries: int = 0
    settled_by: str | None = None
    code: str | None = None
    effects: dict[str, EffectModel] = field(default_factory=dict)
    messages: list[MessageModel] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    """Every token that it ever had."""
    quiet_ends: int = 0
    """How many tasks were ended by workers that had no step in progress."""
    reported: Counter[str] = field(default_factory=Counter)
    """How many attempts of each step were stored."""
    events: list[tuple[str, Any]] = field(default_factory=list)
    """The types of its events, and what tells them apart."""

    @property
    def is_open(self) -> bool:
        return self.is_started or self.status == "queued"

    @property
    def is_started(self) -> bool:
        """Whether it is open and has its concurrency key, if any."""
        return self.status in {"waiting", "running", "parked"}

    @property
    def type(self) -> str:
        assert self.definition is not None
        return str(self.definition["type"])

    @property
    def branches(self) -> bool:
        """Whether its function may end while steps are in progress."""
        assert self.definition is not None
        return self.definition["input"]["program"] in BRANCHING

    @property
    def concurrency_key(self) -> str | None:
        return None if self.definition is None else self.definition.get("concurrencyKey")

    @property
    def limit(self) -> int:
        """How many workflows with its key may be started, with it."""
        assert self.definition is not None
        return int(self.definition.get("concurrencyLimit", 1))

    @property
    def replaces(self) -> bool:
        """Whether it starts in place of another one."""
        return self.definition is not None and self.definition.get("whenBusy") == "replace"

    @property
    def seen(self) -> int:
        return max((each.seq or 0 for each in self.effects.values()), default=0)

    @property
    def waits(self) -> bool:
        """Whether it waits for a message."""
        return self.is_open and any(each.kind == "message" and each.status == "open" for each in self.effects.values())

    def unread(self, name: str) -> list[MessageModel]:
        """Return the messages that wait, in the order of their commands."""
        mine = [each for each in self.messages if each.name == name and not each.is_taken]
        return sorted(mine, key=lambda each: each.position)

    # Commands

    def start(self, fields: Mapping[str, Any], sent_at: int, now: int, keys: "KeyModel") -> str:
        if self.definition is not None:
            return "unchanged" if _identity(self.definition) == _identity(fields) else "exists"
        self.definition, self.created = fields, sent_at
        if (turn := keys.turn_of(self)) == "skip":
            return "skipped_busy"
        if "deadlineIn" in fields:
            self.deadline = sent_at + fields["deadlineIn"]
        asked_at = min(sent_at, now)
        at = max(asked_at, sent_at + fields["startIn"]) if "startIn" in fields else asked_at
        return self._begin(at, turn, keys, "started")

    def _begin(self, at: int, turn: str, keys: "KeyModel", outcome: str) -> str:
        """Begin at an instant, or wait for the key."""
        self._wait_until(at)
        if turn == "start":
            return outcome
        self.place = keys.last_place(self) + 1
        self.status, self.available, self.frees_key = "queued", None, self.replaces or self.frees_key
        return "queued"

    def take_key(self, now: int) -> None:
        """It is its turn."""
        self.place = None
        self._wait_until(max(self.due or 0, now))

    def replace_by_another(self) -> None:
        """It ends for another workflow with its key."""
        is_looked_at = self.frees_key
        self.end("cancelled", "WorkflowCancelled", "replaced")
        self.frees_key = is_looked_at

    def send(self, fields: Mapping[str, Any], position: Position, sent_at: int, now: int) -> str:
        message_id = fields.get("messageId")
        if any(message_id and each.message_id == message_id for each in self.messages):
            return "unchanged"
        if self.definition is not None and not self.is_open:
            return "already_ended"
        self.messages.append(MessageModel(fields["name"], position, sent_at, fields.get("data"), message_id))
        if self.definition is None:
            return "kept"
        is_awaited = any(
            each.kind == "message" and each.status == "open" and key.partition(":")[0] == fields["name"]
            for key, each in self.effects.items()
        )
        is_asleep = self.status == "waiting" and not self.blocks and self.due is not None and self.due > now
        if is_awaited and (self.status == "parked" or is_asleep):
            self._wait_until(min(sent_at, now))
        return "sent"

    def cancel(self) -> str:
        if self.definition is None:
            return "not_found"
        if not self.is_open:
            return "unchanged" if self.status == "cancelled" else "already_ended"
        self.end("cancelled", "WorkflowCancelled", None)
        return "cancelled"

    def retry(self, sent_at: int, now: int, keys: "KeyModel") -> str:
        if self.definition is None:
            return "not_found"
        if self.is_open:
            return "unchanged"
        if self.status != "failed":
            return "already_ended"
        if (turn := keys.turn_of(self)) == "skip":
            return "skipped_busy"
        runs_step_again = self.code in {"STEP_FAILED", "WORKFLOW_ERROR"}
        self.deadline = self.code = None
        self.retries += 1
        self.attempt = self.renewed = self.blocks = 0
        for effect in self.effects.values():
            if runs_step_again and effect.seq == self.seen and effect.kind == "step" and effect.status == "failed":
                effect.status, effect.seq, effect.failures, effect.due = "open", None, 0, min(sent_at, now)
                break
        return self._begin(min(sent_at, now), turn, keys, "retried")

    # Tasks

    def claim(self, token: str, lease_ms: int, rules: Rules) -> None:
        """A worker gets the task."""
        self.status, self.token, self.lease_ms, self.number = "running", token, lease_ms, 0
        self.tokens.add(token)
        self.attempt += 1
        self.settle(rules)
        self._renew(rules.now)

    def renew(self, token: str, rules: Rules) -> bool:
        """Renew the lease. Return whether the token is current."""
        if self.token != token:
            return False
        self.settle(rules)
        self._renew(rules.now)
        self.renewed = self.attempt
        return True

    def report(self, report: Any, rules: Rules) -> str:
        """Store a report and return its outcome."""
        if self.token != report.token:
            return "unchanged" if self.settled_by == report.token else "lost"
        if report.number < self.number:
            return "unchanged"
        self.number = report.number
        for step in report.steps:
            self._end_attempt(step, rules)
        for wait in report.waits:
            length = (wait.ms or 0) if wait.kind == "sleep" else wait.ms
            self.effects.setdefault(
                wait.key, EffectModel(str(wait.kind), None if length is None else rules.now + length)
            )
        self.settle(rules)
        for each in report.seen:
            assert self.effects[each.key].status != "open", f"{each} of {self.name} has no result"
            assert self.effects[each.key].seq == each.seq or each.seq == self.seen + 1, f"{each} of {self.name}"
            self.effects[each.key].seq = each.seq
        return self._then(report.then, rules)

    def _end_attempt(self, step: Any, rules: Rules) -> None:
        effect = self.effects.setdefault(step.key, EffectModel("step"))
        if effect.status != "open" or step.attempt <= effect.failures:
            return
        assert step.attempt == effect.failures + 1, f"{step} of {self.name} after {effect}"
        self.reported[step.key] += 1
        if step.error is None:
            effect.status, effect.result, effect.due = "done", step.result, None
            return
        assert self.definition is not None
        effect.failures += 1
        if not step.retryable or effect.failures >= self.definition["retry"]["maxAttempts"]:
            effect.status, effect.due = "failed", None
        else:
            effect.due = rules.retry_at(step.key)
            longest = 1000 * 2 ** (effect.failures - 1)  # retry: first PT1S, factor 2
            assert rules.now <= effect.due <= rules.now + longest, f"{step} of {self.name} is due in {effect}"

    def settle(self, rules: Rules) -> None:
        """End the waits that are over."""
        for key in sorted(self.effects, key=lambda key: (key.partition(":")[0], int(key.partition(":")[2] or 0))):
            effect = self.effects[key]
            if effect.kind == "step" or effect.status != "open":
                continue
            is_due = effect.due is not None and effect.due <= rules.now
            if effect.kind == "sleep":
                effect.status = "done" if is_due else "open"
                continue
            unread = self.unread(key.partition(":")[0])
            if unread and (effect.due is None or not is_due or unread[0].sent_at <= effect.due):
                unread[0].is_taken = True
                effect.status, effect.result = "done", unread[0].data
            elif is_due and rules.may_time_out:
                effect.status = "failed"

    def _then(self, then: Any, rules: Rules) -> str:
        match then.action:
            case "continue":
                return self._go_on(rules, "recorded")
            case "park":
                return self._park(rules)
            case "complete":
                self._give_back()
                self.quiet_ends += not self.branches
                self.end("completed", "WorkflowCompleted", then.result)
                return "completed"
            case "fail":
                self._give_back()
                self.quiet_ends += not self.branches
                self.fail("STEP_FAILED" if then.step else "WORKFLOW_ERROR", then.step, then.error.message)
                return "failed"
            case _:
                self._release(then, rules.now)
                return "released"

    def _go_on(self, rules: Rules, outcome: str) -> str:
        self.attempt = self.renewed = self.blocks = 0
        self._renew(rules.now)
        return outcome

    def _park(self, rules: Rules) -> str:
        opened = [each for each in self.effects.values() if each.status == "open"]
        may_start = any(each.kind == "step" and (each.due or 0) <= rules.now for each in opened)
        if may_start or any(each.is_over for each in self.effects.values()):
            return self._go_on(rules, "resumed")
        self._give_back()
        self.quiet_ends += 1
        due = min((each.due for each in opened if each.due is not None), default=None)
        if not opened or any(each.status != "open" and each.seq is None for each in self.effects.values()):
            due = rules.now
        elif due is not None and due <= rules.now:
            due = rules.now + 250
        if due is None:
            self.status, self.available, self.due = "parked", None, None
        else:
            self._wait_until(due)
        return "parked"

    def _release(self, then: Any, now: int) -> None:
        attempt, blocks = max(self.attempt - 1, 0), self.blocks
        renewed = min(self.renewed, attempt)
        self._give_back()
        self.attempt, self.renewed, self.blocks = attempt, renewed, blocks
        if then.reason == "shutdown":
            self._wait_until(now)
            return
        self.blocks += 1
        self._wait_until(now + min(5000 * 2 ** (self.blocks - 1), _MOST_BLOCK_MS))
        if self.blocks == 3:
            self.events.append(("WorkflowBlocked", then.error))

    def _give_back(self) -> None:
        self.settled_by, self.token = self.token, None
        self.attempt = self.renewed = self.blocks = 0

    def hold_undecided(self, now: int) -> None:
        """The workflow was not sent, because a timeout cannot be decided yet."""
        self._wait_until(now + 250)

    def fail(self, code: str, step: str | None = None, error: str | None = None) -> None:
        self.end("failed", "WorkflowFailed", (code, step, error))
        self.code = code

    def end(self, status: str, event: str, about: Any) -> None:
        self.status, self.token, self.available, self.due = status, None, None, None
        self.place, self.frees_key = None, self.concurrency_key is not None
        self.events.append((event, json.dumps(about)))

    def _wait_until(self, at: int) -> None:
        self.status, self.token, self.available, self.due = "waiting", None, at, at

    def _renew(self, now: int) -> None:
        self.available = now + self.lease_ms + _DELAYS_OF_LOST.get(self.attempt, 0)


class KeyModel:
    """The concurrency keys of workflows of one tenant."""

    def __init__(self, workflows: Mapping[WorkflowName, WorkflowModel]) -> None:
        self._workflows = workflows

    def _with_key_of(self, workflow: WorkflowModel) -> list[WorkflowModel]:
        others = [each for each in self._workflows.values() if each is not workflow]
        return [each for each in others if each.concurrency_key == workflow.concurrency_key]

    def turn_of(self, workflow: WorkflowModel) -> str:
        """Return whether a workflow starts, is queued or is skipped: it passes no queued one."""
        if workflow.concurrency_key is None:
            return "start"
        others = self._with_key_of(workflow)
        started = sum(each.is_started for each in others)
        if started < workflow.limit and not any(each.status == "queued" for each in others):
            return "start"
        assert workflow.definition is not None
        return "skip" if workflow.definition.get("whenBusy", "skip") == "skip" else "queue"

    def last_place(self, workflow: WorkflowModel) -> int:
        """Return the last place in the queue of the key of a workflow."""
        return max((each.place or 0 for each in self._with_key_of(workflow)), default=0)

    def look(self, key: str, because_of: Sequence[WorkflowModel], now: int) -> None:
        """Start the workflows with a key whose turn it is. Those of `because_of` that replace others go first."""
        mine = [each for each in self._workflows.values() if each.concurrency_key == key]
        in_order = sorted(because_of, key=lambda each: each.place or 0)
        replacing = [each for each in in_order if each.place and each.replaces]
        for each in because_of:
            each.frees_key = False
        for each in replacing[:-1]:
            each.replace_by_another()
        for newest in replacing[-1:]:
            while len(started := [each for each in mine if each.is_started]) >= newest.limit:
                min(started, key=lambda each: (each.created, each.name.workflow)).replace_by_another()
            newest.take_key(now)
        for each in sorted((each for each in mine if each.place), key=lambda each: each.place or 0):
            if sum(each.is_started for each in mine) >= each.limit:
                break
            each.take_key(now)


def _identity(fields: Mapping[str, Any]) -> str:
    """Return what is the same in two StartWorkflow of one workflow. The order of the names in the input counts."""
    return json.dumps([fields.get(name) for name in ("type", "queue", "input")])
