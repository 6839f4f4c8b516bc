"""`timer-service runs`. These commands use the broker only, never the database."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any

import typer

from timer_service.cli.output import format_distance, format_time, one_line, print_table, style
from timer_service.cli.parameters import (
    Tenant,
    TenantOrAll,
    choice,
    identifier,
    read_graph_file,
    read_jobs_file,
    read_json_object,
)
from timer_service.cli.resources import Outcomes, Rows, get_command, list_command, outcome_command, watch_command
from timer_service.client import Outcome, Run, RunGraph, RunJob, RunStatus, TimerClient
from timer_service.core.values.instant import format_instant

app = typer.Typer(help="Job graphs: start, report, look up, cancel.", no_args_is_help=True)

Name = Annotated[str, identifier("RUN", "The runId.")]
Group = Annotated[str, identifier("GROUP", "The name of the group.")]
Job = Annotated[str, identifier("JOB", "The name of the job.")]
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
StatusFilter = Annotated[RunStatus | None, choice("Only runs in this status.", "--status")]

_JOBS = ("STEP", "JOB", "STATUS", "NEEDS")
_COLOURS = {
    "success": "green",
    "ready": "cyan",
    "dispatched": "cyan",
    "running": "cyan",
    "cancelled": "yellow",
    "skipped": "yellow",
    "failed": "red",
    "rejected": "red",
    "timed_out_stale": "red",
    "drift_dropped": "red",
}


def _rejection(run: Run) -> str:
    return f"{run.code}: {' > '.join(run.path)}" if run.code else ""


def _row(run: Run, now: datetime) -> tuple[str, ...]:
    started = format_time(run.created_at), format_distance(run.created_at, now)
    return run.name, run.status, str(run.open_jobs), *started, _rejection(run)


RUNS = Rows(
    query="list-runs",
    field="runs",
    view=Run,
    head=("RUN", "STATUS", "OPEN", "STARTED", "", "WHY"),
    row=_row,
    colours=_COLOURS,
)
_OUTCOMES = Outcomes(
    lambda outcome: f"{outcome.run.status}, {outcome.run.open_jobs} open" if outcome.run else "",
    {"started", "recorded", "resolved", "cancelled", "unchanged", "kept"},
    {
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
    },
)


def print_graph(graph: RunGraph) -> None:
    """Print the graph of a run: its jobs step by step, each with the jobs and groups that it needs."""
    counts = ", ".join(f"{count} {status}" for status, count in sorted(graph.counts.items()))
    status = style(one_line(graph.run.status), colour=_COLOURS.get(graph.run.status))
    title = style(one_line(f"{graph.run.tenant}/{graph.run.name}"), bold=True)
    typer.echo(f"{title}  {status}" + (f"  ({one_line(counts)})" if counts else ""))
    if rejection := _rejection(graph.run):
        typer.echo(f"  {one_line(rejection)}")
    if unresolved := sorted(name for name, resolved in graph.groups.items() if not resolved):
        typer.echo(f"  not resolved: {one_line(', '.join(unresolved))}")
    if graph.jobs:
        print_table(_JOBS, [*_job_rows(graph.jobs)], _COLOURS)


def _job_rows(jobs: Iterable[RunJob]) -> Iterator[tuple[str, ...]]:
    steps = _steps(jobs)
    previous = None
    for job in sorted(jobs, key=lambda job: (steps[job.name], job.name)):
        step = steps[job.name]
        status = "ready" if job.status == "pending" and job.ready_at is not None else job.status
        yield str(step) if step != previous else "", job.name, status, job.reason or ", ".join(map(_need, job.needs))
        previous = step


def _steps(jobs: Iterable[RunJob]) -> Mapping[str, int]:
    """Return the step of each job: the length of the longest path to it from a job without needs."""
    needs = {job.name: [need["job"] for need in job.needs if "job" in need] for job in jobs}
    steps: dict[str, int] = {}
    left = list(needs)
    while left:  # once per step; a run that was started has no cycle
        found = {name: needs[name] for name in left if all(need in steps for need in needs[name])}
        if not found:
            return steps | dict.fromkeys(left, 1 + max(steps.values(), default=0))
        steps |= {name: 1 + max((steps[need] for need in upstream), default=0) for name, upstream in found.items()}
        left = [name for name in left if name not in found]
    return steps


def _need(need: Mapping[str, str]) -> str:
    upstream = f"group {need['group']}" if "group" in need else need.get("job", "?")
    return f"{upstream} (even if it fails)" if need.get("ifFailed") == "run" else upstream


def run_event_line(event: Mapping[str, Any]) -> str:
    """Return an event of a run or of one of its jobs as a line."""
    payload = event["payload"]
    job = f"/{payload['jobName']}" if "jobName" in payload else ""
    at, name = format_instant(event["timestampMs"]), f"{payload['tenantId']}/{payload['runId']}{job}"
    match event["type"]:
        case "JobReady":
            about = "ready"
        case "JobSkipped":
            about = f"skipped: {payload['reason']}"
        case "RunCompleted":
            counts = ", ".join(f"{count} {status}" for status, count in payload["counts"].items() if count)
            about = f"ended: {payload['status']} ({counts})"
        case "RunRejected":
            about = f"rejected: {payload['code']} {' '.join(payload['path'])}"
        case _:
            about = f"stuck: {' '.join(payload['jobs'])}"
    return one_line(f"{at}  {name}  {about}".rstrip())


@outcome_command(app, _OUTCOMES)
async def start(client: TimerClient, tenant: Tenant, run: Name, file: GraphFile) -> Outcome:
    """Start a run of the jobs in a file."""
    return await client.runs.start(tenant, run, file["jobs"], groups=file.get("groups", []))


@outcome_command(app, _OUTCOMES)
async def resolve(client: TimerClient, tenant: Tenant, run: Name, group: Group, file: JobsFile) -> Outcome:
    """Name the jobs of a group."""
    return await client.runs.resolve_group(tenant, run, group, file["jobs"])


@outcome_command(app, _OUTCOMES)
async def report(
    client: TimerClient, tenant: Tenant, run: Name, job: Job, status: JobStatus, outputs: Outputs = None
) -> Outcome:
    """Report the status of a job."""
    return await client.runs.report(tenant, run, job, status, outputs=outputs)


@outcome_command(app, _OUTCOMES)
async def cancel(client: TimerClient, tenant: Tenant, run: Name) -> Outcome:
    """Cancel every job of a run that has not ended."""
    return await client.runs.cancel(tenant, run)


@get_command(app, print_graph)
async def get(client: TimerClient, tenant: Tenant, run: Name) -> RunGraph | None:
    """Show the graph of a run, with the status of each job."""
    return await client.runs.get(tenant, run)


list_command(app, RUNS, "List runs, newest first.", status=StatusFilter)


@watch_command(app, run_event_line)
def watch(client: TimerClient, tenant: TenantOrAll = "*") -> AsyncIterator[Mapping[str, Any]]:
    """Print the events of runs that are published from now on: ready and skipped jobs, and ends of runs."""
    return client.runs.watch_all(tenant)
