"""Timers over each real broker while the service and the broker are killed: none is lost, early, or has two ids."""

import asyncio
import json
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.live_service import BROKERS
from tests.harness.processes import Service
from tests.harness.wire import Stored, Wire
from timer_service.core.values.address import Address, Kind

_AT_ONCE = 100
_AFTER_SECONDS = 120
_ADDRESS = Address(Kind.COMMAND, "acme", "schedule-timer")


class Kills(NamedTuple):
    """How many timers there are, and how often the parts are killed."""

    timers: int
    of_service: int
    of_broker: int


async def publish(wire: Wire, call: str, due: datetime) -> None:
    """Schedule a timer. Publish again until the broker says that the command is stored."""
    fields = {"serviceCallId": call, "dueAt": due.isoformat(timespec="milliseconds")}
    body = json.dumps({"type": "ScheduleTimer", "tenantId": "acme", "payload": fields}).encode()
    while True:
        try:
            async with asyncio.timeout(5):
                return await wire.publish(_ADDRESS, body, {}, f"schedule-{call}")
        except Exception:  # noqa: BLE001 - each driver has errors of its own for a broker that is away
            await asyncio.sleep(0.1)


async def schedule(wire: Wire, due: Mapping[str, datetime]) -> None:
    """Schedule all timers."""
    calls = list(due)
    for start in range(0, len(calls), _AT_ONCE):
        await asyncio.gather(*(publish(wire, call, due[call]) for call in calls[start : start + _AT_ONCE]))


async def fired(wire: Wire) -> Sequence[Stored]:
    """Return every event that a timer was due, also while the broker comes back."""
    async with asyncio.timeout(60):
        while True:
            try:
                found = await wire.stored(Kind.EVENT, "acme")
                return [each for each in found if each.address.message == "due-time-reached"]
            except Exception:  # noqa: BLE001
                await asyncio.sleep(0.2)


def check(events: Sequence[Stored], due: Mapping[str, datetime]) -> int:
    """Assert that all timers fired, none early, and each under one id. Return how many events were repeated."""
    ids = defaultdict(set)
    for each in events:
        event = json.loads(each.body)
        payload = event["payload"]
        assert event["id"] == each.id
        assert datetime.fromisoformat(payload["dueAt"]) == due[payload["serviceCallId"]]
        assert datetime.fromisoformat(payload["reachedAt"]) >= due[payload["serviceCallId"]]
        assert each.stored_ms == 0 or each.stored_ms >= due[payload["serviceCallId"]].timestamp() * 1000
        ids[payload["serviceCallId"]].add(each.id)
    assert ids.keys() == due.keys(), f"{len(due.keys() - ids.keys())} timers did not fire"
    assert {len(each) for each in ids.values()} == {1}
    return len(events) - len(due)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(Kills(2_000, 3, 1), id="short", marks=pytest.mark.slow),
        pytest.param(Kills(20_000, 20, 5), id="full", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("broker", BROKERS)
async def test_timers_beside_kills(broker: str, kills: Kills, tmp_path: Path) -> None:
    """Every timer fires, none early, and repeated events have the same id."""
    rng = random.Random(1)
    begins, lasts = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=5), 2 * (kills.of_service + 5)
    due = {f"call-{n}": begins + timedelta(milliseconds=rng.randrange(lasts * 1000)) for n in range(kills.timers)}
    async with (
        BROKERS[broker].start(tmp_path) as server,
        Service(tmp_path / "service", server.url) as service,
        BROKERS[broker].connect(server.url, lambda _number, _body: None) as wire,
    ):
        scheduling = asyncio.create_task(schedule(wire, due))
        victims = [service] * kills.of_service + [server] * kills.of_broker
        rng.shuffle(victims)
        for victim in victims:
            await asyncio.sleep(rng.uniform(0.3, 1.5))
            await victim.kill()
            await victim.start()
        await scheduling
        until = time.monotonic() + _AFTER_SECONDS
        events = await fired(wire)
        while len({each.id for each in events}) < len(due) and time.monotonic() < until:
            await asyncio.sleep(1)
            events = await fired(wire)
        assert await wire.stored(Kind.DEAD_LETTER, "acme") == []
    repeated = check(events, due)
    print(f"{broker}: {kills.timers} timers, {len(victims)} kills: {repeated} events repeated")
