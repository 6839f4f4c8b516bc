"""Runs for a person's eye and for machines. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import typer
from rich.cells import cell_len, set_cell_size

from timer_service.cli.showing import cut, local, one_line, relative, wire
from timer_service.client import Outcome, Run, RunGraph, RunJob

_GAP = "  "
_RUNS = ("RUN", "STATUS", "OPEN", "STARTED", "", "WHY")
_JOBS = ("STEP", "JOB", "STATUS", "NEEDS")
_COLOURS = {
    "success": "green",
    "ready": "cyan",
    "dispatched": "cyan",
    "running": "cyan",
    "cancelled": "yellow",
    "skipped": "yellow",
}
_CALM = {"pending", "STATUS"}
_WORDS = {
    "run_rejected": "its graph can't be run",
    "exists": "it is another one, and stays as it is",
    "unchanged": "already in that state",
    "kept": "kept until the command comes that it needs",
    "not_found": "there is no such run",
    "unknown_job": "the run has no such job",
    "unknown_group": "the run has no such group",
    "ignored_not_ready": "the job has not been let go",
    "already_ended": "it has ended",
    "ignored_stale": "a newer command has come before",
}


def run_document(run: Run) -> dict[str, Any]:
    """Return a run as on the wire."""
    found = {
        "tenantId": run.tenant,
        "runId": run.name,
        "status": run.status,
        "createdAt": wire(run.created_at),
        "openJobs": run.open_jobs,
        "unresolvedGroups": run.unresolved_groups,
        "settledAt": run.settled_at and wire(run.settled_at),
        "code": run.code,
        "path": list(run.path) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def graph_document(graph: RunGraph) -> dict[str, Any]:
    """Return a run with its jobs as on the wire."""
    jobs = [_job_document(job) for job in graph.jobs]
    return {**run_document(graph.run), "counts": graph.counts, "groups": graph.groups, "jobs": jobs}


def run_outcome_line(outcome: Outcome, tenant: str, name: str) -> str:
    """Write how a command ended."""
    status = f" ({outcome.run.status}, {outcome.run.open_jobs} open)" if outcome.run else ""
    why = f": {_WORDS[outcome.name]}" if outcome.name in _WORDS else ""
    return f"{outcome.name}: {tenant}/{name}{status}{why}"


def run_table(runs: Sequence[Run], now: datetime, width: int | None) -> Iterator[str]:
    """Write runs as aligned lines, none wider than `width`."""
    rows = [
        (run.name, run.status, str(run.open_jobs), local(run.created_at), relative(run.created_at, now), _why(run))
        for run in runs
    ]
    yield from _aligned([_RUNS, *rows], 1, width)


def graph_lines(graph: RunGraph, width: int | None) -> Iterator[str]:
    """Draw a run's graph: a job stands on the step behind the last one it needs, and names those it needs."""
    counts = ", ".join(f"{count} {status}" for status, count in sorted(graph.counts.items()))
    yield (
        typer.style(f"{graph.run.tenant}/{graph.run.name}", bold=True)
        + f"  {_styled(graph.run.status)}"
        + (f"  ({counts})" if counts else "")
    )
    if why := _why(graph.run):
        yield f"{_GAP}{why}"
    unresolved = sorted(name for name, resolved in graph.groups.items() if not resolved)
    if unresolved:
        yield f"{_GAP}not resolved: {one_line(', '.join(unresolved))}"
    if graph.jobs:
        yield from _aligned([_JOBS, *_steps(graph.jobs)], 2, width)


def _steps(jobs: Iterable[RunJob]) -> Iterator[tuple[str, ...]]:
    steps = _numbered(jobs)
    before = None
    for job in sorted(jobs, key=lambda job: (steps[job.name], job.name)):
        step = steps[job.name]
        yield str(step) if step != before else "", one_line(job.name), _status(job), _needs(job)
        before = step


def _numbered(jobs: Iterable[RunJob]) -> Mapping[str, int]:
    """Return the step of each job: the longest way to it from a job that needs none."""
    needs = {job.name: [need["job"] for need in job.needs if "job" in need] for job in jobs}
    steps: dict[str, int] = {}
    left = list(needs)
    while left:  # as often as there are steps: there is no cycle in a run that was started
        found = {name: needs[name] for name in left if all(need in steps for need in needs[name])}
        if not found:
            return steps | dict.fromkeys(left, 1 + max(steps.values(), default=0))
        steps |= {name: 1 + max((steps[need] for need in of), default=0) for name, of in found.items()}
        left = [name for name in left if name not in found]
    return steps


def _status(job: RunJob) -> str:
    return "ready" if job.status == "pending" and job.ready_at is not None else job.status


def _needs(job: RunJob) -> str:
    if job.reason is not None:
        return one_line(job.reason)
    however = {"run": " however it ends"}
    named = (
        (f"group {need['group']}" if "group" in need else need["job"]) + however.get(need["ifFailed"], "")
        for need in job.needs
    )
    return one_line(", ".join(named))


def _why(run: Run) -> str:
    return one_line(f"{run.code}: {' > '.join(run.path)}") if run.code else ""


def _aligned(rows: Sequence[tuple[str, ...]], status: int, width: int | None) -> Iterator[str]:
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = _GAP.join(set_cell_size(text, size) for text, size in zip(row, widths, strict=True)).rstrip()
        line = cut(cells, width)
        if number == 0:
            yield typer.style(line, bold=True)
        else:
            at = sum(widths[:status]) + len(_GAP) * status
            yield line[:at] + line[at:].replace(row[status], _styled(row[status]), 1)


def _styled(status: str) -> str:
    return status if status in _CALM else typer.style(status, fg=_COLOURS.get(status, "red"))


def _job_document(job: RunJob) -> dict[str, Any]:
    found = {
        "name": job.name,
        "status": job.status,
        "needs": list(job.needs),
        "groupName": job.group,
        "readyAt": job.ready_at and wire(job.ready_at),
        "settledAt": job.settled_at and wire(job.settled_at),
        "reason": job.reason,
        "outputs": job.outputs,
    }
    return {name: value for name, value in found.items() if value is not None}
