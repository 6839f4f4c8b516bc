"""The Prometheus metrics of the service."""

import platform
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from importlib.metadata import version
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from timer_service.core.limits.quotas import OVER_QUOTA
from timer_service.core.ports.broker import TRANSIENT, PublishStatus
from timer_service.core.ports.health import Health
from timer_service.core.values.errors import Code
from timer_service.zone_data import zone_data

_LAG = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_DURATION = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_ROWS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class CountedHistogram(Histogram):
    """A histogram that counts equal values in one step: the timers of a batch are often due at one instant."""

    def observe_many(self, value: float, count: int) -> None:
        """Record that a value occurred `count` times."""
        self._sum.inc(value * count)
        self._buckets[bisect_left(self._upper_bounds, value)].inc(count)


class Metrics:
    """The core's `MetricsPort`, implemented with collectors in `registry`. Attributes are methods of the port, too."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(_counter, registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        outcomes = "by name and outcome: answered, or the code of the error."
        self._commands = counter("timer_commands_received", "Handled commands, by type and outcome.", "type", "outcome")
        self._settled = counter(
            "timer_schedules_processed", "Claimed rows, by how they were settled.", "table", "outcome"
        )
        self._failures = counter("timer_publish_failures", "Messages that were not published, by reason.", "reason")
        self._buried = counter("timer_buried", "Rows that were given up after too many attempts.", "table")
        self._dead_letters = counter("timer_dead_letters", "Rejected commands, by code.", "code")
        self._queries = counter("timer_queries", f"Queries, {outcomes}", "query", "outcome")
        self.queries_waiting = gauge("timer_queries_waiting", "Queries that wait to be answered.").inc
        self._requests = counter("timer_requests", f"Requests of workers, {outcomes}", "request", "outcome")
        self.requests_waiting = gauge("timer_requests_waiting", "Requests of workers that wait to be applied.").inc
        self.polls_held = gauge("timer_polls_held", "Polls of workers that wait for a task.").set
        self.tasks_sent = Counter("timer_tasks_sent", "Tasks that were sent to workers.", registry=registry).inc
        self.leases_lost = Counter(
            "timer_lease_lost", "Rows that were claimed again or changed before they were settled.", registry=registry
        ).inc
        self.slots_missed = Counter(
            "timer_slots_missed", "Slots of schedules that were skipped because they were late.", registry=registry
        ).inc
        self._slots_not_started = counter(
            "timer_slots_not_started", "Slots of schedules that started no workflow, by reason.", "reason"
        )
        self._polling = cache(
            histogram(
                "timer_polling_duration_seconds", "Duration of one pass of a loop.", ["loop"], buckets=_DURATION
            ).labels
        )
        self._lag = cache(
            CountedHistogram(
                "timer_fire_lag_seconds",
                "Time from when a row was due until its event was published.",
                ["table"],
                registry=registry,
                buckets=_LAG,
            ).labels
        )
        self.published = histogram(
            "timer_publish_duration_seconds", "Duration of publishing one batch.", buckets=_DURATION
        ).observe
        self.claimed = histogram("timer_claim_batch_size", "Rows taken by one claim.", buckets=_ROWS).observe
        self._rows = gauge("timer_rows", "Rows by state, sampled, counted up to a million.", ["table", "state"])
        self._overdue = gauge("timer_overdue", "Claimable rows that are not claimed yet, sampled.", ["table"])
        self._oldest = gauge(
            "timer_oldest_due_lag_seconds", "How long the oldest of these rows has been claimable, sampled.", ["table"]
        )
        self._last_tick = gauge(
            "timer_loop_last_tick_timestamp_seconds", "Unix time of the end of a loop's last pass.", ["loop"]
        )
        self.event_limits_reached = gauge(
            "timer_event_limits_reached", "Limits of events that are used up, so that events wait."
        ).set
        self.clock_measured = gauge(
            "timer_clock_offset_seconds",
            "Seconds that the database's clock is ahead of this machine's clock; always 0 on SQLite.",
        ).set
        self._broker_connected = gauge("timer_broker_connected", "1 if the broker can be used, else 0.")
        self._database_usable = gauge(
            "timer_database_usable", "1 if the database can be read and its last write succeeded, else 0."
        )
        self._flow_up = gauge(
            "timer_flow_up",
            "1 if commands are handled, events are published or queries are answered, else 0.",
            ["flow"],
        )
        gauge(
            "timer_build_info",
            "Always 1; the labels are the running versions, also of the time zone data.",
            ["version", "python", "system_zones", "tzdata"],
        ).labels(version("timer-service"), platform.python_version(), *zone_data()).set(1)
        ProcessCollector(registry=registry)

    def create_failure_series(
        self,
        *,
        commands: Iterable[str],
        queries: Iterable[str],
        requests: Iterable[str],
        leased: Iterable[str],
        due: Iterable[str],
        skips: Iterable[str],
    ) -> None:
        """Create the series of all failures at 0: of commands, queries, requests, and tables with due rows.

        `skips` are the reasons why a slot of a schedule starts no workflow.

        A series must exist before the first failure: otherwise an alert on its increase misses this failure.
        """
        for status in (PublishStatus.REFUSED, *TRANSIENT):
            self._failures(status)  # the call creates the series
        for code in Code:
            self._dead_letters(code)
        for message_type in (*commands, "unknown"):
            self._commands(message_type, "rejected")
            self._commands(message_type, OVER_QUOTA)
        for counter, names in ((self._queries, queries), (self._requests, requests)):
            for name, code in product(names, (Code.BUSY, Code.INTERNAL)):
                counter(name, code)
        for table in leased:
            self._buried(table)
        for table, outcome in (*product(leased, ("retried", "buried")), *product(due, ("failed", "left"))):
            self._settled(table, outcome)
        for reason in skips:
            self._slots_not_started(reason)

    def watch(
        self,
        *,
        broker: Callable[[], bool],
        database: Callable[[], bool],
        flows: Callable[[], Mapping[str, Health]],
    ) -> None:
        """At every scrape, ask whether broker and database can be used, and for the health of each flow by its name.

        `flows` must always return the same names.
        """
        self._broker_connected.set_function(lambda: float(broker()))
        self._database_usable.set_function(lambda: float(database()))
        for name in flows():
            self._flow_up.labels(name).set_function(partial(lambda each: float(flows()[each].reason is None), name))

    def command_handled(self, message_type: str, outcome: str, count: int = 1) -> None:
        """Count commands by their type and outcome."""
        self._commands(message_type, outcome).inc(count)

    def dead_letter_stored(self, code: str) -> None:
        """Count a rejected command whose dead letter was stored."""
        self._dead_letters(code).inc()

    def query_answered(self, name: str, outcome: str) -> None:
        """Count a query by its name and outcome."""
        self._queries(name, outcome).inc()

    def request_answered(self, name: str, outcome: str) -> None:
        """Count a request of a worker by its name and outcome."""
        self._requests(name, outcome).inc()

    def publish_failed(self, status: str, count: int) -> None:
        """Count messages that were not published, by their status."""
        self._failures(status).inc(count)

    def settled(self, table: str, outcome: str, count: int) -> None:
        """Count claimed rows of a table by how they were settled."""
        self._settled(table, outcome).inc(count)

    def fired_late(self, table: str, seconds: float, count: int = 1) -> None:
        """Record that `count` rows were fired `seconds` after they were due."""
        self._lag(table).observe_many(seconds, count)

    def slots_not_started(self, reason: str, count: int) -> None:
        """Count slots of schedules that started no workflow, by the reason."""
        self._slots_not_started(reason).inc(count)

    def buried(self, table: str, count: int) -> None:
        """Count buried rows of a table."""
        self._buried(table).inc(count)

    def counted(self, table: str, state: str, count: int) -> None:
        """Set the number of rows of a table in a state."""
        self._rows.labels(table, state).set(count)

    def overdue(self, table: str, count: int, oldest_seconds: float) -> None:
        """Set the number of claimable rows of a table, and for how long the oldest has been claimable."""
        self._overdue.labels(table).set(count)
        self._oldest.labels(table).set(oldest_seconds)

    def ticked(self, loop: str, seconds: float) -> None:
        """Record that a loop did a pass, which took `seconds`."""
        self._polling(loop).observe(seconds)
        self._last_tick.labels(loop).set_to_current_time()


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Callable[..., Counter]:
    """Create a counter; return its cached `labels` method. A lookup costs three times as much as an increment."""
    return cache(Counter(name, text, labels, registry=registry).labels)
