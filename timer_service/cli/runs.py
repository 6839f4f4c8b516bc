"""`timer-service runs`. These commands use the broker only, never the database."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from graphlib import TopologicalSorter
from typing import Annotated, Any

import typer

from timer_service.cli import parameters
from timer_service.cli.output import format_distance, format_time, one_line, print_table, style
from timer_service.cli.resources import Outcomes, Resource, Rows
from timer_service.client import Outcome, Run, RunGraph, RunJob, RunStatus, TimerClient

app = typer.Typer(help="Job graphs: start, report, look up, cancel, retry.", no_args_is_help=True)

NAME = parameters.identifier("RUN", "The id of the run.")
OUTPUTS = Annotated[
    dict[str, Any] | None,
    typer.Option(
        parser=parameters.read_json_object, metavar="JSON", help="A JSON object for the jobs that need this job."
    ),
]

_JOBS = ("STEP", "JOB", "STATUS", "NEEDS")
_COLOURS = {
    "success": "green",
    "ready": "cyan",
    "dispatched": "cyan",
    "running": "cyan",
    "cancelling": "yellow",
    "cancelled": "yellow",
    "skipped": "yellow",
    "failed": "red",
    "rejected": "red",
    "timed_out_stale": "red",
    "drift_dropped": "red",
}


def _rejection(run: Run) -> str:
    """Return why a run was rejected, with the jobs of a cycle; empty if it was not."""
    return f"{run.code}: {' > '.join(run.path)}" if run.code else ""


def _row(run: Run, now: datetime) -> tuple[str, ...]:
    started = format_time(run.created_at), format_distance(run.created_at, now)
    return run.run_id, run.status, str(run.open_jobs), *started, _rejection(run)


LIST = Rows(
    query="list-runs",
    field="runs",
    view=Run,
    head=("RUN", "STATUS", "OPEN", "STARTED", "", "WHY"),
    row=_row,
    colours=_COLOURS,
)
RUNS = Resource(
    app,
    lambda client: client.runs,
    Outcomes(
        lambda outcome: f"{outcome.run.status}, {outcome.run.open_jobs} open" if outcome.run else "",
        {"started", "recorded", "resolved", "cancelled", "retried", "unchanged", "kept"},
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
            "already_ended": "the run, the job or its attempt has already ended",
            "retried": "its failed and cancelled jobs run again, and those that were skipped because of them",
        },
    ),
)


def print_graph(graph: RunGraph) -> None:
    """Print the graph of a run: its jobs step by step, each with the jobs and groups that it needs."""
    counts = ", ".join(f"{count} {status}" for status, count in sorted(graph.counts.items()))
    status = style(one_line(graph.run.status), colour=_COLOURS.get(graph.run.status))
    title = style(one_line(f"{graph.run.tenant}/{graph.run.run_id}"), bold=True)
    attempt = f", attempt {graph.run.attempt}" if graph.run.attempt > 1 else ""
    typer.echo(f"{title}  {status}{attempt}" + (f"  ({one_line(counts)})" if counts else ""))
    if rejection := _rejection(graph.run):
        typer.echo(f"  {one_line(rejection)}")
    if unresolved := sorted(name for name, resolved in graph.groups.items() if not resolved):
        typer.echo(f"  not resolved: {one_line(', '.join(unresolved))}")
    if graph.jobs:
        print_table(_JOBS, [*_job_rows(graph.jobs)], _COLOURS)


def _job_rows(jobs: Iterable[RunJob]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each job, step by step. Only the first row of a step has its number."""
    steps = _steps(jobs)
    previous_step = None
    for job in sorted(jobs, key=lambda job: (steps[job.name], job.name)):
        step = steps[job.name]
        number = "" if step == previous_step else str(step)
        status = "ready" if job.status == "pending" and job.ready_at is not None else job.status
        needs = [*map(_need, job.needs), *(["always"] if job.always else [])]
        yield number, job.name, status, job.reason or ", ".join(needs)
        previous_step = step


def _steps(jobs: Iterable[RunJob]) -> Mapping[str, int]:
    """Return the step of each job: the length of the longest path to it from a job without needs."""
    sorter = TopologicalSorter({job.name: [need["job"] for need in job.needs if "job" in need] for job in jobs})
    sorter.prepare()
    steps: dict[str, int] = {}
    while ready := sorter.get_ready():
        steps |= dict.fromkeys(ready, max(steps.values(), default=0) + 1)
        sorter.done(*ready)
    return steps


def _need(need: Mapping[str, str]) -> str:
    """Return the upstream of a need, and whether its failure matters."""
    upstream = f"group {need['group']}" if "group" in need else need.get("job", "?")
    return f"{upstream} (even if it fails)" if need.get("ifFailed") == "run" else upstream


def _file(text: str) -> Any:
    return parameters.argument("FILE", text, dict[str, Any], parser=parameters.read_graph_file)


def _check_group(*, file: Mapping[str, Any], **_: object) -> None:
    if "groups" in file:
        raise typer.BadParameter("The jobs of a group have no groups of their own: leave out 'groups'.")


async def _start(client: TimerClient, *, tenant: str, run_id: str, file: Mapping[str, Any]) -> Outcome:
    return await client.runs.start(tenant, run_id, **file)


async def _resolve(client: TimerClient, *, tenant: str, run_id: str, group: str, file: Mapping[str, Any]) -> Outcome:
    return await client.runs.resolve_group(tenant, run_id, group, file["jobs"])


RUNS.command(
    "start",
    "Start a run of the jobs in a file.",
    {"run_id": NAME, "file": _file('JSON: {"jobs": […], "groups": […]}; - for stdin.')},
    call=_start,
)
RUNS.command(
    "resolve",
    "Name the jobs of a group.",
    {
        "run_id": NAME,
        "group": parameters.identifier("GROUP", "The name of the group."),
        "file": _file('JSON: {"jobs": […]}; - for stdin.'),
    },
    call=_resolve,
    check=_check_group,
)
RUNS.command(
    "report",
    "Report the status of a job.",
    {
        "run_id": NAME,
        "job": parameters.identifier("JOB", "The name of the job."),
        "status": parameters.argument("STATUS", "dispatched, running, success, failed, cancelled, skipped, …"),
        "outputs": OUTPUTS,
        "attempt": parameters.number("The attempt of the JobReady: a later attempt is not changed.", "--attempt"),
    },
)
RUNS.command("cancel", "Cancel every job of a run that has not ended, except `always` jobs.", {"run_id": NAME})
RUNS.command("retry", "Run the failed jobs of an ended run again, and the jobs they skipped.", {"run_id": NAME})
RUNS.get("Show the graph of a run, with the status of each job.", print_graph, {"run_id": NAME})
RUNS.list(
    LIST,
    "List runs: open ones, and then those that have ended, each newest first.",
    {"status": parameters.choice(RunStatus, "Only runs in this status.")},
)
RUNS.watch(
    "Print the events of runs that are published from now on: ready and skipped jobs, and ends of runs.",
    method="watch_all",
)
