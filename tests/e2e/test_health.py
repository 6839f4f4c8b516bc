"""What readiness, metrics and the log say when a stream or the broker is lost."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.processes import PATIENCE_SECONDS, NatsServer, Service

FLOWS = ("commands", "events", "queries", "requests")
OK = dict.fromkeys((*FLOWS, "service"), "ok")
MISSING = "stream TIMER_EVT is missing: create it, or set TIMER_MANAGE_STREAMS=true"


def lines(service: Service, *events: str) -> list[dict[str, Any]]:
    """Return the lines of the log that have one of these texts."""
    found = [json.loads(line) for line in service.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] in events]


async def flows(service: Service) -> dict[str, str]:
    page: dict[str, str] = json.loads((await service.page("/readyz"))[1])
    return page


async def metrics(service: Service) -> list[float]:
    return [await service.metric(f'timer_flow_up{{flow="{flow}"}}') for flow in FLOWS]


@pytest.mark.slow
@ON_SQLITE
async def test_missing_event_stream_is_created(user: User, service: Service) -> None:
    """If the event stream is deleted, the service creates it again within some seconds and says so."""
    assert await flows(service) == OK
    assert await metrics(service) == [1, 1, 1, 1]
    await user.js.delete_stream("TIMER_EVT")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not lines(service, "a stream was created again; messages that only the old one had are lost"):
            await asyncio.sleep(0.02)
    assert (await user.js.stream_info("TIMER_EVT")).config.subjects == ["timer.evt.v1.*.>"]
    await service.until_page("/readyz", 200)


@pytest.mark.slow
async def test_missing_event_stream_is_reported(user: User, tmp_path: Path, broker: NatsServer) -> None:
    """If streams are not managed, readiness and metrics say which flow stopped and why, until the stream is there."""
    async with Service(tmp_path / "service", broker.url):
        pass
    async with Service(tmp_path / "service", broker.url, TIMER_MANAGE_STREAMS="false") as service:
        config = (await user.js.stream_info("TIMER_EVT")).config
        await user.js.delete_stream("TIMER_EVT")
        page = json.loads(await service.until_page("/readyz", 503))
        assert page == {**OK, "events": MISSING}
        assert await metrics(service) == [1, 0, 1, 1]
        await user.js.add_stream(config)
        await service.until_page("/readyz", 200)
        assert await metrics(service) == [1, 1, 1, 1]


@ON_SQLITE
async def test_outage_of_the_broker_is_logged_twice(broker: NatsServer, service: Service) -> None:
    """An outage of the broker is one line with its reason when it begins, and one with its duration when it ends."""
    await broker.terminate()
    page = json.loads(await service.until_page("/readyz", 503))
    assert all(page[flow].startswith("not connected to the broker") for flow in FLOWS)
    assert page["service"] == "ok"
    assert await metrics(service) == [0, 0, 0, 0]
    await asyncio.sleep(1)  # the client tries to connect several times
    await broker.start()
    await service.until_page("/readyz", 200)
    lost, back = lines(service, "the broker is unavailable", "the broker is available again")
    assert lost["reason"]
    assert 1 <= back["seconds"] < PATIENCE_SECONDS
    assert [line for line in lines(service, "broker error") if line["level"] != "debug"] == []


SERIES = (
    'timer_commands_received_total{outcome="rejected",type="CancelTimer"}',
    'timer_queries_total{outcome="INTERNAL",query="get-run"}',
    'timer_requests_total{outcome="BUSY",request="poll-tasks"}',
    'timer_buried_total{table="outbox"}',
    'timer_schedules_processed_total{outcome="failed",table="schedules"}',
    'timer_slots_not_started_total{reason="busy"}',
)


@ON_SQLITE
async def test_series_exist_before_the_first_failure(service: Service) -> None:
    """The series of failures begin at 0, so that an alert sees the increase from 0 to 1."""
    _, text = await service.page("/metrics")
    assert [each for each in SERIES if f"\n{each} 0.0\n" not in text] == []
