"""The slices of one instance: the routes of their commands, their queries, and the loops of their workers."""

from datetime import timedelta
from functools import partial

from timer_service import events, runs, signals, timers
from timer_service.app.storage import Storage
from timer_service.config import Config
from timer_service.core.broker import Broker
from timer_service.core.consumer import Handle, Route
from timer_service.core.health import OutageLog
from timer_service.core.lease import Lease
from timer_service.core.loop import Loop, Worker
from timer_service.core.metrics_port import MetricsPort
from timer_service.core.recovery import take_over_claims
from timer_service.core.retention import Retention
from timer_service.core.row_counts import RowCounts
from timer_service.core.slice import Slice, WorkerParts
from timer_service.core.wakeups import Wakeups

SLICES: tuple[Slice, ...] = (timers.SLICE, signals.SLICE, runs.SLICE, events.SLICE)
"""In the order in which the consumer handles a batch, so that all instances lock rows in the same order."""

QUERIES = tuple(query for each in SLICES for query in each.queries)

_RETENTION_INTERVAL = timedelta(minutes=1)
_ROW_COUNTS_INTERVAL = timedelta(seconds=15)


def routes(config: Config, wakeups: Wakeups) -> list[Route]:
    """Return the route of each slice's commands."""
    return [Route(each.commands, _handler(each, config), partial(wakeups.wake, each.wakes)) for each in SLICES]


class Workers:
    """The loops of one instance."""

    def __init__(
        self, config: Config, storage: Storage, broker: Broker, metrics: MetricsPort, outages: OutageLog
    ) -> None:
        self._config = config
        self._storage = storage
        self._metrics = metrics
        self._outages = outages
        self._enabled = [each for each in SLICES if _is_enabled(each, config)]
        self.loops: list[Loop] = []
        parts = WorkerParts(
            database=storage.database,
            broker=broker,
            clock=storage.clock,
            metrics=metrics,
            batch_size=config.batch_size,
            max_attempts=config.max_attempts,
            visibility_timeout=config.visibility_timeout,
            wake=self._wake,
        )
        for each in self._enabled:
            for name, build in each.workers.items():
                self._add_loop(name, build(parts), config.polling_interval)
        self._add_upkeep()

    async def recover(self) -> None:
        """End the leases of a dead process, if only one process at a time can use the database."""
        for table in (table for each in self._enabled for table in each.leased):
            lease = Lease(table, self._config.visibility_timeout)
            await take_over_claims(self._storage.database, lease, self._storage.clock.now())

    def _add_upkeep(self) -> None:
        keep = timedelta(days=self._config.retention_days)
        for each in SLICES:
            if each.delete_settled is not None:
                retention = Retention(self._storage.database, keep, each.delete_settled)
                self._add_loop(f"{each.name}-retention", retention, _RETENTION_INTERVAL)
        row_counts = RowCounts(
            self._storage.database,
            self._metrics,
            counted=[rows for each in SLICES for rows in each.counted],
            leased=[table for each in SLICES for table in each.leased],
        )
        self._add_loop("row-counts", row_counts, _ROW_COUNTS_INTERVAL)

    def _add_loop(self, name: str, worker: Worker, polling_interval: timedelta) -> None:
        loop = Loop(
            name,
            worker,
            clock=self._storage.clock,
            polling_interval=polling_interval,
            metrics=self._metrics,
            outages=self._outages,
        )
        self.loops.append(loop)

    def _wake(self, name: str, at: int) -> None:
        for loop in self.loops:
            if loop.name == name:
                loop.wake(at)


def _handler(each: Slice, config: Config) -> Handle:
    return each.handle if each.handle_when_off is None or _is_enabled(each, config) else each.handle_when_off


def _is_enabled(each: Slice, config: Config) -> bool:
    return each.handle_when_off is None or each.name in config.enabled
