"""The runs of a tenant, and one run with its graph."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from timer_service.core.ports.database import Reader
from timer_service.core.ports.sql import load_sql
from timer_service.runs.messages import IfFailed, JobStatus, RunStatus
from timer_service.runs.queries import QUERIES, GetRun
from timer_service.runs.rules import RunKey
from timer_service.ui.graph import Drawing, Job, Need, draw
from timer_service.ui.links import command
from timer_service.ui.pages import Content, Redirect
from timer_service.ui.reads import PAGE_ROWS
from timer_service.ui.tenants import MOST_COUNTED, Rows
from timer_service.ui.views.lists import StatusList, TenantChoice
from timer_service.ui.views.view import Asked, item_view, main_view
from timer_service.ui.words import failed_upstream

_ROUTES = {route.name: route for route in QUERIES}
CHOICE = TenantChoice(
    things="runs",
    rows=Rows("runs"),
    hint="Start the first one:",
    example=command("runs", "start", "acme", "push-1", "docs/examples/build.json"),
    order="Open runs first, and then those that have ended, each the newest first.",
)
_LIST = StatusList(CHOICE, _ROUTES["list-runs"], RunStatus)
_SQL = load_sql("timer_service.ui", "rows.sql")
_MOST_DRAWN = 300
"""The graph of a run with more jobs would not be readable. Its jobs are shown as a list."""
_MOST_NEEDS = 1000
"""More edges would not be readable either, and take long to place."""
READY = "ready"
"""Shown for a pending job whose needs have ended."""
WAITING = "not resolved"
"""Shown for a group."""
_FAILED = frozenset({JobStatus.FAILED, JobStatus.TIMED_OUT_STALE, JobStatus.DRIFT_DROPPED})
"""The statuses of a job that begin a failed chain."""


class _Jobs(NamedTuple):
    """Jobs of a run."""

    jobs: Sequence[Mapping[str, Any]]
    cursor: str | None
    """Set if there are more."""


class Progress(NamedTuple):
    """How far a run is."""

    jobs: int
    """All its jobs so far; counting stops at `MOST_COUNTED`."""
    open_jobs: int
    failed_jobs: int

    @property
    def text(self) -> str:
        """The progress, such as `3 of 8, 1 failed`."""
        failed = f", {self.failed_jobs:,} failed" if self.failed_jobs else ""
        if not self.jobs:
            return ""
        if self.jobs >= MOST_COUNTED:
            return f"{self.open_jobs:,} open of {max(self.jobs, self.open_jobs):,}+{failed}"
        return f"{self.jobs - self.open_jobs:,} of {self.jobs:,}{failed}"


class OpenRun(NamedTuple):
    """A run that has not ended."""

    tenant: str
    id: str
    created_at: int
    progress: Progress


async def read_open_runs(reader: Reader, limit: int) -> Sequence[OpenRun]:
    """Return runs that have not ended, the newest first, of all tenants. No more than `PAGE_ROWS` are looked at."""
    rows = await reader.fetch(_SQL["open_runs"], {"limit": PAGE_ROWS})
    newest = sorted(rows, key=itemgetter("created_at"), reverse=True)[:limit]
    keys = [RunKey(row["tenant_id"], row["run_id"]) for row in newest]
    found = await _read_progress(reader, keys)
    return [OpenRun(*key, row["created_at"], found[key]) for key, row in zip(keys, newest, strict=True) if key in found]


async def _read_progress(reader: Reader, keys: Sequence[RunKey]) -> Mapping[RunKey, Progress]:
    """Return how far each run is."""
    rows = await reader.fetch_each(_SQL["count_jobs"], [{**key._asdict(), "limit": MOST_COUNTED} for key in keys])
    return {
        RunKey(row["tenant_id"], row["run_id"]): Progress(row["jobs"], row["open_jobs"], row["failed_jobs"])
        for row in rows
    }


async def _show_list(asked: Asked) -> Content | Redirect:
    content = await _LIST.show(asked, "runs.html")
    if isinstance(content, Redirect):
        return content
    runs = content.values.get("items", ())
    found = await _read_progress(asked.reads.reader, [RunKey(each["tenantId"], each["runId"]) for each in runs])
    for run in runs:
        progress = found.get(RunKey(run["tenantId"], run["runId"]))
        run["progress"] = "" if progress is None else progress.text
    return content


async def _show(asked: Asked) -> Content:
    tenant, run_id = asked.parameters.key()
    cursor = asked.parameters.text("cursor")
    first = await asked.reads.ask(_ROUTES["get-run"], tenant, GetRun(run_id=run_id, limit=PAGE_ROWS, cursor=cursor))
    drawn = await _read_drawn(asked, tenant, first) if cursor is None else None
    found = _Jobs(first["jobs"], first.get("cursor")) if drawn is None else _Jobs(drawn, None)
    open_groups = [name for name, is_resolved in first["groups"].items() if not is_resolved]
    drawing = None if drawn is None else await _draw(asked, drawn, open_groups)
    places = {} if drawing is None else {box.job.name: number for number, box in enumerate(drawing.boxes)}
    jobs = [_shown(job) for job in sorted(found.jobs, key=lambda job: places.get(job["name"], 0))]
    values = {
        "run": first,
        "counts": first["counts"] if drawn is None else _counts(first["counts"], drawn),
        "jobs": jobs,
        "names": {job["name"]: number for number, job in enumerate(jobs, 1)},
        "failed": [] if drawn is None else [job for job in jobs if job["status"] in _FAILED],
        "skipped": sum(job["is_cut"] for job in jobs),
        "drawing": drawing,
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
    cut = {job["name"] for job in jobs if failed_upstream(job.get("reason", "")) is not None}
    ended = cut | {job["name"] for job in jobs if job["status"] in _FAILED}
    boxes = [
        Job(
            job["name"],
            job["name"],
            _status(job),
            [_need(need, ended if job["name"] in cut else ()) for need in job["needs"]],
        )
        for job in jobs
    ]
    groups = [Job(_group_box(name), name, WAITING) for name in open_groups]
    return await asked.reads.compute(draw([*groups, *boxes]))


def _need(need: Mapping[str, str], ended: Collection[str]) -> Need:
    """Return an edge. It is a part of a failed chain if the job that is needed is among `ended`."""
    always = need["ifFailed"] == IfFailed.RUN
    name = _group_box(need["group"]) if "group" in need else need["job"]
    return Need(name, "always" if always else "bad" if name in ended else "")


def _group_box(name: str) -> str:
    """Return the name of a group's box. A job may have the name of a group, but not a tab."""
    return f"group\t{name}"


def _shown(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a job with its status and its reason as they are shown, and whether it is a part of a failed chain."""
    reason = job.get("reason", "")
    upstream = failed_upstream(reason)
    return {
        **job,
        "shown": _status(job),
        "why": reason if upstream is None else f"{upstream} did not succeed",
        "is_cut": upstream is not None,
        "in_chain": upstream is not None or job["status"] in _FAILED,
    }


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


RUNS = main_view("runs", "Runs", _show_list, "tenant", "status", "cursor", "after")
RUN = item_view("run", RUNS, _show, "cursor")
