"""`timer-service workflows`. These commands use the broker only, never the database."""

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from timer_service.cli.output import (
    fields_of,
    format_count,
    format_distance,
    format_time,
    one_line,
    print_fields,
    print_table,
    style,
)
from timer_service.cli.parameters import (
    Tenant,
    choice,
    duration,
    identifier,
    identifier_option,
    instant,
    json_argument,
    json_text,
    read_duration,
)
from timer_service.cli.resources import Outcomes, Rows, get_command, list_command, outcome_command, print_counts
from timer_service.client import (
    Outcome,
    TimerClient,
    WorkerInfo,
    Workflow,
    WorkflowCounts,
    WorkflowDetail,
    WorkflowEffect,
    WorkflowEndedError,
    WorkflowStatus,
)

app = typer.Typer(help="Durable functions: start, send messages, look up, cancel, retry.", no_args_is_help=True)

Name = Annotated[str, identifier("WORKFLOW", "The workflowId.")]
TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="The type: the name of its function.")]
Message = Annotated[str, typer.Argument(metavar="MESSAGE", help="The name of the message.")]
Input = Annotated[str | None, json_text("The input of the function. Default: null.", "--input")]
Data = Annotated[str | None, json_text("JSON. Default: null.")]
Queue = Annotated[str | None, typer.Option(metavar="QUEUE", help="The queue of its workers. Default: default.")]
StartIn = Annotated[
    timedelta | None, typer.Option("--in", parser=read_duration, metavar="DURATION", help="Begin after: 10s, 5m, 2h.")
]
StartAt = Annotated[datetime | None, instant("Begin at: ISO 8601 with an offset.", "--at")]
Deadline = Annotated[timedelta | None, duration("It fails if it takes longer; 0s: at once.", "--deadline-in")]
ConcurrencyKey = Annotated[str | None, identifier_option("KEY", "Skip the start if another one with this key is open.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for its end, and print its result.")]
MessageId = Annotated[str | None, identifier_option("ID", "A second message with this id has no effect.")]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why.")]
StatusFilter = Annotated[WorkflowStatus | None, choice("Only workflows in this status.", "--status")]
TypeFilter = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only workflows of this type.")]

_COLOURS = {
    "completed": "green",
    "done": "green",
    "online": "green",
    "running": "cyan",
    "cancelled": "yellow",
    "failed": "red",
    "blocked": "red",
}
_EFFECTS = ("N", "EFFECT", "STATUS", "KIND", "RESULT")
_LONGEST_RESULT = 200


def _status(workflow: Workflow) -> str:
    return "blocked" if workflow.blocked_by is not None else workflow.status


def _why(workflow: Workflow) -> str:
    parts = [workflow.code, workflow.step and f"step {workflow.step}", workflow.reason, workflow.blocked_by]
    return ": ".join(part for part in parts if part)


def _row(workflow: Workflow, now: datetime) -> tuple[str, ...]:
    created = format_time(workflow.created_at), format_distance(workflow.created_at, now)
    return workflow.name, _status(workflow), workflow.type, *created, _why(workflow)


WORKFLOWS = Rows(
    query="list-workflows",
    field="workflows",
    view=Workflow,
    head=("WORKFLOW", "STATUS", "TYPE", "CREATED", "", "WHY"),
    row=_row,
    colours=_COLOURS,
)
WORKERS = Rows(
    query="list-workers",
    field="workers",
    view=WorkerInfo,
    head=("WORKER", "STATUS", "QUEUE", "SLOTS", "SEEN", "TYPES"),
    row=lambda worker, now: (
        worker.name or worker.worker_id,
        "online" if worker.online else "offline",
        worker.queue,
        str(worker.slots),
        format_distance(worker.seen_at, now),
        ", ".join(worker.types),
    ),
    colours=_COLOURS,
)
_OUTCOMES = Outcomes(
    lambda outcome: outcome.workflow.status if outcome.workflow else "",
    {"started", "sent", "kept", "cancelled", "retried", "unchanged"},
    {
        "skipped_busy": "another open workflow has its concurrency key",
        "unchanged": "already in that state",
        "exists": "it has another type, queue or input; it is not changed",
        "kept": "stored until the workflow starts",
        "mailbox_full": "too many messages of this workflow are unread; send it again later",
        "not_found": "there is no such workflow",
        "already_ended": "it has ended",
    },
)
_AFTER_START = {
    "skipped_busy": "another open workflow has its concurrency key; start it again under another id",
    "unchanged": "it was started before, with the same type, queue and input",
}


