"""What a worker reports about a task, as JSON text. Pure."""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from timer_service.client.errors import leaves_of
from timer_service.worker.errors import ErrorText, StepFailed, describe_error
from timer_service.worker.steps import Attempt
from timer_service.worker.values import Effect, Finished, write_result

REPORT_BYTES = 512 * 1024
"""The most bytes of a request with reports."""
_PART_BYTES = REPORT_BYTES - 160 * 1024
"""The most bytes of the items in one report: the end of a function, with its result, must fit, too."""
_BYTES_PER_BRACKET = 4
"""A request of `REPORT_BYTES` may have this many bytes per array or object."""
CONTINUE, PARK = '{"action":"continue"}', '{"action":"park"}'
RELEASE = '{"action":"release","reason":"shutdown"}'


class Item(NamedTuple):
    """One thing to report, as JSON texts. A result and its number are one item, because one report has both."""

    step: str = ""
    seen: str = ""
    wait: str = ""
    seq: int = 0
    """The number of the result, if it has one."""
    wait_key: str = ""
    wait_ms: int | None = None
    """The length of the wait that begins, if it has one."""


class Report(NamedTuple):
    """A report as JSON text."""

    text: str
    seq: int
    """The number of results that are stored when the report is."""
    waits: Sequence[tuple[str, int]]
    """The keys and lengths of the waits that it begins."""
    may_end_task: bool
    """Whether the task may be over when the report is stored: it parks, releases or ends it."""


def dump(value: Any) -> str:
    """Return JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def write_attempt(step: Effect, attempt: Attempt) -> str:
    """Return an attempt of a step that has ended, as JSON. A failure may say when the step shall run again."""
    number = step.failures + 1
    if attempt.error is None:
        return f'{{"key":{dump(step.key)},"attempt":{number},"result":{attempt.text}}}'
    assert step.call is not None  # noqa: S101 - only a step has attempts
    optional = {"afterMs": attempt.after_ms, "retry": step.call.retry}
    given = {name: value for name, value in optional.items() if value is not None}
    failure = {"error": error_view(attempt.error), "retryable": attempt.is_retryable}
    return dump({"key": step.key, "attempt": number, **failure, **given})


def write_seen(key: str, seq: int) -> str:
    """Return the number of a result that the function got, as JSON."""
    return f'{{"key":{dump(key)},"seq":{seq}}}'


def write_wait(effect: Effect) -> str:
    """Return a sleep or a wait for a message that begins, as JSON."""
    length = {} if effect.ms is None else {"ms": effect.ms}
    return dump({"key": effect.key, "kind": effect.kind, **length})


def error_view(error: ErrorText) -> Mapping[str, str]:
    """Return an error in its wire form."""
    return {"type": error.type, "message": error.message}


def take_part(items: deque[Item]) -> list[Item]:
    """Remove and return as many items as fit into one report, at least one if there are any."""
    part: list[Item] = []
    size = 0
    while items:
        size += sum(map(_weigh, (items[0].step, items[0].seen, items[0].wait)))
        if part and size > _PART_BYTES:
            break
        part.append(items.popleft())
    return part


def _weigh(text: str) -> int:
    """Return the bytes of an item, or more if it has many arrays and objects: their number is limited, too."""
    return max(len(text.encode()) + 1, _BYTES_PER_BRACKET * (text.count("[") + text.count("{")))


def write_report(workflow_id: str, token: str, number: int, part: Sequence[Item], then: str) -> str:
    """Return a report as JSON: its parts, and `then`, which is what follows."""
    lists = (
        f'"{name}":[{",".join(texts)}],'
        for name, texts in (
            ("steps", [item.step for item in part if item.step]),
            ("seen", [item.seen for item in part if item.seen]),
            ("waits", [item.wait for item in part if item.wait]),
        )
        if texts
    )
    about = f'"workflowId":{dump(workflow_id)},"token":{dump(token)},"number":{number},'
    return f'{{{about}{"".join(lists)}"then":{then}}}'


def end_of_function(finished: Finished) -> str:
    """Return the `then` of the last report, as JSON."""
    if finished.error is None:
        try:
            return f'{{"action":"complete","result":{write_result(finished.result, "the result of the workflow")}}}'
        except ValueError as error:
            return dump({"action": "fail", "error": error_view(describe_error(error))})
    step = _failed_step(finished.error)
    named = {} if step is None else {"step": step}
    return dump({"action": "fail", "error": error_view(describe_error(finished.error)), **named})


def _failed_step(error: BaseException) -> str | None:
    """Return the key of the step whose failure ended the function, or None if it has, in a group, another error too."""
    leaves = list(leaves_of(error))
    failed = [leaf.key for leaf in leaves if isinstance(leaf, StepFailed)]
    return failed[0] if len(failed) == len(leaves) else None
