"""Workflows and workers as text. Pure."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from timer_service.cli.output.table import Table
from timer_service.cli.output.text import field_lines, format_count, format_distance, format_time, one_line, style
from timer_service.client import WorkerInfo, Workflow, WorkflowDetail, WorkflowEffect

_HEAD = ("WORKFLOW", "STATUS", "TYPE", "CREATED", "", "WHY")
_EFFECTS = ("N", "EFFECT", "STATUS", "KIND", "RESULT")
_WORKERS = ("WORKER", "STATUS", "QUEUE", "SLOTS", "SEEN", "TYPES")
_COLOURS = {
    "completed": "green",
    "done": "green",
    "online": "green",
    "running": "cyan",
    "cancelled": "yellow",
    "failed": "red",
    "blocked": "red",
}
_LONGEST_RESULT = 200


def workflow_table(workflows: Sequence[Workflow], now: datetime, width: int | None) -> Iterator[str]:
    """Return workflows as the lines of a table."""
    rows = [
        (
            each.name,
            _status(each),
            one_line(each.type),
            format_time(each.created_at),
            format_distance(each.created_at, now),
            _why(each),
        )
        for each in workflows
    ]
    return Table(_HEAD, rows, width, id_column=0, status_column=1, colours=_COLOURS).lines()


def worker_table(workers: Sequence[WorkerInfo], now: datetime, width: int | None) -> Iterator[str]:
    """Return workers as the lines of a table."""
    rows = [
        (
            one_line(each.name or each.worker_id),
            "online" if each.online else "offline",
            one_line(each.queue),
            str(each.slots),
            format_distance(each.seen_at, now),
            one_line(", ".join(each.types)),
        )
        for each in workers
    ]
    return Table(_WORKERS, rows, width, id_column=0, status_column=1, colours=_COLOURS).lines()


def workflow_lines(detail: WorkflowDetail, now: datetime, width: int | None) -> Iterator[str]:
    """Return a workflow as lines: its fields, and a row for each effect."""
    workflow = detail.workflow
    status = one_line(_status(workflow))
    title = style(one_line(f"{workflow.tenant}/{workflow.name}"), bold=True)
    yield f"{title}  {style(status, colour=_COLOURS.get(status))}"
    is_open = workflow.ended_at is None
    no_worker = "no worker asks for this type and queue" if is_open and not detail.has_workers else None
    failure = detail.failure
    yield from field_lines(
        {
            "type": one_line(workflow.type),
            "queue": one_line(workflow.queue),
            "created": _at(workflow.created_at, now),
            "continues": _at(workflow.due_at, now) if is_open else None,
            "deadline": _at(workflow.deadline_at, now) if is_open else None,
            "ended": _at(workflow.ended_at, now),
            "worker": workflow.worker_id or no_worker,
            "blocked": workflow.blocked_by and one_line(workflow.blocked_by),
            "why": _why(workflow) or None,
            "error": None if failure is None else one_line(f"{failure.type}: {failure.message}"),
            "unread": format_count(workflow.messages, "message") if workflow.messages else None,
            "input": _text(detail.input),
            "result": _text(detail.result),
        }
    )
    if detail.effects:
        rows = [_effect_row(each, now) for each in detail.effects]
        yield from Table(_EFFECTS, rows, width, id_column=1, status_column=2, colours=_COLOURS).lines()


def _effect_row(effect: WorkflowEffect, now: datetime) -> tuple[str, ...]:
    parts = []
    if effect.error is not None:
        parts.append(f"{effect.error.type}: {effect.error.message}")
    elif effect.result is not None:
        parts.append(json.dumps(effect.result, ensure_ascii=False)[:_LONGEST_RESULT])
    if effect.failures:
        parts.append(f"{format_count(effect.failures, 'attempt')} failed")
    if effect.status == "open" and effect.due_at is not None:
        parts.append(format_distance(effect.due_at, now))
    number = "" if effect.seq is None else str(effect.seq)
    return number, one_line(effect.key), effect.status, effect.kind, one_line("; ".join(parts))


def _status(workflow: Workflow) -> str:
    return "blocked" if workflow.blocked_by is not None else workflow.status


def _why(workflow: Workflow) -> str:
    parts = [workflow.code, workflow.step and f"step {workflow.step}", workflow.reason, workflow.blocked_by]
    return one_line(": ".join(part for part in parts if part))


def _at(at: datetime | None, now: datetime) -> str | None:
    return None if at is None else f"{format_time(at, milliseconds=True)}  ({format_distance(at, now)})"


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)[:_LONGEST_RESULT]
