"""Rows with damaged JSON: queries and the page name the damaged fields, and show the rest."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from tests.harness.metrics import RecordingMetrics
from tests.harness.page import Page
from tests.harness.wiring import make_parts
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.slices import SLICES


class Case(NamedTuple):
    """What is damaged, and where that is seen."""

    update: str
    query: str
    request: Mapping[str, Any]
    views: str
    """The field of the reply that has the views. Empty: the reply is the view."""
    damaged: list[str]
    page: str = ""


def case(*values: Any) -> Any:
    found = Case(*values)
    return pytest.param(found, id=f"{found.query}, {' and '.join(found.damaged)}")


CASES = [
    case("timer_schedules SET data = '{\"a'", "get-timer", {"serviceCallId": "-rf"}, "", ["data"], "timer?id=-rf"),
    case("timer_schedules SET data = '{\"a'", "list-timers", {}, "timers", ["data"]),
    case("schedules SET data = '[1'", "get-schedule", {"scheduleId": "-rf"}, "", ["data"], "schedule?id=-rf"),
    case("schedules SET start = '[1'", "get-schedule", {"scheduleId": "-rf"}, "", ["start"], "schedule?id=-rf"),
    case("schedules SET start = '{}'", "list-schedules", {}, "schedules", ["start"], "schedules?"),
    case("work_signals SET trigger_spec = '{\"a\": }'", "list-signals", {}, "signals", ["triggerSpec"], "signals?"),
    case(
        "work_signals SET trigger_spec = '{'",
        "get-signal",
        {"signalId": "-rf"},
        "",
        ["triggerSpec"],
        "signal?id=-rf",
    ),
    case(
        "runs SET flaw_path = '[' WHERE run_id = 'circle'",
        "get-run",
        {"runId": "circle"},
        "",
        ["path"],
        "run?id=circle",
    ),
    case("run_jobs SET outputs = '{', outputs_bytes = 1", "get-run", {"runId": "build"}, "jobs", ["outputs"]),
    case("run_edges SET needs = '{'", "get-run", {"runId": "build"}, "jobs", ["needs"]),
    case(
        "run_edges SET needs = '[' WHERE needs IS NOT NULL",
        "get-run",
        {"runId": "build"},
        "jobs",
        ["needs"],
        "run?id=build",
    ),
    case("run_edges SET needs = '[]' WHERE needs IS NOT NULL", "get-run", {"runId": "build"}, "jobs", ["needs"]),
    case(
        "workflow_data SET input = '{'", "get-workflow", {"workflowId": "order-1"}, "", ["input"], "workflow?id=order-1"
    ),
    case(
        "workflow_effects SET result = '{' WHERE status = 'done'",
        "get-workflow",
        {"workflowId": "order-1"},
        "effects",
        ["result"],
    ),
    case("workflow_workers SET types = '['", "list-workers", {}, "workers", ["types"], "workers?"),
    case(
        "outbox SET body = '[' WHERE state = 'Buried'",
        "list-buried-events",
        {},
        "events",
        ["eventType", "about"],
        "events?",
    ),
]


@pytest.mark.parametrize("case", CASES)
async def test_damaged_field(filled: Page, case: Case) -> None:
    """A field whose text is damaged is named. The other fields and rows are shown."""
    database = filled.instance.database
    assert isinstance(database, SqliteDatabase)
    await database._writer.control("PRAGMA ignore_check_constraints = ON")
    async with database.transaction() as tx:
        changed = await tx.execute(f"UPDATE {case.update}")
    parts = make_parts(database, MemoryBroker(), filled.clock, RecordingMetrics())
    queries = parts.queries([route for each in SLICES for route in each.queries])
    reply = json.loads((await queries.answer(case.query, "acme", json.dumps(case.request).encode())).body)
    views = reply[case.views] if case.views else [reply]
    assert changed
    assert case.damaged in [view.get("damaged") for view in views], reply
    if case.page:
        answer = await filled.get(f"/ui/{case.page}&tenant=acme")
        assert answer.status == 200
        if not case.views:
            assert f"Damaged in the database: {', '.join(case.damaged)}" in answer.text
