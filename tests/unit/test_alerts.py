"""The alerts of `deploy/prometheus`: their parts, their tests, their runbooks, and the metrics that they use."""

import re
from pathlib import Path
from typing import Any

import yaml

from tests.harness.cases import case
from tests.harness.promql import selected, unknown, unknown_values

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text("utf-8"))


ALERTS: list[dict[str, Any]] = [rule for group in read("alerts.yml")["groups"] for rule in group["rules"]]
NAMES = [alert["alert"] for alert in ALERTS]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    """An alert has a severity, a sentence, and the link to a section of a page."""
    for alert in ALERTS:
        with case(alert["alert"]):
            assert alert["labels"]["severity"] in {"critical", "warning"}
            assert re.fullmatch(r"\S.*\.", alert["annotations"]["summary"])
            page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
            assert anchor in anchors(ROOT / page)
            assert anchor == alert["alert"].lower()


def test_the_alerts_use_metrics_of_the_service() -> None:
    """Every metric and label in the alerts and in their tests exists."""
    assert unknown(alert["expr"] for alert in ALERTS) == []
    series = [each["series"] for tested in read("alerts_test.yml")["tests"] for each in tested["input_series"]]
    assert unknown(series) == []


def test_the_alerts_use_values_of_the_service() -> None:
    """Every value of a label that an alert names exists: tables, states, flows and codes."""
    assert unknown_values(alert["expr"] for alert in ALERTS) == []


def test_prometheus_scrapes_the_port_of_the_service() -> None:
    """The configuration uses the default port of the service, and the job's name that the alerts use."""
    (job,) = read("prometheus.yml")["scrape_configs"]
    (discovery,) = job["dns_sd_configs"]
    assert f"\n# TIMER_HTTP_PORT={discovery['port']}\n" in (ROOT / ".env.example").read_text("utf-8")
    jobs = {pair for alert in ALERTS for each in selected(alert["expr"]) for pair in each.values if pair[0] == "job"}
    assert jobs == {("job", job["job_name"])}
