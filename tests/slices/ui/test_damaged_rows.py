"""Rows with truncated JSON: a query and the page answer an error, and go on with other rows."""

import json

import pytest

from tests.harness.metrics import RecordingMetrics
from tests.harness.page import Page
from tests.harness.wiring import make_parts
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.slices import SLICES

CASES = {
    "timer_schedules SET data = '{\"a'": ("get-timer", {"serviceCallId": "-rf"}, "timer?id=-rf"),
    "schedules SET start = '[1'": ("get-schedule", {"scheduleId": "-rf"}, "schedule?id=-rf"),
    "work_signals SET trigger_spec = '{'": ("get-signal", {"signalId": "-rf"}, "signal?id=-rf"),
    "run_edges SET needs = '[' WHERE needs IS NOT NULL": ("get-run", {"runId": "build"}, "run?id=build"),
    "workflow_data SET input = '{'": ("get-workflow", {"workflowId": "order-1"}, "workflow?id=order-1"),
}


@pytest.mark.parametrize("update", CASES)
async def test_damaged_row(filled: Page, update: str) -> None:
    """A reply that cannot be built is an error, without the damaged text. The page says that it failed."""
    name, request, page = CASES[update]
    database = filled.instance.database
    assert isinstance(database, SqliteDatabase)
    async with database.transaction() as tx:
        assert await tx.execute(f"UPDATE {update}")
    parts = make_parts(database, MemoryBroker(), filled.clock, RecordingMetrics())
    queries = parts.queries([route for each in SLICES for route in each.queries])
    reply = json.loads((await queries.answer(name, "acme", json.dumps(request).encode())).body)
    assert reply["error"] == {"code": "INTERNAL", "message": "the query failed; see the log of the service"}
    assert (await filled.get(f"/ui/{page}&tenant=acme")).status == 500
    assert (await filled.get("/ui/")).status == 200


async def test_buried_event_that_cannot_be_read(filled: Page) -> None:
    """A damaged event is listed without its contents: it may be buried because of the damage."""
    database = filled.instance.database
    async with database.transaction() as tx:
        assert await tx.execute("UPDATE outbox SET body = '[' WHERE state = 'Buried'")
    parts = make_parts(database, MemoryBroker(), filled.clock, RecordingMetrics())
    queries = parts.queries([route for each in SLICES for route in each.queries])
    events = json.loads((await queries.answer("list-buried-events", "acme", b"{}")).body)["events"]
    assert [(each["eventType"], each["about"]) for each in events] == [("", {})] * len(events) != []
