import platform
import time
from importlib.metadata import version
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.values.errors import Code
from timer_service.metrics import Metrics
from timer_service.zone_data import zone_data


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


MEASURED: list[tuple[str, tuple[Any, ...], str, dict[str, str], float]] = [
    ("command_handled", ("X", "done", 2), "timer_commands_received_total", {"type": "X", "outcome": "done"}, 2),
    ("dead_letter_stored", (Code.TOO_LARGE,), "timer_dead_letters_total", {"code": "TOO_LARGE"}, 1),
    ("query_answered", ("q", "answered"), "timer_queries_total", {"query": "q", "outcome": "answered"}, 1),
    ("queries_waiting", (9,), "timer_queries_waiting", {}, 9),
    ("request_answered", ("r", "BUSY"), "timer_requests_total", {"request": "r", "outcome": "BUSY"}, 1),
    ("requests_waiting", (3,), "timer_requests_waiting", {}, 3),
    ("polls_held", (11,), "timer_polls_held", {}, 11),
    ("tasks_sent", (12,), "timer_tasks_sent_total", {}, 12),
    ("claimed", (7,), "timer_claim_batch_size_sum", {}, 7),
    ("published", (0.25,), "timer_publish_duration_seconds_sum", {}, 0.25),
    ("publish_failed", ("refused", 2), "timer_publish_failures_total", {"reason": "refused"}, 2),
    ("settled", ("t", "fired", 5), "timer_schedules_processed_total", {"table": "t", "outcome": "fired"}, 5),
    ("leases_lost", (3,), "timer_lease_lost_total", {}, 3),
    ("buried", ("t", 4), "timer_buried_total", {"table": "t"}, 4),
    ("counted", ("t", "Scheduled", 6), "timer_rows", {"table": "t", "state": "Scheduled"}, 6),
    ("overdue", ("t", 8, 1.5), "timer_overdue", {"table": "t"}, 8),
    ("overdue", ("t", 8, 1.5), "timer_oldest_due_lag_seconds", {"table": "t"}, 1.5),
    ("slots_missed", (13,), "timer_slots_missed_total", {}, 13),
    ("slots_not_started", ("busy", 14), "timer_slots_not_started_total", {"reason": "busy"}, 14),
    ("clock_measured", (-0.5,), "timer_clock_offset_seconds", {}, -0.5),
    ("fired_late", ("t", 0.75, 4), "timer_fire_lag_seconds_sum", {"table": "t"}, 3),
    ("fired_late", ("t", 0.75, 4), "timer_fire_lag_seconds_bucket", {"table": "t", "le": "1.0"}, 4),
    ("fired_late", ("t", 1, 4), "timer_fire_lag_seconds_bucket", {"table": "t", "le": "1.0"}, 4),
    ("fired_late", ("t", 1.01, 4), "timer_fire_lag_seconds_bucket", {"table": "t", "le": "1.0"}, 0),
    ("ticked", ("outbox", 0.5), "timer_polling_duration_seconds_sum", {"loop": "outbox"}, 0.5),
    ("event_limits_reached", (2,), "timer_event_limits_reached", {}, 2),
]


@pytest.mark.parametrize("measured", MEASURED, ids=lambda measured: measured[2])
def test_measurements(
    registry: CollectorRegistry, measured: tuple[str, tuple[Any, ...], str, dict[str, str], float]
) -> None:
    """The core's measurements appear under the documented names and labels."""
    method, arguments, name, labels, value = measured
    core: MetricsPort = Metrics(registry)
    getattr(core, method)(*arguments)
    assert registry.get_sample_value(name, labels) == value


def test_queues_and_last_pass(metrics: Metrics, registry: CollectorRegistry) -> None:
    """What waits is counted by its changes. The instant of the last pass shows whether a loop goes on."""
    for change in (3, -1):
        metrics.queries_waiting(change)
        metrics.requests_waiting(change)
    assert [registry.get_sample_value(f"timer_{name}_waiting") for name in ("queries", "requests")] == [2, 2]
    metrics.ticked("outbox", 0.5)
    found = registry.get_sample_value("timer_loop_last_tick_timestamp_seconds", {"loop": "outbox"})
    assert found == pytest.approx(time.time(), abs=60)


def test_failure_series_begin_at_zero(metrics: Metrics, registry: CollectorRegistry) -> None:
    """Every series of a failure exists before the first failure, so that an alert sees the increase from 0 to 1."""
    metrics.create_failure_series(
        commands=["CancelTimer"],
        queries=["get-run"],
        requests=["poll-tasks"],
        leased=["outbox"],
        due=["schedules"],
        skips=["busy"],
    )
    series: list[tuple[str, dict[str, str]]] = [
        *(("timer_publish_failures_total", {"reason": reason}) for reason in ("refused", "full", "unavailable")),
        *(("timer_dead_letters_total", {"code": str(code)}) for code in Code),
        *(("timer_commands_received_total", {"type": t, "outcome": "rejected"}) for t in ("CancelTimer", "unknown")),
        ("timer_commands_received_total", {"type": "CancelTimer", "outcome": "over_quota"}),
        ("timer_slots_not_started_total", {"reason": "busy"}),
        *(("timer_queries_total", {"query": "get-run", "outcome": code}) for code in ("BUSY", "INTERNAL")),
        *(("timer_requests_total", {"request": "poll-tasks", "outcome": code}) for code in ("BUSY", "INTERNAL")),
        ("timer_buried_total", {"table": "outbox"}),
        *(("timer_schedules_processed_total", {"table": "outbox", "outcome": o}) for o in ("retried", "buried")),
        *(("timer_schedules_processed_total", {"table": "schedules", "outcome": o}) for o in ("failed", "left")),
        ("timer_lease_lost_total", {}),
    ]
    assert [(*each, registry.get_sample_value(*each)) for each in series] == [(*each, 0) for each in series]
    assert registry.get_sample_value("timer_publish_failures_total", {"reason": "published"}) is None


def test_build_info(registry: CollectorRegistry) -> None:
    """The labels of a gauge that is always 1 contain the running versions."""
    Metrics(registry)
    labels = {"version": version("timer-service"), "python": platform.python_version()}
    labels |= {"system_zones": zone_data().system, "tzdata": version("tzdata")}
    assert registry.get_sample_value("timer_build_info", labels) == 1


def test_health_at_every_scrape(metrics: Metrics, registry: CollectorRegistry) -> None:
    """Each scrape asks for the health of broker, database and flows. A flow with a reason counts as down."""
    usable = {"broker": True, "database": False}
    health = {"commands": Health.down("away"), "events": HEALTHY, "queries": Health(reason="a permission is denied")}
    metrics.watch(broker=lambda: usable["broker"], database=lambda: usable["database"], flows=lambda: health)

    def up() -> list[float | None]:
        parts = [registry.get_sample_value(f"timer_{name}") for name in ("broker_connected", "database_usable")]
        return parts + [registry.get_sample_value("timer_flow_up", {"flow": name}) for name in health]

    before = up()
    health |= {"commands": HEALTHY, "events": Health.down("full")}
    usable |= {"broker": False, "database": True}
    assert (before, up()) == ([1, 0, 0, 1, 0], [0, 1, 1, 0, 0])
