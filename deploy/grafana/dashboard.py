"""Write dashboard.json, the Grafana dashboard of timer_service: `make dashboard`.

Each worker samples the whole table. So gauges of rows are the maximum over the instances, and counters are the sum.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "dashboard.json"
DATASOURCE = {"type": "prometheus", "uid": "prometheus"}  # the uid is that of provisioning/datasources
WIDTH = 24
RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL query, and the legend of its lines."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard."""

    title: str
    about: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"

    def document(self, number: int, place: dict[str, int]) -> dict[str, Any]:
        """Return the panel as Grafana reads it."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.about,
            "datasource": DATASOURCE,
            "gridPos": place,
            "targets": [
                {
                    "refId": chr(ord("A") + position),
                    "datasource": DATASOURCE,
                    "expr": query.expr,
                    "legendFormat": query.legend,
                    "format": "heatmap" if self.kind == "heatmap" else "time_series",
                }
                for position, query in enumerate(self.queries)
            ],
            "fieldConfig": {"defaults": {"unit": self.unit, "min": 0}, "overrides": []},
            "options": self._options(),
        }

    def _options(self) -> dict[str, Any]:
        match self.kind:
            case "heatmap":
                return {
                    "calculate": False,
                    "yAxis": {"unit": self.unit},
                    "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
                    "cellGap": 1,
                    "tooltip": {"mode": "single"},
                }
            case "stat":
                return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
            case _:
                return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of panels of the same width, under a title."""

    title: str
    panels: tuple[Panel, ...]
    in_a_line: int = 3
    height: int = 8


def per_second(metric: str, by: str) -> Query:
    """Return the rate of a counter by a label."""
    return Query(f"sum by ({by}) (rate({metric}{RATE}))", f"{{{{{by}}}}}")


def total(metric: str, legend: str) -> Query:
    """Return the rate of a counter over all its labels."""
    return Query(f"sum(rate({metric}{RATE}))", legend)


def most(metric: str, by: str) -> Query:
    """Return the maximum of a gauge over the instances, by a label."""
    return Query(f"max by ({by}) ({metric})", f"{{{{{by}}}}}")


def quantile(part: float, metric: str, by: str | None = None) -> Query:
    """Return a quantile of a histogram, by a label if one is given."""
    labels, legend = ("le", "") if by is None else (f"{by}, le", f"{{{{{by}}}}} ")
    rate = f"rate({metric}_bucket{RATE})"
    return Query(f"histogram_quantile({part}, sum by ({labels}) ({rate}))", f"{legend}p{part * 100:g}")


def rows(table: str, title: str, about: str) -> Panel:
    """Return the panel of the rows of a table, by state."""
    return Panel(title, about, "short", (most(f'timer_rows{{table="{table}"}}', "state"),))


