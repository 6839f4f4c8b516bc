"""A service in which a feature is disabled, and enabled later."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import User
from tests.harness.processes import NatsServer, Service, body
from tests.harness.raw_worker import RawWorker, start_workflows
from timer_service.core.values.address import kebab

SIGNAL: dict[str, Any] = {"signalId": "s", "workItemId": "i", "triggerKind": "event"}
SIGNAL |= {"triggerSpec": {"kind": "work_item.status.transition", "to": ["blocked"]}}
SCHEDULE = {"scheduleId": "s", "every": "PT1S", "startAt": "2020-01-01T00:00:00Z", "catchUp": {"policy": "last"}}
FEATURES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "signals": {
        "CreateWorkItem": {"workItemId": "i", "status": "doing"},
        "CreateWorkSignal": SIGNAL,
        "TransitionWorkItem": {"workItemId": "i", "to": "blocked"},
    },
    "schedules": {"PutSchedule": {**SCHEDULE, "maxCount": 1}},
    "runs": {"StartRun": {"runId": "r", "jobs": [{"name": "a"}]}},
}
EVENTS = {"signals": "work-signal-fired", "schedules": "schedule-fired", "runs": "job-ready"}


@pytest.mark.parametrize("feature", FEATURES)
async def test_disabled_and_enabled(tmp_path: Path, broker: NatsServer, user: User, feature: str) -> None:
    """While it is disabled, its commands are stored and nothing happens. When it is enabled, the events follow."""
    subject = f"timer.evt.v1.acme.{EVENTS[feature]}"
    async with Service(tmp_path / "service", broker.url, **{f"TIMER_{feature.upper()}_ENABLED": "false"}):
        for name, payload in FEATURES[feature].items():
            await user.js.publish(f"timer.cmd.v1.acme.{kebab(name)}", body(name, "acme", payload))
        await user.until_handled()
        assert await user.read("TIMER_EVT", subject) == []
    async with Service(tmp_path / "service", broker.url):
        await user.until_stored("TIMER_EVT", 1)
        assert len(await user.read("TIMER_EVT", subject)) == 1


async def test_disabled_workflows(user: User, broker: NatsServer, tmp_path: Path) -> None:
    """Commands are stored, and a poll gets an error that says why. When they are enabled, it gets the workflow."""
    async with Service(tmp_path / "service", broker.url, TIMER_WORKFLOWS_ENABLED="false"):
        await start_workflows(user.connection, ["order-1"])
        await user.until_handled()
        worker = RawWorker(user.connection)
        error = (await worker.request("poll-tasks", workerId="w", types=["order"], slots=1))["error"]
        assert (error["code"], "TIMER_WORKFLOWS_ENABLED" in error["message"]) == ("BUSY", True)
    async with Service(tmp_path / "service", broker.url):
        assert len(await worker.poll()) == 1
