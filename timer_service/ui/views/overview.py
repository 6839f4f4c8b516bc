"""The overview: what is wrong, how much there is to do and how fast it is done, what comes next, and what failed."""

import json
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from operator import attrgetter
from typing import Any, NamedTuple

from timer_service.core.due.loop import Loop
from timer_service.core.ports.database import Reader, Row
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.ui import charts, tenants
from timer_service.ui.activity import MINUTES, Activity, Minute, activity
from timer_service.ui.failures import Failure, Kind, count_kinds, read_last
from timer_service.ui.formats import at_least, number
from timer_service.ui.links import link
from timer_service.ui.pages import Content
from timer_service.ui.rejections import RejectedCommand
from timer_service.ui.samples import last_passes
from timer_service.ui.tenants import MOST_COUNTED, Rows
from timer_service.ui.views.runs import OpenRun, read_open_runs
from timer_service.ui.views.verdict import Fault, blocked_commands, find_faults, health_of
from timer_service.ui.views.view import Asked, main_view
from timer_service.workflows.messages import WorkflowStatus
from timer_service.workflows.queries import ONLINE_MS

_SQL = load_sql("timer_service.ui", "rows.sql")
_OPEN_RUNS = Rows("runs", "sweep_at IS NOT NULL")
_COUNTS = "row-counts"
"""The loop that counts rows for the metrics, in each of its passes."""
_NEXT = 10
_FAILURES = 5
_RUNS = 5
"""How many rows each list shows."""
_BLOCKED = 10
"""How many tenants whose commands cannot be applied the verdict names."""
_TENANTS = 50
"""The failures shown are those of so many tenants of each kind."""
_LEAST_MINUTES = 10
"""How many minutes a chart shows at least. The charts of an instance that has just started show no whole hour."""


class _Next(NamedTuple):
    """A timer or a slot of a schedule that will fire."""

    kind: str
    tenant_id: str
    id: str
    due_at: int
    zone: str

    @property
    def url(self) -> str:
        """The URL of its page."""
        return link(self.kind, tenant=self.tenant_id, id=self.id)


class _Failed(NamedTuple):
    """Something that failed, or a command that was rejected."""

    at: int
    instant: str
    """What happens at this instant."""
    what: str
    tenant: str
    id: str
    reason: str
    url: str


class _Notice(NamedTuple):
    """A number that needs attention."""

    title: str
    number: str
    url: str | None = None
    more: str = ""


class _Work(NamedTuple):
    """What the database has, of all tenants."""

    next: Sequence[_Next]
    failed: Mapping[Kind, int]
    failures: Sequence[_Failed]
    is_cut: bool
    """Whether more tenants have failures than were looked at."""
    workflows: Mapping[str, int]
    """The open workflows, by status."""
    without_worker: Mapping[str, int]
    """The workflows that are due, and for whose queue and type no worker asks, by tenant."""
    workers: int
    """The workers that are online."""
    runs: Sequence[OpenRun]
    open_runs: int
    blocked: Sequence[Fault]
    """The commands that cannot be applied."""


async def _show(asked: Asked) -> Content:
    instance = asked.instance
    passes = last_passes(instance.registry)
    hour = activity(instance.samples.until(asked.now), asked.now)
    loops = instance.loops()
    work: _Work | None = None
    reads = HEALTHY
    try:
        work = await _read_work(asked)
    except DatabaseUnavailableError as error:  # the page shows the health all the same
        reads = Health.down(str(error))
    faults = find_faults(instance, loops, {"database reads of this page": reads})
    values = {
        "faults": [*faults, *(() if work is None else work.blocked)],
        "notices": [*(() if work is None else _failed(work)), *_at_limits(hour)],
        "work": work,
        "most": MOST_COUNTED,
        "tenants": _TENANTS,
        "activity": hour,
        "counted_at": passes.get(_COUNTS),
        "charts": _charts(hour),
        "flows": list(instance.flows()),
        "parts_of_instance": {**instance.flows(), **instance.needs()},
        "loops": [_loop(loop, passes.get(loop.name)) for loop in loops],
        "role": instance.role,
        "engine": instance.database.engine,
        "version": version("timer-service"),
        "python": platform.python_version(),
        "started_at": instance.started_at,
    }
    return Content("overview.html", values)


def _failed(work: _Work) -> Iterator[_Notice]:
    """Return how much failed of each kind, and the workflows without a worker."""
    for kind, count in work.failed.items():
        yield _Notice(kind.title, at_least(count, MOST_COUNTED), link("failed", kind=kind.name))
    if work.without_worker:
        tenant, others = next(iter(work.without_worker)), len(work.without_worker) - 1
        amount = at_least(sum(work.without_worker.values()), MOST_COUNTED)
        more = f"of {tenant}" + (f" and {others} other {'tenant' if others == 1 else 'tenants'}" if others else "")
        yield _Notice(
            "Workflows without a worker", amount, link("workflows", tenant=tenant, status=WorkflowStatus.WAITING), more
        )


def _at_limits(hour: Activity) -> Iterator[_Notice]:
    """Return how much was refused or waits because tenants are at their limits."""
    if hour.over_quota:
        yield _Notice(
            "Commands over a limit", number(hour.over_quota), more="in the last hour; the log names their tenants"
        )
    if hour.newest.waiting:
        yield _Notice("Tenants at their limit of events", number(hour.newest.waiting), more="their events wait")


