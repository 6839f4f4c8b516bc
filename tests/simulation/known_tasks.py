"""What the simulated workers know about their tasks, from the requests that they send and the replies that they get."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_GOES_ON = {"recorded", "resumed"}


class TaskName(NamedTuple):
    """A task of a worker. A worker can get a workflow again before it has given it back."""

    worker: str
    workflow: str
    token: str


class KnownTasks:
    """The tasks of all workers. `elapsed` returns the time."""

    def __init__(self, elapsed: Callable[[], float]) -> None:
        self._elapsed = elapsed
        self._newest: dict[tuple[str, str], TaskName] = {}
        """The task that a worker got last of a workflow."""
        self._lost_at: dict[TaskName, float] = {}
        self._ending: Counter[TaskName] = Counter()
        """The reports under way that may end a task."""

    def may_have_ended(self, worker: str, workflow: str) -> bool:
        """Return whether a worker knows that it must start no step: it has lost the task, or a report may end it."""
        task = self._newest[worker, workflow]
        return self._lost_at.get(task, math.inf) < self._elapsed() or self._ending[task] > 0

    def sent(self, worker: str, body: bytes) -> Sequence[TaskName]:
        """Note the reports in a request. Return the tasks that may end with them, for `answered`."""
        reports = json.loads(body).get("reports", ())
        ends = [_name(worker, each) for each in reports if each["then"]["action"] != "continue"]
        self._ending.update(ends)
        return ends

    def answered(self, ends: Sequence[TaskName]) -> None:
        """Note that a worker does not wait for the reply any more."""
        self._ending.subtract(ends)

    def arrived(self, worker: str, body: bytes, reply: Mapping[str, Any]) -> None:
        """Note which tasks a worker gets and loses by a reply."""
        request = json.loads(body)
        if "error" in reply:
            return
        if "types" in request:
            self._newest |= {(worker, each["workflowId"]): _name(worker, each) for each in reply["tasks"]}
        reports = zip(request.get("reports", ()), reply.get("reports", ()), strict=True)
        lost = [_name(worker, each) for each, outcome in reports if outcome["outcome"] not in _GOES_ON]
        lost += [_name(worker, each) for each in reply.get("lost", ())]
        self._lost_at |= dict.fromkeys(lost, self._elapsed())


def _name(worker: str, task: Mapping[str, Any]) -> TaskName:
    return TaskName(worker, task["workflowId"], task["token"])
