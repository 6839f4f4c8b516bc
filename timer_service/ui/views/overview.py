"""The overview: what is wrong, how much there is to do and how fast it is done, what comes next, and what failed."""

import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from timer_service.core.due.loop import Loop
from timer_service.core.ports.database import Reader, Row
from timer_service.core.ports.health import Health
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.ui import charts, tenants
from timer_service.ui.activity import MINUTES, Activity, Minute, activity
from timer_service.ui.failures import Failure, Kind, count_kinds, read_last
from timer_service.ui.formats import at_least, duration
from timer_service.ui.instance import Instance
from timer_service.ui.links import link
from timer_service.ui.pages import Content
from timer_service.ui.rejections import RejectedCommand
from timer_service.ui.samples import last_passes, read_overdue
from timer_service.ui.tenants import MOST_COUNTED, Rows
from timer_service.ui.views.runs import OpenRun, read_open_runs
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
_LATE_SECONDS = 30
"""Due rows that wait longer need attention."""
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


class _Fault(NamedTuple):
    """Something that does not work, and the parts that it affects."""

    reason: str
    parts: Sequence[str]


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
    blocked: Sequence[_Fault]
    """The commands that cannot be applied."""


async def _show(asked: Asked) -> Content:
    instance = asked.instance
    passes = last_passes(instance.registry)
    hour = activity(instance.samples.until(asked.now), asked.now)
    loops = instance.loops()
    work = await _read_work(asked)
    values = {
        "faults": [*_faults(instance, loops), *_late(instance), *(() if work is None else work.blocked)],
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


def _faults(instance: Instance, loops: Sequence[Loop]) -> Sequence[_Fault]:
    """Return what is wrong, each reason once: the broker, for example, is the reason of several parts."""
    found: dict[str, list[str]] = {}
    of_loops = {loop.health.reason: _health_of(loop)[1].reason for loop in loops}  # flows may have it with its name
    for name, health in chain(instance.needs().items(), instance.flows().items(), map(_health_of, loops)):
        if health.reason is not None:
            found.setdefault(of_loops.get(health.reason) or health.reason, []).append(name)
    return [_Fault(reason, parts) for reason, parts in found.items()]


def _late(instance: Instance) -> Sequence[_Fault]:
    """Return the tables whose due rows wait for long. Workflows wait for the workers of users."""
    return [
        _Fault(f"{count:,} due rows wait, the oldest for {duration(int(seconds * 1000))}", [table])
        for table, (count, seconds) in read_overdue(instance.registry).items()
        if seconds > _LATE_SECONDS and table != "workflows"
    ]


def _blocked(rows: Sequence[Row]) -> Sequence[_Fault]:
    """Return the commands that wait behind one that cannot be applied, by the reason."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["last_error"], []).append(row)
    return [
        _Fault(
            f"{at_least(sum(int(row['commands']) for row in those), MOST_COUNTED)} commands wait: {reason}",
            [f"tenant {row['tenant_id']}" for row in those],
        )
        for reason, those in found.items()
    ]


def _health_of(loop: Loop) -> tuple[str, Health]:
    """Return a loop, and its health without its name: many loops have the same reason. One that hangs is down, too."""
    name, reason = f"loop {loop.name}", loop.health.reason
    if reason is None:
        return name, Health.down("hangs") if loop.stalled else loop.health
    return name, Health.down(reason.removeprefix(f"{name} ").removeprefix("fails: "))


def _loop(loop: Loop, passed_at: int | None) -> dict[str, Any]:
    return {"name": loop.name, "health": _health_of(loop)[1], "passed_at": passed_at}


async def _read_work(asked: Asked) -> _Work | None:
    """Return what the database has, or None if it does not answer: the page shows the health all the same."""
    reader, now = asked.reads.reader, asked.now
    try:
        failed = await count_kinds(reader)
        workflows = await reader.fetch(_SQL["open_workflows"], {"limit": MOST_COUNTED})
        lanes = await reader.fetch(_SQL["due_lanes"], {"now": now, "limit": MOST_COUNTED})
        workers = await reader.fetch(_SQL["workers"], {"since": now - ONLINE_MS, "limit": MOST_COUNTED})
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
            blocked=_blocked(await reader.fetch(_SQL["blocked_commands"], {"rows": MOST_COUNTED, "limit": _BLOCKED})),
        )
    except DatabaseUnavailableError:
        return None


def _by_status(workflows: Sequence[Row]) -> Mapping[str, int]:
    counts = {row["status"]: row["count"] for row in workflows}
    return {status: counts[status] for status in WorkflowStatus if status in counts}


def _without_worker(lanes: Sequence[Row], workers: Sequence[Row]) -> Mapping[str, int]:
    """Return how many workflows of each tenant wait for a worker, while none asks for their queue and type."""
    asked = {(row["tenant_id"], row["queue"], each) for row in workers for each in json.loads(row["types"])}
    found = Counter[str]()
    for row in lanes:
        if row["count"] and (row["tenant_id"], row["queue"], row["type"]) not in asked:
            found[row["tenant_id"]] += row["count"]
    return found


async def _read_next(reader: Reader) -> Sequence[_Next]:
    """Return the timers and the slots that fire next, the earliest first."""
    found: list[tuple[int, _Next]] = []
    for kind, block in (("timer", "next_timers"), ("schedule", "next_slots")):
        rows = await reader.fetch(_SQL[block], {"limit": _NEXT})
        found += [(row["available_at"], _Next(kind, *(row[name] for name in _Next._fields[1:]))) for row in rows]
    return [each for _, each in sorted(found)[:_NEXT]]


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