def print_workflow(detail: WorkflowDetail) -> None:
    """Print a workflow: its fields, and a row for each effect."""
    workflow, now = detail.workflow, datetime.now(UTC)
    status = one_line(_status(workflow))
    title = style(one_line(f"{workflow.tenant}/{workflow.name}"), bold=True)
    typer.echo(f"{title}  {style(status, colour=_COLOURS.get(status))}")
    fields = fields_of(workflow, now, leave_out=["name", "status", "code", "step", "reason", "effects", "messages"])
    if workflow.ended_at is None:
        fields |= (
            {} if workflow.worker_id or detail.has_workers else {"worker": "no worker asks for this type and queue"}
        )
    else:
        fields.pop("due at", None)
    failure = detail.failure
    about = fields_of(detail, now, leave_out=["workflow", "has_workers", "failure", "effects"])
    print_fields(
        {
            **fields,
            "why": _why(workflow),
            "error": None if failure is None else f"{failure.type}: {failure.message}",
            "unread": format_count(workflow.messages, "message") if workflow.messages else None,
            **{name: text[:_LONGEST_RESULT] for name, text in about.items()},
        }
    )
    if detail.effects:
        print_table(_EFFECTS, [_effect_row(each, now) for each in detail.effects], _COLOURS)


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
    return number, effect.key, effect.status, effect.kind, "; ".join(parts)


def _check_start(*, start_in: timedelta | None, start_at: datetime | None, **_: object) -> None:
    if start_in is not None and start_at is not None:
        raise typer.BadParameter("Give either --in or --at.")


def _explain_start(outcome: Outcome) -> str | None:
    return _AFTER_START.get(outcome.name)


@outcome_command(app, _OUTCOMES, check=_check_start, explain=_explain_start)
async def start(
    client: TimerClient,
    tenant: Tenant,
    workflow: Name,
    workflow_type: TypeName,
    data: Input = None,
    queue: Queue = None,
    start_in: StartIn = None,
    start_at: StartAt = None,
    deadline: Deadline = None,
    concurrency_key: ConcurrencyKey = None,
    wait: Wait = False,
) -> Outcome:
    """Start a workflow of a type. A worker executes its function."""
    outcome = await client.workflows.start(
        tenant,
        workflow,
        workflow_type,
        **json_argument(data),
        queue=queue,
        start_in=start_in,
        start_at=start_at,
        deadline_in=deadline,
        concurrency_key=concurrency_key,
    )
    if wait and outcome.name in _OUTCOMES.with_effect:
        await _print_result(client, tenant, workflow, outcome)
    return outcome


async def _print_result(client: TimerClient, tenant: str, workflow: str, outcome: Outcome) -> None:
    """Print the result of a workflow when it ends, and nothing more."""
    typer.echo(one_line(f"{outcome.name}: {tenant}/{workflow}. Waiting for its end."), err=True)
    try:
        typer.echo(json.dumps(await client.workflows.result(tenant, workflow)))
    except WorkflowEndedError as error:
        typer.echo(one_line(str(error)), err=True)
        raise typer.Exit(1) from error
    raise typer.Exit


@outcome_command(app, _OUTCOMES)
async def send(
    client: TimerClient,
    tenant: Tenant,
    workflow: Name,
    message: Message,
    data: Data = None,
    message_id: MessageId = None,
) -> Outcome:
    """Send a message to a workflow, also before it starts."""
    return await client.workflows.send(tenant, workflow, message, **json_argument(data), message_id=message_id)


@outcome_command(app, _OUTCOMES)
async def cancel(client: TimerClient, tenant: Tenant, workflow: Name, reason: Reason = None) -> Outcome:
    """Cancel a workflow that has not ended."""
    return await client.workflows.cancel(tenant, workflow, reason=reason)


@outcome_command(app, _OUTCOMES)
async def retry(client: TimerClient, tenant: Tenant, workflow: Name, deadline: Deadline = None) -> Outcome:
    """Continue a failed workflow. A step that failed last runs again."""
    return await client.workflows.retry(tenant, workflow, deadline_in=deadline)


@get_command(app, print_workflow)
async def get(client: TimerClient, tenant: Tenant, workflow: Name) -> WorkflowDetail | None:
    """Show one workflow, with its steps, sleeps and waits."""
    return await client.workflows.get(tenant, workflow)


list_command(app, WORKFLOWS, "List workflows in order of creation.", status=StatusFilter, type=TypeFilter)
list_command(app, WORKERS, "List the workers that execute workflows.", name="workers")


def _print_counts(counts: WorkflowCounts) -> None:
    print_counts(counts.by_status, exact=counts.exact)


@get_command(app, _print_counts)
async def count(client: TimerClient, tenant: Tenant) -> WorkflowCounts:
    """Count workflows by status."""
    return await client.workflows.count(tenant)
