"""`timer-service runs`. These commands use the broker only, never the database."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from timer_service.cli.connection import broker_command
from timer_service.cli.output.lists import ListQuery, print_list, read_list
from timer_service.cli.output.outcomes import exit_not_found, print_outcome
from timer_service.cli.output.runs import graph_lines, run_event_line, run_table
from timer_service.cli.output.table import terminal_width
from timer_service.cli.parameters import (
    All,
    AsJson,
    Cursor,
    Limit,
    Tenant,
    TenantOrAll,
    read_graph_file,
    read_identifier,
    read_jobs_file,
    read_json_object,
)
from timer_service.cli.watch import AsJsonLines, print_events
from timer_service.client import Outcome, Run, RunStatus, TimerClient

app = typer.Typer(help="Job graphs: start, report, look up, cancel.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(parser=read_identifier, metavar="RUN", help="The runId.")]
Group = Annotated[str, typer.Argument(parser=read_identifier, metavar="GROUP", help="The name of the group.")]
Job = Annotated[str, typer.Argument(parser=read_identifier, metavar="JOB", help="The name of the job.")]
JobStatus = Annotated[
    str, typer.Argument(metavar="STATUS", help="dispatched, running, success, failed, cancelled, skipped, …")
]
GraphFile = Annotated[
    dict[str, Any],
    typer.Argument(parser=read_graph_file, metavar="FILE", help='JSON: {"jobs": […], "groups": […]}; - for stdin.'),
]
JobsFile = Annotated[
    dict[str, Any], typer.Argument(parser=read_jobs_file, metavar="FILE", help='JSON: {"jobs": […]}; - for stdin.')
]
Outputs = Annotated[
    dict[str, Any] | None,
    typer.Option(parser=read_json_object, metavar="JSON", help="A JSON object for the jobs that need this job."),
]
StatusFilter = Annotated[RunStatus | None, typer.Option(case_sensitive=False, help="Only runs in this status.")]

_LIST = ListQuery("list-runs", "runs")
_WITH_EFFECT = {"started", "recorded", "resolved", "cancelled", "unchanged", "kept"}
_EXPLANATIONS = {
    "run_rejected": "its graph cannot be run",
    "exists": "it has another graph or other jobs; it is not changed",
    "unchanged": "already in that state",
    "kept": "stored until its run or job is known",
    "not_kept": "4 MiB of commands are already stored for this run; send it again later",
    "not_found": "there is no such run",
    "unknown_job": "the run has no such job",
    "unknown_group": "the run has no such group",
    "ignored_not_ready": "the job is not ready",
    "already_ended": "the run or the job has already ended",
}


@broker_command(app)
async def start(client: TimerClient, tenant: Tenant, run: Name, file: GraphFile, as_json: AsJson = False) -> None:
    """Start a run of the jobs in a file."""
    outcome = await client.runs.start(tenant, run, file["jobs"], groups=file.get("groups", []))
    _print_outcome(outcome, tenant, run, as_json)


@broker_command(app)
async def resolve(
    client: TimerClient, tenant: Tenant, run: Name, group: Group, file: JobsFile, as_json: AsJson = False
) -> None:
    """Name the jobs of a group."""
    outcome = await client.runs.resolve_group(tenant, run, group, file["jobs"])
    _print_outcome(outcome, tenant, run, as_json)


@broker_command(app)
async def report(
    client: TimerClient,
    tenant: Tenant,
    run: Name,
    job: Job,
    status: JobStatus,
    outputs: Outputs = None,
    as_json: AsJson = False,
) -> None:
    """Report the status of a job."""
    outcome = await client.runs.report(tenant, run, job, status, outputs=outputs)
    _print_outcome(outcome, tenant, run, as_json)


@broker_command(app)
async def cancel(client: TimerClient, tenant: Tenant, run: Name, as_json: AsJson = False) -> None:
    """Cancel every job of a run that has not ended."""
    _print_outcome(await client.runs.cancel(tenant, run), tenant, run, as_json)


@broker_command(app)
async def get(client: TimerClient, tenant: Tenant, run: Name, as_json: AsJson = False) -> None:
    """Show the graph of a run, with the status of each job."""
    graph = await client.runs.get(tenant, run)
    if graph is None:
        exit_not_found(f"{tenant}/{run}")
    typer.echo(json.dumps(graph.document()) if as_json else "\n".join(graph_lines(graph, terminal_width())))


@broker_command(app, "list")
async def list_runs(
    client: TimerClient,
    tenant: Tenant,
    status: StatusFilter = None,
    limit: Limit = 50,
    everything: All = False,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    filters = {"status": status}
    listing = await read_list(client, tenant, _LIST, filters, limit=None if everything else limit, cursor=cursor)

    def to_lines(views: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        return run_table([Run.read(view) for view in views], datetime.now(UTC), terminal_width())

    print_list(listing, "runs", to_lines, as_json=as_json)


@broker_command(app)
async def watch(client: TimerClient, tenant: TenantOrAll = "*", as_json: AsJsonLines = False) -> None:
    """Print the events of runs that are published from now on: ready and skipped jobs, and ends of runs."""
    await print_events(client.runs.watch_all(tenant), run_event_line, tenant, as_json=as_json)


def _print_outcome(outcome: Outcome, tenant: str, name: str, as_json: bool) -> None:
    run = outcome.run
    print_outcome(
        outcome,
        f"{tenant}/{name}",
        state="" if run is None else f"{run.status}, {run.open_jobs} open",
        explanations=_EXPLANATIONS,
        has_effect=outcome.name in _WITH_EFFECT,
        as_json=as_json,
    )
