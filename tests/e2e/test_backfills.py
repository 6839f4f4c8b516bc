"""A backfill of a real service that is killed while it fires slots, and of two instances."""

import asyncio
import contextlib
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import User, iso
from tests.harness.fleet import Fleet
from tests.harness.processes import NatsServer, Service, body

SECOND = 1000
SLOTS = 5000


async def put_and_backfill(user: User, now: int) -> None:
    """Put a schedule that never fires by itself, with a slot each second, and backfill its last 5,000 slots."""
    ended = {"every": SECOND, "endAt": iso(now)}
    span = {"from": iso(now - SLOTS * SECOND), "to": iso(now), "limit": 10_000}
    for message, payload in (("put", ended), ("backfill", span)):
        await user.until_handled()  # another instance may handle the second command first
        fields = {"scheduleId": "past", **payload}
        await user.send([(f"timer.cmd.v1.acme.{message}-schedule", body(f"{message.title()}Schedule", "acme", fields))])


async def read(user: User, message: str) -> Sequence[Any]:
    """Return the events of a type in the stream."""
    return [json.loads(each.data) for each in await user.read("TIMER_EVT", f"timer.evt.v1.acme.{message}")]


async def until_backfilled(user: User) -> Any:
    """Wait for the ScheduleBackfilled, and return its payload."""
    async with asyncio.timeout(120):
        while not (found := await read(user, "schedule-backfilled")):
            await asyncio.sleep(0.1)
    (event,) = found
    return event["payload"]


async def check(user: User, now: int) -> None:
    """Assert that every slot was published once, and that the last event says how many there were."""
    payload = await until_backfilled(user)
    await user.until_stored("TIMER_EVT", SLOTS + 2)  # the schedule has ended, too
    assert (payload["count"], payload["skipped"], payload["reason"]) == (SLOTS, 0, "done")
    slots = Counter(each["payload"]["slotAt"] for each in await read(user, "schedule-fired"))
    wanted = [now - number * SECOND for number in range(SLOTS, 0, -1)]
    assert [iso(at)[:19] for at in wanted] == sorted(each[:19] for each in slots)
    assert set(slots.values()) == {1}


def progress(path: Path) -> int | None:
    """Return how many slots of the open backfill have fired; None if there is none."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        row = connection.execute("SELECT fired_count FROM schedule_backfills").fetchone()
    return None if row is None else int(row[0])


@pytest.mark.slow
async def test_killed_in_a_backfill(tmp_path: Path, user: User, broker: NatsServer) -> None:
    """A service that is killed again and again in a backfill fires every slot, each under one id."""
    now = int(time.time() * 1000) // SECOND * SECOND
    path = tmp_path / "service" / "timers.db"
    async with Service(tmp_path / "service", broker.url) as service:
        await put_and_backfill(user, now)
        seen: list[int] = []
        for _ in range(3):
            last = seen[-1] if seen else 0
            async with asyncio.timeout(60):
                while (fired := progress(path)) is None or fired <= last:
                    if fired is None and seen:
                        break
                    await asyncio.sleep(0.001)
            await service.kill()
            if (fired := progress(path)) is not None:
                seen.append(fired)
            await service.start()
        await check(user, now)
    assert [each for each in seen if 0 < each < SLOTS], "the backfill was finished before the first kill"


@pytest.mark.slow
async def test_one_of_two_is_killed(user: User, fleet: Fleet) -> None:
    """One of two instances is killed in a backfill. The other one goes on behind the last portion."""
    now = int(time.time() * 1000) // SECOND * SECOND
    async with fleet.running(2, TIMER_VISIBILITY_TIMEOUT="10000") as (victim, _):
        await put_and_backfill(user, now)
        async with asyncio.timeout(60):
            while await user.stored("TIMER_EVT") < 2:
                await asyncio.sleep(0.005)
        await victim.kill()
        await check(user, now)
