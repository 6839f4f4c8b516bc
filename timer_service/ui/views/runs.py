"""The runs of a tenant, and one run with its graph."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from timer_service.runs.messages import IfFailed, JobStatus, RunStatus
from timer_service.runs.queries import QUERIES, GetRun
from timer_service.ui.graph import Drawing, Job, Need, draw
from timer_service.ui.links import command
from timer_service.ui.pages import Content
from timer_service.ui.reads import PAGE_ROWS
from timer_service.ui.tenants import Rows
from timer_service.ui.views.lists import StatusList, TenantChoice
from timer_service.ui.views.view import Asked, item_view, main_view

_ROUTES = {route.name: route for route in QUERIES}
CHOICE = TenantChoice(
    things="runs",
    rows=Rows("runs"),
    hint="Start the first one:",
    example=command("runs", "start", "acme", "push-1", "docs/examples/build.json"),
)
_SHOW_LIST = partial(StatusList(CHOICE, _ROUTES["list-runs"], RunStatus).show, template="runs.html")
_MOST_DRAWN = 300
"""The graph of a run with more jobs would not be readable. Its jobs are shown as a list."""
_MOST_NEEDS = 1000
"""More edges would not be readable either, and take long to place."""
READY = "ready"
"""Shown for a pending job whose needs have ended."""
WAITING = "not resolved"
"""Shown for a group."""


class _Jobs(NamedTuple):
    """Jobs of a run."""

    jobs: Sequence[Mapping[str, Any]]
    cursor: str | None
    """Set if there are more."""


async def _show(asked: Asked) -> Content:
    tenant, run_id = asked.parameters.key()
    cursor = asked.parameters.text("cursor")
    first = await asked.reads.ask(_ROUTES["get-run"], tenant, GetRun(run_id=run_id, limit=PAGE_ROWS, cursor=cursor))
    drawn = await _read_drawn(asked, tenant, first) if cursor is None else None
    found = _Jobs(first["jobs"], first.get("cursor")) if drawn is None else _Jobs(drawn, None)
    open_groups = [name for name, is_resolved in first["groups"].items() if not is_resolved]
    values = {
        "run": first,
        "counts": first["counts"] if drawn is None else _counts(first["counts"], drawn),
        "jobs": [{**job, "shown": _status(job)} for job in found.jobs],
        "names": {job["name"]: number for number, job in enumerate(found.jobs, 1)},
        "drawing": None if drawn is None else await _draw(asked, drawn, open_groups),
        "open_groups": open_groups,
        "cursor": found.cursor,
        "is_first": cursor is None,
        "commands": _commands(first),
    }
    return Content("run.html", values)


async def _read_drawn(asked: Asked, tenant: str, first: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    """Return all jobs of a run from its first page on, or None if there are none or too many to be drawn."""
    if not 0 < sum(first["counts"].values()) <= _MOST_DRAWN:
        return None
    jobs, page = list(first["jobs"]), first
    while "cursor" in page and _has_few_needs(jobs):
        request = GetRun(run_id=first["runId"], limit=_MOST_DRAWN, cursor=page["cursor"])
        page = await asked.reads.ask(_ROUTES["get-run"], tenant, request)
        jobs += page["jobs"]
    return _merge(jobs) if _has_few_needs(jobs) else None


def _has_few_needs(jobs: Sequence[Mapping[str, Any]]) -> bool:
    return sum(len(job["needs"]) for job in jobs) <= _MOST_NEEDS


def _merge(jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return each job once. A job whose needs do not fit into one page is on two of them."""
    merged: dict[str, Mapping[str, Any]] = {}
    for job in jobs:
        known = merged.get(job["name"])
        merged[job["name"]] = job if known is None else {**known, "needs": [*known["needs"], *job["needs"]]}
    return list(merged.values())


async def _draw(asked: Asked, jobs: Sequence[Mapping[str, Any]], open_groups: Sequence[str]) -> Drawing:
    """Return the graph of jobs and of groups that are not resolved. Those have no jobs yet that could need others."""
    boxes = [Job(job["name"], job["name"], _status(job), [_need(need) for need in job["needs"]]) for job in jobs]
    groups = [Job(_group_box(name), name, WAITING) for name in open_groups]
    return await asked.reads.compute(draw([*groups, *boxes]))


def _need(need: Mapping[str, str]) -> Need:
    always = need["ifFailed"] == IfFailed.RUN
    return Need(_group_box(need["group"]) if "group" in need else need["job"], always)


def _group_box(name: str) -> str:
    """Return the name of a group's box. A job may have the name of a group, but not a tab."""
    return f"group\t{name}"


def _status(job: Mapping[str, Any]) -> str:
    """Return the status of a job as it is shown: a pending job may be ready."""
    return READY if job["status"] == JobStatus.PENDING and "readyAt" in job else str(job["status"])


def _counts(counts: Mapping[str, int], jobs: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
    """Return how many jobs have each status as it is shown."""
    shown = Counter(_status(job) for job in jobs)
    return {status: shown[status] for status in (READY, *counts) if shown[status]}


def _commands(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the commands that make sense for a run, by what they do."""
    key = (run["tenantId"], run["runId"])
    of_status = {
        RunStatus.RUNNING: {"Cancel it": command("runs", "cancel", *key)},
        RunStatus.FAILED: {"Run the failed jobs again": command("runs", "retry", *key)},
        RunStatus.CANCELLED: {"Run the cancelled jobs again": command("runs", "retry", *key)},
    }
    return of_status.get(run["status"], {})


RUNS = main_view("runs", "Runs", _SHOW_LIST, "tenant", "status", "cursor", "after")
RUN = item_view("run", RUNS, _show, "cursor")
