"""Runs as text and as JSON. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from timer_service.cli.output.table import Table
from timer_service.cli.output.text import format_distance, format_time, one_line, style
from timer_service.client import Run, RunGraph, RunJob
from timer_service.core.values.instant import format_instant

_RUNS = ("RUN", "STATUS", "OPEN", "STARTED", "", "WHY")
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


def run_table(runs: Sequence[Run], now: datetime, width: int | None) -> Iterator[str]:
    """Return runs as the lines of a table."""
    rows = [
        (
            run.name,
            run.status,
            str(run.open_jobs),
            format_time(run.created_at),
            format_distance(run.created_at, now),
            _rejection(run),
        )
        for run in runs
    ]
    return Table(_RUNS, rows, width, id_column=0, status_column=1, colours=_COLOURS).lines()


def graph_lines(graph: RunGraph, width: int | None) -> Iterator[str]:
    """Return the graph of a run as lines: its jobs step by step, each with the jobs and groups that it needs.

    The step of a job is one more than the last step of the jobs that it needs.
    """
    counts = ", ".join(f"{count} {status}" for status, count in sorted(graph.counts.items()))
    status = style(one_line(graph.run.status), colour=_COLOURS.get(graph.run.status))
    title = style(one_line(f"{graph.run.tenant}/{graph.run.name}"), bold=True)
    yield f"{title}  {status}" + (f"  ({one_line(counts)})" if counts else "")
    if rejection := _rejection(graph.run):
        yield f"  {one_line(rejection)}"
    unresolved = sorted(name for name, resolved in graph.groups.items() if not resolved)
    if unresolved:
        yield f"  not resolved: {one_line(', '.join(unresolved))}"
    if graph.jobs:
        rows = list(_job_rows(graph.jobs))
        yield from Table(_JOBS, rows, width, id_column=1, status_column=2, colours=_COLOURS).lines()


def _job_rows(jobs: Iterable[RunJob]) -> Iterator[tuple[str, ...]]:
    steps = _steps(jobs)
    previous = None
    for job in sorted(jobs, key=lambda job: (steps[job.name], job.name)):
        step = steps[job.name]
        yield str(step) if step != previous else "", job.name, _status(job), _needs(job)
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


def _status(job: RunJob) -> str:
    return "ready" if job.status == "pending" and job.ready_at is not None else job.status


def _needs(job: RunJob) -> str:
    if job.reason is not None:
        return job.reason
    return ", ".join(map(_need, job.needs))


def _need(need: Mapping[str, str]) -> str:
    upstream = f"group {need['group']}" if "group" in need else need.get("job", "?")
    return f"{upstream} (even if it fails)" if need.get("ifFailed") == "run" else upstream


def _rejection(run: Run) -> str:
    return f"{run.code}: {' > '.join(run.path)}" if run.code else ""
