"""The memory of the service under many headers and many large queries."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest

from tests.harness.memory import MIB, peak_bytes
from tests.harness.processes import NatsServer, Service, body
from tests.harness.raw_nats import RawMessage, RawNats, header_block
from timer_service.core.values.budget import LEAST_MEMORY_BYTES

_QUERY_BYTES = 60_000
_QUERIES_AT_ONCE = 500
"""More than the budget lets wait, and fewer than the 64 MiB that the server keeps for a client that reads slowly."""
_MANY_HEADERS = header_block(*(b"%04x:" % number for number in range(8_000)))
"""A block of 60,000 bytes, nearly as many as JetStream stores."""


@pytest.fixture
async def service(broker: NatsServer, tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(tmp_path, broker.url) as service:
        yield service


@pytest.mark.slow
@pytest.mark.parametrize(("outcome", "count"), [("not_found", 500), ("rejected", 500)])
async def test_many_headers_with_the_smallest_budget(
    broker: NatsServer, tmp_path: Path, outcome: str, count: int
) -> None:
    """With the smallest budget, commands with 8,000 headers need less than 30 MiB, whether they are valid or not."""
    is_valid = outcome == "not_found"
    content = body("CancelTimer", "acme", {"serviceCallId": "x"}) if is_valid else b"{"
    message = RawMessage(b"timer.cmd.v1.acme.cancel-timer", content, _MANY_HEADERS)
    kind = "CancelTimer" if is_valid else "unknown"
    async with (
        Service(tmp_path, broker.url, TIMER_MEMORY_BUDGET=f"{LEAST_MEMORY_BYTES // MIB}MiB") as service,
        RawNats.connect(broker.port) as user,
    ):
        before = peak_bytes(service.running.pid)
        await user.publish([message] * 500)
        while await service.metric(f'timer_commands_received_total{{outcome="{outcome}",type="{kind}"}}') < count:
            await asyncio.sleep(0.05)
        growth = peak_bytes(service.running.pid) - before
    print(f"500 commands with 8,000 headers: {before / MIB:.0f} MiB before, {growth / MIB:.0f} MiB more at most")
    assert growth < 30 * MIB


async def count_queries(service: Service, outcome: str) -> float:
    return await service.metric(f'timer_queries_total{{outcome="{outcome}",query="list-timers"}}')


@pytest.mark.parametrize("tenants", [pytest.param(1, marks=pytest.mark.slow), 50])
async def test_flood_of_large_queries(broker: NatsServer, service: Service, tenants: int) -> None:
    """Memory grows by less than 40 MiB under 120 MB of queries. Another tenant's query is answered during the flood."""
    asked = 0
    async with await nats.connect(broker.url) as client, RawNats.connect(broker.port) as flooder:
        await client.request("timer.qry.v1.other.count-timers", b"{}", timeout=30)
        before = peak_bytes(service.running.pid)
        while asked < 2000:
            subjects = [b"timer.qry.v1.t%d.list-timers" % (number % tenants) for number in range(_QUERIES_AT_ONCE)]
            body = b"{}".ljust(_QUERY_BYTES)
            await flooder.publish([RawMessage(subject, body, reply=b"_INBOX.flood") for subject in subjects])
            other = await client.request("timer.qry.v1.other.count-timers", b"{}", timeout=30)
            assert "error" not in json.loads(other.data)
            asked += _QUERIES_AT_ONCE
            while await count_queries(service, "answered") + await count_queries(service, "BUSY") < asked:
                await asyncio.sleep(0.02)
    growth = peak_bytes(service.running.pid) - before
    refused = await count_queries(service, "BUSY")
    print(f"{asked} queries, {refused:.0f} refused: {before / MIB:.0f} MiB before, {growth / MIB:.0f} MiB more at most")
    assert refused > 0
    assert growth < 40 * MIB