def _loop(loop: Loop, passed_at: int | None) -> dict[str, Any]:
    return {"name": loop.name, "health": health_of(loop)[1], "passed_at": passed_at}


async def _read_work(asked: Asked) -> _Work:
    """Return what the database has."""
    reader, now = asked.reads.reader, asked.now
    failed = await count_kinds(reader)
    workflows = await reader.fetch(_SQL["open_workflows"], {"limit": MOST_COUNTED})
    lanes = await reader.fetch(_SQL["due_lanes"], {"now": now, "limit": MOST_COUNTED})
    workers = await reader.fetch(_SQL["workers"], {"since": now - ONLINE_MS, "limit": MOST_COUNTED})
    blocked = await reader.fetch(_SQL["blocked_commands"], {"rows": MOST_COUNTED, "limit": _BLOCKED})
    failures, is_cut = await _read_failures(reader, failed)
    return _Work(
        next=await _read_next(reader),
        failed=failed,
        failures=_latest([*failures, *map(_rejected, asked.instance.rejected())]),
        is_cut=is_cut,
        workflows=_by_status(workflows),
        without_worker=_without_worker(lanes, workers),
        workers=len(workers),
        runs=await read_open_runs(reader, _RUNS),
        open_runs=await tenants.count_all(reader, _OPEN_RUNS),
        blocked=blocked_commands(blocked),
    )


def _by_status(workflows: Sequence[Row]) -> Mapping[str, int]:
    counts = {row["status"]: row["count"] for row in workflows}
    return {status: counts[status] for status in WorkflowStatus if status in counts}


def _without_worker(lanes: Sequence[Row], workers: Sequence[Row]) -> Mapping[str, int]:
    """Return how many workflows of each tenant wait for a worker, while none asks for their queue and type.

    If there are more workers than were read, one of the others may ask: then nothing is claimed.
    """
    if len(workers) >= MOST_COUNTED:
        return {}
    asked = {(row["tenant_id"], row["queue"], each) for row in workers for each in json.loads(row["types"])}
    found = Counter[str]()
    for row in lanes:
        if row["count"] and (row["tenant_id"], row["queue"], row["type"]) not in asked:
            found[row["tenant_id"]] += row["count"]
    return found


async def _read_next(reader: Reader) -> Sequence[_Next]:
    """Return the timers and the slots that fire next, also those whose event is sent now, by their due times."""
    found: list[tuple[int, _Next]] = []
    for kind, block in (("timer", "next_timers"), ("schedule", "next_slots")):
        rows = await reader.fetch(_SQL[block], {"limit": _NEXT})
        found += [(row["available_at"], _Next(kind, *(row[name] for name in _Next._fields[1:]))) for row in rows]
    return sorted((each for _, each in sorted(found)[:_NEXT]), key=attrgetter("due_at"))


async def _read_failures(reader: Reader, failed: Mapping[Kind, int]) -> tuple[Sequence[_Failed], bool]:
    """Return failures of the first tenants of each kind, and whether more tenants have some."""
    found: list[Failure] = []
    is_cut = False
    for kind in failed:
        page = await tenants.page(reader, kind.rows, "", _TENANTS)
        found += await read_last(reader, kind, page.names, _FAILURES)
        is_cut = is_cut or page.after is not None
    return [
        _Failed(each.at, each.kind.instant, each.kind.one, each.tenant, each.id, each.reason, each.url)
        for each in found
    ], is_cut


def _rejected(command: RejectedCommand) -> _Failed:
    reason = f"{command.code}: {command.reason}"
    return _Failed(command.at, "rejected", command.command, command.tenant, command.command_id, reason, link("failed"))


def _latest(failed: Sequence[_Failed]) -> Sequence[_Failed]:
    """Return those with the latest instants."""
    return sorted(failed, key=attrgetter("at"), reverse=True)[:_FAILURES]


def _charts(hour: Activity) -> dict[str, Any]:
    """Return the shapes of each chart, and the largest value of each. The two lags share one scale."""
    shown = hour.minutes[-_shown_minutes(hour.minutes) :]
    columns = {name: [getattr(minute, name) for minute in shown] for name in Minute._fields}
    slowest = charts.highest(columns["lag_p99"])
    return {
        "minutes": len(shown),
        "pending": charts.lines(columns["pending"], charts.highest(columns["pending"])),
        "overdue": charts.bars(columns["overdue"]),
        "fired": charts.bars(columns["fired"]),
        "failures": charts.bars(columns["failures"]),
        "lag_p50": charts.lines(columns["lag_p50"], slowest),
        "lag_p99": charts.lines(columns["lag_p99"], slowest),
        "highest": {name: charts.highest(values) for name, values in columns.items()},
    }


def _shown_minutes(minutes: Sequence[Minute]) -> int:
    """Return how many minutes the charts show: those since the first sample, and `_LEAST_MINUTES` at least."""
    ages = (MINUTES - number for number, minute in enumerate(minutes) if minute.fired is not None)
    return max(next(ages, 0), _LEAST_MINUTES)


OVERVIEW = main_view("", "Overview", _show)
