"""What counts for the limit of events, compared with what JetStream stores."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import StreamConfig

from tests.harness.builders import scheduled
from tests.harness.clock import NOW, ManualClock
from tests.harness.metrics import RecordingMetrics
from tests.harness.processes import NatsServer
from tests.harness.timers import put_timers
from tests.harness.wiring import make_parts
from timer_service.adapters.nats import NatsBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.events import outbox
from timer_service.core.events.outbox import OUTBOX, stored_message
from timer_service.core.limits.event_allowances import USAGE, EventAllowances
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.values.message import Event, Trace
from timer_service.timers.events import timer_event
from timer_service.timers.store import TIMERS

COUNT = 20
LONG_ID = '"' * 200
TRACE = Trace(f"00-{'a' * 32}-{'b' * 16}-01", "x" * 500)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def broker(server: NatsServer) -> AsyncIterator[NatsBroker]:
    broker = await NatsBroker.connect(server.url, "timer", reply_prefix="_INBOX.", manage_streams=True)
    yield broker
    await broker.close()


@pytest.fixture
async def js(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    async with await nats.connect(server.url) as user:
        yield user.jetstream()


@pytest.mark.parametrize("table", [TIMERS, OUTBOX], ids=lambda table: table.name)
@pytest.mark.parametrize("longest", [False, True])
async def test_no_event_counts_less_than_it_takes(
    sqlite: SqliteDatabase,
    broker: NatsBroker,
    js: JetStreamContext,
    table: Any,
    longest: bool,  # noqa: FBT001
) -> None:
    """An event counts as many bytes as the stream has of it, or more: some hundred if its texts are short."""
    tenant = "t" * 64 if longest else "acme"
    limits = TenantLimits(default=Limits(published_events=10**6))
    allowances = EventAllowances(limits)
    parts = make_parts(sqlite, broker, ManualClock(), RecordingMetrics(), allowances=allowances)
    more: dict[str, Any] = (
        {"correlation_id": LONG_ID, "causation_id": LONG_ID, "trace": TRACE, "topic": "t" * 64} if longest else {}
    )
    async with sqlite.transaction() as tx:
        if table is TIMERS:
            fields: dict[str, Any] = {"data": '"é"', "expires_at": NOW + 10**6}
            names = [f"{number:03}{LONG_ID[3:] if longest else ''}" for number in range(COUNT)]
            await put_timers(tx, [scheduled(name, tenant=tenant, **fields, **more) for name in names])
        else:
            names = [f"{number:03}{'n' * 50}" for number in range(COUNT)]
            events = [Event(name, "something.happened", tenant, {}, NOW, **more) for name in names]
            await outbox.add(tx, events, NOW)
    parts = replace(parts, cloudevents=longest)
    relay = parts.relay(table, timer_event if table is TIMERS else stored_message)
    assert (await relay.tick(NOW)).done == COUNT
    await allowances.update(sqlite, NOW)
    counted = await USAGE.amount_of(sqlite.reader, tenant, NOW, 10**9)
    state = (await js.stream_info("TIMER_EVT")).state
    assert state.messages == COUNT
    stored = state.bytes
    assert stored <= counted
    assert longest or counted - stored <= COUNT * 900


async def test_how_long_the_stream_keeps_events(broker: NatsBroker, js: JetStreamContext) -> None:
    """The broker says for how long it keeps events, as the stream is at the last check."""
    found = [broker.streams.keeps_events_for]
    for hours in (5, 0):
        config: StreamConfig = (await js.stream_info("TIMER_EVT")).config
        await js.update_stream(config.evolve(max_age=hours * 3600))
        await broker.streams.tick(NOW)
        found.append(broker.streams.keeps_events_for)
    assert [None if each is None else each.total_seconds() / 3600 for each in found] == [7 * 24, 5, None]
