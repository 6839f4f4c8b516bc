import platform
from importlib.metadata import version

import pytest
from prometheus_client import CollectorRegistry

from timer_service.core.ports.broker import PublishStatus
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


def test_implements_the_port_under_the_documented_names(metrics: Metrics, registry: CollectorRegistry) -> None:
    """The core's measurements appear under the documented names and labels."""
    core: MetricsPort = metrics
    core.command_handled("ScheduleTimer", "scheduled", 2)
    core.command_handled("CancelTimer", "cancelled")
    core.dead_letter_stored(Code.TOO_LARGE)
    core.query_answered("get-run", "answered")
    core.queries_waiting(9)
    core.claimed(7)
    core.published(0.25)
    core.publish_failed(PublishStatus.REFUSED, 2)
    core.settled("timer_schedules", "fired", 5)
    core.leases_lost(3)
    core.buried("timer_schedules", 4)
    core.counted("timer_schedules", "Scheduled", 6)
    core.overdue("timer_schedules", 8, 1.5)
    core.request_answered("poll-tasks", "BUSY")
    core.requests_waiting(3)
    core.requests_waiting(-1)
    core.polls_held(11)
    core.tasks_sent(12)
    core.slots_missed(13)
    core.slots_not_started("over_quota", 14)
    core.clock_measured(-0.5)
    core.fired_late("outbox", 0.75)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("timer_commands_received_total", type="ScheduleTimer", outcome="scheduled") == 2
    assert value("timer_commands_received_total", type="CancelTimer", outcome="cancelled") == 1
    assert value("timer_dead_letters_total", code="TOO_LARGE") == 1
    assert value("timer_queries_total", query="get-run", outcome="answered") == 1
    assert value("timer_queries_waiting") == 9
    assert value("timer_claim_batch_size_sum") == 7
    assert value("timer_publish_duration_seconds_sum") == 0.25
    assert value("timer_publish_failures_total", reason="refused") == 2
    assert value("timer_schedules_processed_total", table="timer_schedules", outcome="fired") == 5
    assert value("timer_lease_lost_total") == 3
    assert value("timer_buried_total", table="timer_schedules") == 4
    assert value("timer_rows", table="timer_schedules", state="Scheduled") == 6
    assert value("timer_overdue", table="timer_schedules") == 8
    assert value("timer_oldest_due_lag_seconds", table="timer_schedules") == 1.5
    assert value("timer_requests_total", request="poll-tasks", outcome="BUSY") == 1
    assert value("timer_requests_waiting") == 2
    assert value("timer_polls_held") == 11
    assert value("timer_tasks_sent_total") == 12
    assert value("timer_slots_missed_total") == 13
    assert value("timer_slots_not_started_total", reason="over_quota") == 14
    assert value("timer_clock_offset_seconds") == -0.5
    assert value("timer_fire_lag_seconds_sum", table="outbox") == 0.75


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
        ("timer_schedules_processed_total", {"table": "schedules", "outcome": "failed"}),
        ("timer_lease_lost_total", {}),
    ]
    assert [(*each, registry.get_sample_value(*each)) for each in series] == [(*each, 0) for each in series]
    assert registry.get_sample_value("timer_publish_failures_total", {"reason": "published"}) is None


def test_broker_is_checked_at_every_scrape(metrics: Metrics, registry: CollectorRegistry) -> None:
    """The gauge is 0 until a broker is watched. Then each scrape checks the broker."""
    answers = [True, False]
    seen = [registry.get_sample_value("timer_broker_connected")]
    metrics.watch_broker(lambda: answers.pop(0))
    seen += [registry.get_sample_value("timer_broker_connected") for _ in range(2)]
    assert seen == [0, 1, 0]


def test_build_info(registry: CollectorRegistry) -> None:
    """The labels of a gauge that is always 1 contain the running versions."""
    Metrics(registry)
    labels = {"version": version("timer-service"), "python": platform.python_version()}
    labels |= {"system_zones": zone_data().system, "tzdata": version("tzdata")}
    assert registry.get_sample_value("timer_build_info", labels) == 1


def test_health_of_each_flow(metrics: Metrics, registry: CollectorRegistry) -> None:
    """Each flow has its own health, at the time of the scrape. A flow with a reason counts as down."""
    health = {"commands": Health.down("away"), "events": HEALTHY, "queries": Health(reason="a permission is denied")}
    metrics.watch_flows(lambda: health)

    def up() -> list[float | None]:
        return [registry.get_sample_value("timer_flow_up", {"flow": name}) for name in health]

    before = up()
    health |= {"commands": HEALTHY, "events": Health.down("full")}
    assert (before, up()) == ([0, 1, 0], [1, 0, 0])
