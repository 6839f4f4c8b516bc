"""The Grafana dashboard: generated, with queries that are PromQL and use metrics of the service."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from deploy.grafana import dashboard
from tests.harness.promql import metrics_of_the_service, selected, unknown, unknown_values
from timer_service.app.slices import SLICES

SUFFIX = re.compile(r"_(bucket|sum|count)$")
"""The parts of a histogram."""
DOCUMENT = json.loads(dashboard.text())
PANELS: list[dict[str, Any]] = [panel for panel in DOCUMENT["panels"] if panel["type"] != "row"]
QUERIES: list[str] = [
    target["expr"].replace("$__rate_interval", "5m") for panel in PANELS for target in panel["targets"]
]


def test_the_dashboard_is_up_to_date() -> None:
    """The file is what dashboard.py writes. If this test fails, run `make dashboard`."""
    assert dashboard.FILE.read_text("utf-8") == dashboard.text()


def test_the_queries_use_metrics_of_the_service() -> None:
    """Every query is PromQL, and every metric, label and value in it exists."""
    assert unknown(QUERIES) == []
    assert unknown_values(QUERIES) == []


def test_everything_is_shown() -> None:
    """Every metric of the service is on a panel, and so is every table whose rows are counted."""
    used = [each for query in QUERIES for each in selected(query)]
    shown = {SUFFIX.sub("", each.name) for each in used}
    metrics = {SUFFIX.sub("", name) for name in metrics_of_the_service() if name.startswith("timer_")}
    assert metrics - shown == set()
    tables = {value for each in used if each.name == "timer_rows" for label, value in each.values if label == "table"}
    assert tables == {rows.table for each in SLICES for rows in each.counted}


def test_grafana_finds_the_datasource() -> None:
    """Every panel uses the datasource that Grafana is provisioned with."""
    file = Path(dashboard.FILE).parent / "provisioning" / "datasources" / "prometheus.yml"
    (source,) = yaml.safe_load(file.read_text("utf-8"))["datasources"]
    wanted = {"type": source["type"], "uid": source["uid"]}
    assert all(each["datasource"] == wanted for panel in PANELS for each in (panel, *panel["targets"]))
