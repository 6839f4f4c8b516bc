"""The slices of one instance: the routes of their commands, their queries, and the loops of their workers."""

from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial

from timer_service import events, runs, schedules, signals, timers, workflows
from timer_service.app.tasks import build_loop
from timer_service.app.usage import usage_query
from timer_service.config import Config
from timer_service.core.due.lease import Lease, take_over_claims
from timer_service.core.due.loop import Loop, Wakeups, Worker
from timer_service.core.due.row_counts import RowCounts, overdue_sql
from timer_service.core.intake.route import Handle, Lane, Route
from timer_service.core.limits.quotas import Quotas
from timer_service.core.limits.tenant_limits import DEFAULT_LIMITS, TenantLimits
from timer_service.core.ports.health import Health, worst
from timer_service.core.requests.query import QueryRoute
from timer_service.core.service.clock_repair import ClockRepair, leased_rows
from timer_service.core.service.slice import Parts, Slice
from timer_service.core.service.upkeep import Retention
from timer_service.workflows.commands.slot_start import start_workflows

SCHEDULES = schedules.build_slice(start_workflows)
SLICES: tuple[Slice, ...] = (
    timers.SLICE,
    signals.SLICE,
    SCHEDULES,
    workflows.SLICE,
    runs.SLICE,
    events.SLICE,
)
"""In the order in which the consumer handles a batch, so that all instances lock rows in the same order."""


def queries(limits: TenantLimits) -> tuple[QueryRoute, ...]:
    """Return the queries of every slice, and the query about the limits."""
    usages = [usage for each in SLICES for usage in each.usages]
    return (*(query for each in SLICES for query in each.queries), usage_query(limits, usages))


QUERIES = queries(DEFAULT_LIMITS)
"""The queries, for their names and schemas."""

_RETENTION_INTERVAL = timedelta(minutes=1)
_ROW_COUNTS_INTERVAL = timedelta(seconds=15)


def routes(
    enabled: Collection[str],
    wakeups: Wakeups,
    quotas: Quotas,
    offer: Callable[[Lane, int], None],
) -> list[Route]:
    """Return the route of each slice's commands. `enabled` has the names of the slices that are not disabled."""
    return [
        Route(each.commands, handler(each, enabled, quotas), partial(wakeups.wake_slice, each.wakes), offer)
        for each in SLICES
    ]


def handler(slice_: Slice, enabled: Collection[str], quotas: Quotas) -> Handle:
    """Return the handler of a slice's commands, which depends on whether the slice is enabled."""
    handle = slice_.handle if slice_.name in enabled else slice_.handle_when_off or slice_.handle
    return partial(handle, quotas=quotas)


def build_workers(slice_: Slice, parts: Parts) -> dict[str, Worker]:
    """Return the workers of a slice by the names of their loops."""
    return {name: build(parts) for name, build in slice_.workers.items()}


def build_clock_repair(parts: Parts) -> ClockRepair:
    """Return the worker that repairs the rows of all slices after the clock was ahead."""
    leased = [leased_rows(table, parts.visibility_timeout) for each in SLICES for table in each.leased]
    timed = [rows for each in SLICES for rows in each.timed]
    return ClockRepair(parts.database, parts.clock, [*leased, *timed])


class Workers:
    """The loops of one instance."""

    def __init__(self, config: Config, parts: Parts) -> None:
        self._config = config
        self._parts = parts
        self._enabled = [each for each in SLICES if each.handle_when_off is None or each.name in config.enabled]
        self._firing = [
            build_loop(parts, name, worker, config.polling_interval)
            for each in self._enabled
            for name, worker in build_workers(each, parts).items()
        ]
        self.loops = [*self._firing, *self._upkeep_loops()]

    @property
    def health(self) -> Health:
        """Down while a loop that fires or publishes fails or hangs."""
        return worst(*(loop.health for loop in self._firing))

    async def recover(self) -> None:
        """End the leases of a dead process, if only one process at a time can use the database."""
        for table in (table for each in self._enabled for table in each.leased):
            lease = Lease(table, self._config.visibility_timeout)
            await take_over_claims(self._parts.database, lease, self._parts.clock.now())

    def _upkeep_loops(self) -> list[Loop]:
        """Return the loops that delete old rows and count rows, also those of disabled slices: their rows stay."""
        parts, keep = self._parts, timedelta(days=self._config.retention_days)
        retentions = {
            f"{each.name}-retention": Retention(parts.database, each.keep(keep), each.delete_settled)
            for each in SLICES
            if each.delete_settled is not None
        }
        row_counts = RowCounts(
            parts.database,
            parts.metrics,
            counted=[rows for each in SLICES for rows in each.counted],
            overdue={
                **{table.name: overdue_sql(table) for each in SLICES for table in each.leased},
                **{table.name: overdue_sql(table) for each in SLICES for table in each.due},
                **{table: sql for each in SLICES for table, sql in each.overdue.items()},
            },
        )
        return [
            *(build_loop(parts, name, worker, _RETENTION_INTERVAL) for name, worker in retentions.items()),
            build_loop(parts, "row-counts", row_counts, _ROW_COUNTS_INTERVAL),
        ]
