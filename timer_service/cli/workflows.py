"""`timer-service workflows`. These commands use the broker only, never the database."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from timer_service.cli import output, parameters
from timer_service.cli.many import retry_command
from timer_service.cli.resources import Outcomes, Resource, Rows, print_counts
from timer_service.client import (
    Outcome,
    TimerClient,
    TimerServiceError,
    WorkerInfo,
    Workflow,
    WorkflowDetail,
    WorkflowEffect,
    WorkflowEndedError,
    WorkflowStatus,
)

app = typer.Typer(help="Durable functions: start, send messages, look up, cancel, retry.", no_args_is_help=True)

NAME = parameters.identifier("WORKFLOW", "The id of the workflow.")
DEADLINE = parameters.duration("It fails if it takes longer; 0s: at once.")
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
    """Return why a workflow failed, was cancelled or is blocked; empty if none of these."""
    step = workflow.step and f"step {workflow.step}"
    if (failure := workflow.failure) is not None:
        step = failure.message if step else f"{failure.type}: {failure.message}"  # the text names the step
    parts = [workflow.code, step, workflow.reason, workflow.blocked_by]
    return ": ".join(part for part in parts if part)


def _waits_for(workflow: Workflow, now: datetime) -> str:
    """Return what a workflow without a worker waits for; empty if it runs or has ended."""
    if workflow.status == "queued":
        return "waits for its key" + (f", behind {workflow.queued_behind}" if workflow.queued_behind else "")
    if workflow.status == "parked":
        return f"waits for message {', '.join(workflow.waits_for or ())}"
    if workflow.status != "waiting" or workflow.due_at is None:
        return ""
    if workflow.has_workers is False:
        return "no worker asks for this type and queue"
    if workflow.due_at > now:
        return f"continues {output.format_distance(workflow.due_at, now)}"
    return f"waits for a worker since {output.format_time(workflow.due_at)}"


def _row(workflow: Workflow, now: datetime) -> tuple[str, ...]:
    created = output.format_time(workflow.created_at), output.format_distance(workflow.created_at, now)
    return workflow.workflow_id, _status(workflow), workflow.type, *created, _why(workflow) or _waits_for(workflow, now)


LIST = Rows(
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
        output.format_distance(worker.seen_at, now),
        ", ".join(worker.types),
    ),
    colours=_COLOURS,
)
WORKFLOWS = Resource(
    app,
    lambda client: client.workflows,
    Outcomes(
        lambda outcome: outcome.workflow.status if outcome.workflow else "",
        {"started", "queued", "sent", "kept", "cancelled", "retried", "unchanged"},
        {
            "queued": "it starts when it is its turn",
            "skipped_busy": "its concurrency key is busy",
            "unchanged": "already in that state",
            "exists": "it has another type, queue or input; it is not changed",
            "kept": "stored until the workflow starts",
            "mailbox_full": "too many messages of this workflow are unread; send it again later",
            "not_found": "there is no such workflow",
            "already_ended": "it has ended",
        },
    ),
)
_AFTER_START = {
    "skipped_busy": "its concurrency key is busy; start it again under another id, or with --when-busy queue",
    "unchanged": "it was started before, with the same type, queue and input",
}


def print_workflow(detail: WorkflowDetail) -> None:
    """Print a workflow: its fields, and a row for each effect."""
    workflow, now = detail.workflow, datetime.now(UTC)
    texts = {"status": _status(workflow), "why": _why(workflow)}
    if workflow.ended_at is None and workflow.worker_id is None and not detail.has_workers:
        texts["worker"] = "no worker asks for this type and queue"
    texts["leases in a row"] = str(workflow.attempt or "")
    texts["unread messages"] = str(workflow.messages or "")
    left_out = ["workflow_id", "status", "code", "step", "reason", "effects", "attempt", "messages"]
    if workflow.ended_at is not None:
        left_out.append("due_at")  # nothing waits for it
    output.print_value(workflow, f"{workflow.tenant}/{workflow.workflow_id}", texts, leave_out=left_out)
    about = output.fields_of(detail, now, leave_out=["workflow", "has_workers", "effects"])
    output.print_fields({name: text[:_LONGEST_RESULT] for name, text in about.items()})
    if detail.effects:
        output.print_table(_EFFECTS, [_effect_row(each, now) for each in detail.effects], _COLOURS)


def _effect_row(effect: WorkflowEffect, now: datetime) -> tuple[str, ...]:
    """Return the cells of an effect. The last one has its error or result, its failures, and when it goes on."""
    results = []
    if effect.error is not None:
        results.append(f"{effect.error.type}: {effect.error.message}")
    elif effect.result is not None:
        results.append(json.dumps(effect.result, ensure_ascii=False)[:_LONGEST_RESULT])
    if effect.failures:
        results.append(f"{output.format_count(effect.failures, 'attempt')} failed")
    if effect.status == "open" and effect.due_at is not None:
        results.append(output.format_distance(effect.due_at, now))
    number = "" if effect.seq is None else str(effect.seq)
    return number, effect.key, effect.status, effect.kind, "; ".join(results)


def _check_start(*, start_in: Any, start_at: Any, **_: object) -> None:
    if start_in is not None and start_at is not None:
        raise typer.BadParameter("Give either --in or --at.")


async def _note_missing_worker(client: TimerClient, tenant: str, workflow_id: str) -> None:
    """Print a note if no worker asks for the type of a new workflow. One with a wrong type waits for ever."""
    with suppress(TimerServiceError):  # without an answer, the workflow is started all the same
        found = await client.workflows.get(tenant, workflow_id)
        if found is not None and found.workflow.status == "waiting" and not found.has_workers:
            wanted = f"the type {found.workflow.type} in the queue {found.workflow.queue}"
            typer.echo(
                output.one_line(f"No worker asks for {wanted} yet. Check the type, or start a worker."), err=True
            )


async def start(client: TimerClient, *, wait: bool, **given: Any) -> Outcome:
    """Start a workflow and return the outcome. With `wait`, print its result when it ends instead, and exit."""
    tenant, workflow = given["tenant"], given["workflow_id"]
    outcome = await client.workflows.start(**given)
    if outcome.name == "started":
        await _note_missing_worker(client, tenant, workflow)
    if not wait or outcome.name not in {"started", "queued", "unchanged"}:
        return outcome
    typer.echo(output.one_line(f"{outcome.name}: {tenant}/{workflow}. Waiting for its end."), err=True)
    try:
        typer.echo(json.dumps(await client.workflows.result(tenant, workflow)))
    except WorkflowEndedError as error:
        typer.echo(output.one_line(str(error)), err=True)
        raise typer.Exit(1) from error
    raise typer.Exit


WORKFLOWS.command(
    "start",
    "Start a workflow of a type. A worker executes its function.",
    {
        "workflow_id": NAME,
        "workflow_type": parameters.argument("TYPE", "The type: the name of its function."),
        "data": parameters.json_option("The input of the function. Default: null.", "--input"),
        "queue": parameters.option("QUEUE", "The queue of its workers. Default: default."),
        "start_in": parameters.duration("Begin after: 10s, 5m, 2h.", "--in"),
        "start_at": parameters.instant("Begin at: ISO 8601 with an offset.", "--at"),
        "deadline_in": DEADLINE,
        **parameters.CONCURRENCY,
        "wait": Annotated[bool, typer.Option("--wait", help="Wait for its end, and print its result.")],
    },
    call=start,
    check=_check_start,
    explain=lambda outcome: _AFTER_START.get(outcome.name),
)
WORKFLOWS.command(
    "send",
    "Send a message to a workflow, also before it starts.",
    {
        "workflow_id": NAME,
        "name": parameters.argument("MESSAGE", "The name of the message."),
        "data": parameters.json_option("JSON. Default: null."),
        "message_id": parameters.identifier_option("ID", "A second message with this id has no effect."),
    },
)
WORKFLOWS.command(
    "cancel",
    "Cancel a workflow that has not ended.",
    {"workflow_id": NAME, "reason": parameters.option("TEXT", "Why.")},
)
retry_command(
    WORKFLOWS,
    "Continue failed workflows. A step that failed last runs again.",
    "workflow",
    "workflowId",
    lambda client, tenant: (each.workflow_id async for each in client.workflows.list(tenant, status="failed")),
    {"deadline_in": DEADLINE},
    without_effect=["not_found", "already_ended", "skipped_busy", "over_quota"],
)
WORKFLOWS.get("Show one workflow, with its steps, sleeps and waits.", print_workflow, {"workflow_id": NAME})
WORKFLOWS.list(
    LIST,
    "List workflows: open ones, and then those that have ended, each newest first.",
    {
        "status": parameters.choice(WorkflowStatus, "Only workflows in this status."),
        "type": parameters.option("TYPE", "Only workflows of this type."),
    },
)
WORKFLOWS.list(WORKERS, "List the workers that execute workflows.", name="workers")
WORKFLOWS.get("Count workflows by status.", print_counts, name="count")
WORKFLOWS.watch("Print the events of workflows that are published from now on: completed, failed and cancelled.")