NOW = Row(
    "Now",
    (
        Panel(
            "Scheduled timers",
            "Timers that wait for their due time. Counted up to a million.",
            "short",
            (Query('max(timer_rows{table="timer_schedules",state="Scheduled"})', ""),),
            "stat",
        ),
        Panel(
            "Overdue rows",
            "Rows of all tables that are due and that no instance has claimed.",
            "short",
            (Query("sum(max by (table) (timer_overdue))", ""),),
            "stat",
        ),
        Panel(
            "Fired per minute",
            "Timers, firings and schedules.",
            "short",
            (Query(f'60 * sum(rate(timer_schedules_processed_total{{outcome="fired"}}{RATE}))', ""),),
            "stat",
        ),
        Panel(
            "Lag, p99",
            "One of 100 timers fires later than this.",
            "s",
            (
                Query(
                    "histogram_quantile(0.99, sum by (le) "
                    f'(rate(timer_fire_lag_seconds_bucket{{table="timer_schedules"}}{RATE})))',
                    "",
                ),
            ),
            "stat",
        ),
        Panel(
            "Flows that are stopped",
            "/readyz says why.",
            "short",
            (Query("count(timer_flow_up == 0) or vector(0)", ""),),
            "stat",
        ),
        Panel(
            "Instances", "Instances that answer Prometheus.", "short", (Query("count(timer_build_info)", ""),), "stat"
        ),
    ),
    in_a_line=6,
    height=4,
)
TRAFFIC = Row(
    "Traffic in and out",
    (
        Panel(
            "Commands", "Handled commands per second.", "ops", (per_second("timer_commands_received_total", "type"),)
        ),
        Panel(
            "Outcomes of commands",
            "What the commands did. `unchanged` is normal if clients publish commands again.",
            "ops",
            (per_second("timer_commands_received_total", "outcome"),),
        ),
        Panel(
            "Fired and published",
            "Rows that were settled per second. `outbox` has all events but those of timers.",
            "ops",
            (per_second('timer_schedules_processed_total{outcome=~"fired|expired"}', "table"),),
        ),
        Panel(
            "Queries", "Answered and refused queries per second.", "ops", (per_second("timer_queries_total", "query"),)
        ),
        Panel(
            "Requests of workers",
            "Requests of the workers of workflows per second, and tasks that were sent to them.",
            "ops",
            (
                per_second("timer_requests_total", "request"),
                total("timer_tasks_sent_total", "tasks sent"),
            ),
        ),
        Panel(
            "Size of claims",
            "Rows per claim. Claims that are always full mean a backlog.",
            "short",
            (
                Query(
                    f"sum(rate(timer_claim_batch_size_sum{RATE})) / sum(rate(timer_claim_batch_size_count{RATE}))",
                    "mean",
                ),
            ),
        ),
    ),
)
LAG = Row(
    "Lag",
    (
        Panel(
            "Lag of timers",
            "How many timers fired how late.",
            "s",
            (
                Query(
                    f'sum by (le) (increase(timer_fire_lag_seconds_bucket{{table="timer_schedules"}}{RATE}))', "{{le}}"
                ),
            ),
            "heatmap",
        ),
        Panel(
            "Lag by table",
            "From when a row was due until its event was published.",
            "s",
            (quantile(0.5, "timer_fire_lag_seconds", "table"), quantile(0.99, "timer_fire_lag_seconds", "table")),
        ),
    ),
    in_a_line=2,
)
BACKLOG = Row(
    "Backlog",
    (
        Panel(
            "Overdue rows",
            "Rows that are due and that no instance has claimed.",
            "short",
            (most("timer_overdue", "table"),),
        ),
        Panel("Oldest overdue row", "For how long it is due.", "s", (most("timer_oldest_due_lag_seconds", "table"),)),
        Panel(
            "Waiting queries and requests",
            "What the instances hold. Polls of workers that wait for a task are no backlog.",
            "short",
            (
                Query("sum(timer_queries_waiting)", "queries"),
                Query("sum(timer_requests_waiting)", "requests of workers"),
                Query("sum(timer_polls_held)", "polls that wait for a task"),
            ),
        ),
    ),
)
FAILURES = Row(
    "Failures",
    (
        Panel(
            "Dead letters",
            "Rejected commands, by code. Their dead letters wait in the database until the broker stores them.",
            "ops",
            (per_second("timer_dead_letters_total", "code"),),
        ),
        Panel(
            "Refused",
            "Commands of tenants at a limit, and queries and requests that the service could not take.",
            "ops",
            (
                total('timer_commands_received_total{outcome="over_quota"}', "over quota"),
                total('timer_queries_total{outcome="BUSY"}', "queries, busy"),
                total('timer_requests_total{outcome="BUSY"}', "requests, busy"),
                total('timer_queries_total{outcome="INTERNAL"}', "queries, internal error"),
                total('timer_requests_total{outcome="INTERNAL"}', "requests, internal error"),
            ),
        ),
        Panel(
            "Limits of events reached",
            "Tenants whose events wait: they have published as many bytes as their limit allows.",
            "none",
            (Query("max(timer_event_limits_reached)", "tenants"),),
        ),
        Panel(
            "Not published",
            "Messages that the broker did not store, by reason.",
            "ops",
            (per_second("timer_publish_failures_total", "reason"),),
        ),
        Panel(
            "Retried and buried",
            "Attempts that failed. Buried rows were given up.",
            "ops",
            (
                per_second('timer_schedules_processed_total{outcome=~"retried|failed"}', "outcome"),
                Query(f"sum by (table) (rate(timer_buried_total{RATE}))", "buried: {{table}}"),
            ),
        ),
        Panel(
            "Slots of schedules",
            "Slots that were skipped because they were late, or that started no workflow.",
            "ops",
            (
                total("timer_slots_missed_total", "missed"),
                Query(f"sum by (reason) (rate(timer_slots_not_started_total{RATE}))", "not started: {{reason}}"),
            ),
        ),
        Panel(
            "Lost leases",
            "Rows that were claimed again or changed before they were settled.",
            "ops",
            (total("timer_lease_lost_total", "rows"),),
        ),
    ),
)
ROWS = Row(
    "Rows",
    (
        rows("timer_schedules", "Timers", "Timers by state."),
        rows("work_signal_firings", "Signals", "Firings of signals that are pending or failed."),
        Panel(
            "Runs",
            "Running runs, jobs that wait for other jobs, and jobs whose event is not in the outbox yet.",
            "short",
            (
                Query(
                    'max by (table, state) (timer_rows{table=~"runs|run_jobs|run_announcements"})',
                    "{{table}} {{state}}",
                ),
            ),
        ),
        rows("schedules", "Schedules", "Active schedules, and those whose next slot cannot be computed."),
        rows(
            "workflows",
            "Workflows",
            "Workflows that are queued, run, sleep or wait for a worker, and failed and blocked ones.",
        ),
        Panel(
            "Outbox and unfinished work",
            "Waiting events and dead letters, buried and parked ones, transitions to match, cancellations, backfills.",
            "short",
            (
                Query(
                    "max by (table, state) "
                    '(timer_rows{table=~"outbox|dead_letters|parked_events|work_item_events|timer_cancellations|schedule_backfills"})',
                    "{{table}} {{state}}",
                ),
            ),
        ),
    ),
)
HEALTH = Row(
    "Broker, database and process",
    (
        Panel(
            "Broker, database and flows",
            "1: works. 0: does not; /readyz says why.",
            "short",
            (
                Query("min(timer_broker_connected)", "broker"),
                Query("min(timer_database_usable)", "database"),
                Query("min by (flow) (timer_flow_up)", "{{flow}}"),
            ),
        ),
        Panel(
            "Publishing",
            "The duration of publishing one batch: the broker and its disk.",
            "s",
            (
                quantile(0.5, "timer_publish_duration_seconds"),
                quantile(0.99, "timer_publish_duration_seconds"),
            ),
        ),
        Panel(
            "Passes of loops",
            "The duration of a pass: mostly the database, and publishing in `timers`, `outbox` and `dead-letters`.",
            "s",
            (quantile(0.99, "timer_polling_duration_seconds", "loop"),),
        ),
        Panel(
            "Age of the last pass",
            "How long ago each loop completed a pass.",
            "s",
            (Query("max by (loop) (time() - timer_loop_last_tick_timestamp_seconds)", "{{loop}}"),),
        ),
        Panel(
            "Clock",
            "How far the database's clock is ahead of the clock of the instance. Always 0 on SQLite.",
            "s",
            (Query("timer_clock_offset_seconds", "{{instance}}"),),
        ),
        Panel(
            "Processor",
            "Cores that each instance uses.",
            "short",
            (Query(f'rate(process_cpu_seconds_total{{job="timer-service"}}{RATE})', "{{instance}}"),),
        ),
        Panel(
            "Memory",
            "Resident memory of each instance. TIMER_MEMORY_BUDGET limits the messages in it.",
            "bytes",
            (Query('process_resident_memory_bytes{job="timer-service"}', "{{instance}}"),),
        ),
        Panel(
            "Open files",
            "Open files and connections of each instance.",
            "short",
            (Query('process_open_fds{job="timer-service"}', "{{instance}}"),),
        ),
    ),
    in_a_line=4,
)
DASHBOARD = (NOW, TRAFFIC, LAG, BACKLOG, FAILURES, ROWS, HEALTH)


def panels(sections: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the panels of rows, each with its place and a number of its own."""
    number, top = 1, 0
    for section in sections:
        yield {"id": number, "type": "row", "title": section.title, "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1}}
        number, top = number + 1, top + 1
        width = WIDTH // section.in_a_line
        for position, panel in enumerate(section.panels):
            line, column = divmod(position, section.in_a_line)
            place = {"x": column * width, "y": top + line * section.height, "w": width, "h": section.height}
            yield panel.document(number + position, place)
        number += len(section.panels)
        top += -(-len(section.panels) // section.in_a_line) * section.height


def text() -> str:
    """Return the content of dashboard.json."""
    dashboard = {
        "uid": "timer-service",
        "title": "timer_service",
        "tags": ["timer-service"],
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "graphTooltip": 1,
        "panels": list(panels(DASHBOARD)),
    }
    return json.dumps(dashboard, indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
