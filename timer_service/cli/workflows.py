"""`timer-service workflows`. These commands use the broker only, never the database."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from timer_service.cli.connection import broker_command
from timer_service.cli.output.lists import ListQuery, print_list, read_list
from timer_service.cli.output.outcomes import exit_not_found, print_outcome
from timer_service.cli.output.table import terminal_width
from timer_service.cli.output.text import one_line
from timer_service.cli.output.workflows import worker_table, workflow_lines, workflow_table
from timer_service.cli.parameters import (
    All,
    AsJson,
    Cursor,
    Limit,
    Tenant,
    check_json,
    read_duration,
    read_identifier,
    read_instant,
)
from timer_service.client import (
    Outcome,
    TimerClient,
    WorkerInfo,
    Workflow,
    WorkflowEndedError,
    WorkflowStatus,
)

app = typer.Typer(help="Durable functions: start, send messages, look up, cancel, retry.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(parser=read_identifier, metavar="WORKFLOW", help="The workflowId.")]
TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="The type: the name of its function.")]
Message = Annotated[str, typer.Argument(metavar="MESSAGE", help="The name of the message.")]
Input = Annotated[
    str | None,
    typer.Option("--input", parser=check_json, metavar="JSON", help="The input of the function. Default: null."),
]
Data = Annotated[str | None, typer.Option(parser=check_json, metavar="JSON", help="JSON. Default: null.")]
Queue = Annotated[str | None, typer.Option(metavar="QUEUE", help="The queue of its workers. Default: default.")]
StartIn = Annotated[
    timedelta | None, typer.Option("--in", parser=read_duration, metavar="DURATION", help="Begin after: 10s, 5m, 2h.")
]
StartAt = Annotated[
    datetime | None,
    typer.Option("--at", parser=read_instant, metavar="TIME", help="Begin at: ISO 8601 with an offset."),
]
Deadline = Annotated[
    timedelta | None,
    typer.Option(
        "--deadline-in", parser=read_duration, metavar="DURATION", help="It fails if it takes longer; 0s: at once."
    ),
]
ConcurrencyKey = Annotated[
    str | None,
    typer.Option(parser=read_identifier, metavar="KEY", help="Skip the start if another one with this key is open."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for its end, and print its result.")]
MessageId = Annotated[
    str | None, typer.Option(parser=read_identifier, metavar="ID", help="A second message with this id has no effect.")
]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why.")]
StatusFilter = Annotated[
    WorkflowStatus | None, typer.Option(case_sensitive=False, help="Only workflows in this status.")
]
TypeFilter = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only workflows of this type.")]

_LIST = ListQuery("list-workflows", "workflows")
_WORKERS = ListQuery("list-workers", "workers")
_WITH_EFFECT = {"started", "sent", "kept", "cancelled", "retried", "unchanged"}
_EXPLANATIONS = {
    "skipped_busy": "another open workflow has its concurrency key",
    "unchanged": "already in that state",
    "exists": "it has another type, queue or input; it is not changed",
    "kept": "stored until the workflow starts",
    "mailbox_full": "too many messages of this workflow are unread; send it again later",
    "not_found": "there is no such workflow",
    "already_ended": "it has ended",
}
_OF_START = {
    **_EXPLANATIONS,
    "skipped_busy": "another open workflow has its concurrency key; start it again under another id",
    "unchanged": "it was started before, with the same type, queue and input",
}


def _check_start(*, start_in: timedelta | None, start_at: datetime | None, **_: object) -> None:
    if start_in is not None and start_at is not None:
        raise typer.BadParameter("Give either --in or --at.")


@broker_command(app, check=_check_start)
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
    as_json: AsJson = False,
) -> None:
    """Start a workflow of a type. A worker executes its function."""
    outcome = await client.workflows.start(
        tenant,
        workflow,
        workflow_type,
        **({} if data is None else {"data": json.loads(data)}),
        queue=queue,
        start_in=start_in,
        start_at=start_at,
        deadline_in=deadline,
        concurrency_key=concurrency_key,
    )
    if not wait or outcome.name not in _WITH_EFFECT:
        _print_outcome(outcome, tenant, workflow, as_json, _OF_START)
        return
    typer.echo(one_line(f"{outcome.name}: {tenant}/{workflow}. Waiting for its end."), err=True)
    try:
        typer.echo(json.dumps(await client.workflows.result(tenant, workflow)))
    except WorkflowEndedError as error:
        typer.echo(one_line(str(error)), err=True)
        raise typer.Exit(1) from error


@broker_command(app)
async def send(
    client: TimerClient,
    tenant: Tenant,
    workflow: Name,
    message: Message,
    data: Data = None,
    message_id: MessageId = None,
    as_json: AsJson = False,
) -> None:
    """Send a message to a workflow, also before it starts."""
    argument = {} if data is None else {"data": json.loads(data)}
    outcome = await client.workflows.send(tenant, workflow, message, **argument, message_id=message_id)
    _print_outcome(outcome, tenant, workflow, as_json)


@broker_command(app)
async def cancel(
    client: TimerClient, tenant: Tenant, workflow: Name, reason: Reason = None, as_json: AsJson = False
) -> None:
    """Cancel a workflow that has not ended."""
    _print_outcome(await client.workflows.cancel(tenant, workflow, reason=reason), tenant, workflow, as_json)


@broker_command(app)
async def retry(
    client: TimerClient, tenant: Tenant, workflow: Name, deadline: Deadline = None, as_json: AsJson = False
) -> None:
    """Continue a failed workflow. A step that failed last runs again."""
    outcome = await client.workflows.retry(tenant, workflow, deadline_in=deadline)
    _print_outcome(outcome, tenant, workflow, as_json)


@broker_command(app)
async def get(client: TimerClient, tenant: Tenant, workflow: Name, as_json: AsJson = False) -> None:
    """Show one workflow, with its steps, sleeps and waits."""
    detail = await client.workflows.get(tenant, workflow)
    if detail is None:
        exit_not_found(f"{tenant}/{workflow}")
    lines = workflow_lines(detail, datetime.now(UTC), terminal_width())
    typer.echo(json.dumps(detail.document()) if as_json else "\n".join(lines))


@broker_command(app, "list")
async def list_workflows(
    client: TimerClient,
    tenant: Tenant,
    status: StatusFilter = None,
    workflow_type: TypeFilter = None,
    limit: Limit = 50,
    everything: All = False,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List workflows in order of creation."""
    filters = {"status": status, "type": workflow_type}
    listing = await read_list(client, tenant, _LIST, filters, limit=None if everything else limit, cursor=cursor)

    def to_lines(views: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        return workflow_table([Workflow.read(view) for view in views], datetime.now(UTC), terminal_width())

    print_list(listing, "workflows", to_lines, as_json=as_json)


@broker_command(app)
async def workers(
    client: TimerClient,
    tenant: Tenant,
    limit: Limit = 50,
    everything: All = False,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List the workers that execute workflows."""
    listing = await read_list(client, tenant, _WORKERS, {}, limit=None if everything else limit, cursor=cursor)

    def to_lines(views: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        return worker_table([WorkerInfo.read(view) for view in views], datetime.now(UTC), terminal_width())

    print_list(listing, "workers", to_lines, as_json=as_json)


@broker_command(app)
async def count(client: TimerClient, tenant: Tenant, as_json: AsJson = False) -> None:
    """Count workflows by status."""
    counts = await client.workflows.count(tenant)
    if as_json:
        typer.echo(json.dumps(counts.document()))
        return
    at_least = "" if counts.exact else "at least "
    for status, number in counts.by_status.items():
        typer.echo(f"{status:<10} {at_least}{number:,}")


def _print_outcome(
    outcome: Outcome, tenant: str, name: str, as_json: bool, explanations: Mapping[str, str] = _EXPLANATIONS
) -> None:
    workflow = outcome.workflow
    print_outcome(
        outcome,
        f"{tenant}/{name}",
        state="" if workflow is None else workflow.status,
        explanations=explanations,
        has_effect=outcome.name in _WITH_EFFECT,
        as_json=as_json,
    )
