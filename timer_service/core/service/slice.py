"""The description of a slice: its messages, its handler, its workers and its tables.

`timer_service.app` runs every slice in `SLICES`. `contracts/generate.py` writes the schemas of their messages.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from timer_service.core.due.due_rows import DueTable
from timer_service.core.due.lease import Lease, LeasedTable
from timer_service.core.due.loop import Worker
from timer_service.core.due.row_counts import CountedRows
from timer_service.core.events.cloud_events import describe
from timer_service.core.events.relay import Encode, Relay
from timer_service.core.intake.apply import Handlers
from timer_service.core.intake.commit import Commits, OnDone, OnRejected
from timer_service.core.intake.reader import LogReader
from timer_service.core.intake.route import Lane, LimitedHandle, Route, offer_nothing
from timer_service.core.limits.audit import AuditLog
from timer_service.core.limits.event_allowances import EventAllowances
from timer_service.core.limits.quotas import Quotas, Usage
from timer_service.core.ports.broker import Broker, Publish
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database
from timer_service.core.ports.health import PUBLISHING_SECONDS, OutageLog, RecentFailure
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.requests.query import Queries, QueryRoute
from timer_service.core.requests.requests import RequestRoute
from timer_service.core.service.clock_repair import TimedRows
from timer_service.core.service.upkeep import Delete
from timer_service.core.values.budget import DEFAULT_BUDGET, Budget
from timer_service.core.values.message import Payload, TenantPayload


def _publishing() -> RecentFailure:
    return RecentFailure(PUBLISHING_SECONDS)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an instance, from which it builds its reader of commands and its workers."""

    database: Database
    broker: Broker
    clock: Clock
    metrics: MetricsPort
    batch_size: int
    max_attempts: int
    visibility_timeout: timedelta
    wake: Callable[[str, int], None]
    """Wakes a loop of this instance at an instant. The first argument is the loop's name."""
    budget: Budget = DEFAULT_BUDGET
    """How many bytes of messages the parts may hold."""
    outages: OutageLog = field(default_factory=OutageLog)
    """The outages of the database."""
    audit: AuditLog = field(default_factory=AuditLog)
    publishing: RecentFailure = field(default_factory=_publishing)
    """Whether events can be published."""
    dead_letters: RecentFailure = field(default_factory=_publishing)
    """Whether dead letters can be published."""
    publish: Publish | None = None
    """How events are published, in place of `broker.publish`."""
    cloudevents: bool = False
    """Whether events have the attributes of CloudEvents in their headers."""
    on_done: OnDone | None = None
    """Called after each transaction of commands with what it has done."""
    on_rejected: OnRejected | None = None
    """Called with each command that became a dead letter."""
    quotas: Quotas = field(default_factory=Quotas)
    allowances: EventAllowances = field(default_factory=EventAllowances)
    """Who may publish events."""
    offer: Callable[[Lane, int], None] = offer_nothing
    """Says that a row of a lane becomes available to workers of users at an instant."""
    rng: random.Random = field(default_factory=random.Random)
    """The source of the jitter of retries."""

    def reader(
        self, routes: Sequence[Route], wake_outbox: Callable[[], Awaitable[None]], *, from_now: bool = False
    ) -> LogReader:
        """Return what reads the log of commands and applies these by `routes`. `from_now`: see `LogReader`."""
        commits = Commits(
            database=self.database,
            broker=self.broker,
            handlers=Handlers(routes),
            clock=self.clock,
            metrics=self.metrics,
            audit=self.audit,
            wake_outbox=wake_outbox,
            on_done=self.on_done,
            on_rejected=self.on_rejected,
        )
        return LogReader(
            commits=commits,
            command_log=self.broker.log,
            batch_size=self.batch_size,
            outages=self.outages,
            budget=self.budget,
            from_now=from_now,
        )

    def queries(self, routes: Sequence[QueryRoute]) -> Queries:
        """Return what answers the queries of `routes`."""
        return Queries(self.database, self.clock, routes, self.metrics, budget=self.budget)

    def relay(self, table: LeasedTable, encode: Encode, *, limited: bool = True) -> Relay:
        """Return a worker that publishes the available rows of `table`, if `limited` as far as tenants may."""
        return Relay(
            database=self.database,
            broker=self.broker,
            lease=Lease(table, self.visibility_timeout),
            encode=(lambda row, at: describe(encode(row, at))) if self.cloudevents else encode,
            clock=self.clock,
            metrics=self.metrics,
            batch_size=self.batch_size,
            max_attempts=self.max_attempts,
            publishing=self.publishing,
            publish=self.publish,
            allowances=self.allowances,
            limited=limited,
            claim_bytes=self.budget.claim,
            rng=self.rng,
        )


BuildWorker = Callable[[Parts], Worker]


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice of the service."""

    name: str
    commands: tuple[type[TenantPayload], ...]
    outcomes: type[StrEnum]
    """The outcomes of its commands."""
    handle: LimitedHandle
    queries: tuple[QueryRoute, ...]
    workers: Mapping[str, BuildWorker]
    """Its workers, by the names of their loops."""
    wakes: tuple[str, ...]
    """The loops to wake after a command, beside those that its result names."""
    leased: tuple[LeasedTable, ...]
    counted: tuple[CountedRows, ...]
    due: tuple[DueTable, ...] = ()
    """Its tables with overdue rows for the metrics, without the leased ones."""
    overdue: Mapping[str, str] = field(default_factory=dict)
    """The statements that count overdue rows of its other tables, by table."""
    timed: tuple[TimedRows, ...] = ()
    """Its rows that wait for an instant, without those of its leased tables."""
    events: tuple[type[Payload], ...] = ()
    views: Mapping[str, type[Payload]] = field(default_factory=dict)
    """The fields that a command's reply may have in addition to the outcome."""
    requests: tuple[RequestRoute, ...] = ()
    """The requests of workers."""
    usages: tuple[Usage, ...] = ()
    """What the tenants may have of it at most."""
    delete_settled: Delete | None = None
    """Deletes rows that were settled before an instant; None if the slice keeps no settled rows."""
    kept_at_least: timedelta = timedelta(0)
    """How long these rows are kept if TIMER_RETENTION_DAYS is shorter."""
    handle_when_off: LimitedHandle | None = None
    """Handles commands while the slice is disabled; None if it cannot be disabled."""

    def keep(self, retention: timedelta) -> timedelta:
        """Return how long settled rows are kept. `retention`: the setting."""
        return max(retention, self.kept_at_least)
