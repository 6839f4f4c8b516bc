"""Many timers are cancelled by the prefix of their ids, while the service is killed and other commands arrive."""

import asyncio
import contextlib
import json
import random
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.e2e.conftest import User
from tests.harness.fleet import Fleet
from tests.harness.processes import NatsServer, Service, body

YEAR_MS = 365 * 86_400_000
OLDER, NEWER = 300, 300
INSERT = """
INSERT INTO timer_schedules (
    tenant_id, service_call_id, state, due_at, event_id, registered_at, position_epoch, position_sequence, available_at
)
SELECT 'acme', {prefix} || n, 'Scheduled', {due}, 'event-' || n, 1, 1, n, {due} FROM {numbers}
"""
NUMBERS = {
    "sqlite": "(WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count}) SELECT n FROM c)",
    "postgres": "generate_series(1, {count}) AS numbers (n)",
}
COUNTS = "SELECT service_call_id, state FROM timer_schedules WHERE service_call_id >= 'b/' OR position_epoch > 1"


def insert(engine: str, count: int, due_at: int) -> str:
    """Return the statement that writes `count` timers that begin with a/, of commands long ago."""
    return INSERT.format(prefix="'a/old-'", due=due_at, numbers=NUMBERS[engine].format(count=count))


def schedule(call: str, due_at: int) -> tuple[str, bytes]:
    due = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(due_at / 1000))
    return "timer.cmd.v1.acme.schedule-timer", body("ScheduleTimer", "acme", {"serviceCallId": call, "dueAt": due})


async def cancel_among_schedules(user: User, due_at: int) -> None:
    """Publish older schedules, the CancelTimers, and newer schedules, in this order."""
    await user.send(schedule(f"a/older-{number}", due_at) for number in range(OLDER))
    await user.send([("timer.cmd.v1.acme.cancel-timers", body("CancelTimers", "acme", {"prefix": "a/"}))])
    await user.send(schedule(f"a/newer-{number}", due_at) for number in range(NEWER))
    await user.send([schedule("b/other", due_at)])


async def announced(user: User, seconds: float) -> Mapping[str, Any]:
    """Wait for the only TimersCancelled, and return its payload."""
    async with asyncio.timeout(seconds):
        while not (found := await user.read("TIMER_EVT", "timer.evt.v1.acme.timers-cancelled")):
            await asyncio.sleep(0.1)
    (message,) = found
    payload: Mapping[str, Any] = json.loads(message.data)["payload"]
    return payload


def unfinished(path: Path) -> bool:
    """Return whether a cancellation is not finished."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT 1 FROM timer_cancellations").fetchone() is not None


def check(timers: Mapping[str, str], event: Mapping[str, Any], left: int) -> None:
    """Assert that exactly the older timers are cancelled, and that the event has their number.

    `timers` has the states of the timers of real commands, `left` is the number of old timers that are not cancelled.
    """
    assert left == 0, f"{left} timers were not cancelled"
    assert {call for call, state in timers.items() if state == "Scheduled"} == {
        "b/other",
        *(f"a/newer-{number}" for number in range(NEWER)),
    }
    assert event["prefix"] == "a/"


@pytest.mark.parametrize(
    ("count", "kills"),
    [pytest.param(30_000, 2, id="short"), pytest.param(1_000_000, 8, id="full", marks=pytest.mark.full)],
)
@pytest.mark.timeout(900)
async def test_killed_while_it_cancels(count: int, kills: int, tmp_path: Path, user: User, broker: NatsServer) -> None:
    """A service that is killed while it cancels timers by prefix cancels all older timers, and no newer one."""
    due_at = int(time.time() * 1000) + YEAR_MS
    path = tmp_path / "service" / "timers.db"
    async with Service(tmp_path / "service", broker.url) as service:
        await service.kill()
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(insert("sqlite", count, due_at))
        await service.start()
        began = time.monotonic()
        sending = asyncio.create_task(cancel_among_schedules(user, due_at))
        rng = random.Random(count)
        interrupted = 0
        async with asyncio.timeout(60):
            while not unfinished(path):
                await asyncio.sleep(0.01)
        for _ in range(kills):
            await asyncio.sleep(rng.uniform(0, count / 100_000 / kills))
            await service.kill()
            interrupted += unfinished(path)
            await service.start()
        await sending
        await user.until_handled()
        event = await announced(user, 60 + count / 5000)
        seconds = time.monotonic() - began
        await service.kill()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            timers = dict(connection.execute(COUNTS).fetchall())
            ((left,),) = connection.execute(
                "SELECT COUNT(*) FROM timer_schedules WHERE service_call_id LIKE 'a/old-%' AND state <> 'Cancelled'"
            ).fetchall()
            ((cancelled,),) = connection.execute("SELECT COUNT(*) FROM timer_schedules WHERE state = 'Cancelled'")
    check(timers, event, left)
    assert event["count"] == cancelled
    assert interrupted, "the cancellation was finished before the first kill"
    print(
        f"{count} timers cancelled in {seconds:.1f} s with {kills} kills, {interrupted} of them before the end, "
        f"{cancelled - count} older ones"
    )


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_two_instances_cancel(user: User, fleet: Fleet, database_url: str) -> None:
    """Two instances of which one is killed again and again cancel all older timers, and no newer one."""
    count = 300_000
    due_at = int(time.time() * 1000) + YEAR_MS
    async with fleet.running(2) as (victim, _):
        connection = await asyncpg.connect(database_url)
        await connection.execute(insert("postgres", count, due_at))
        began = time.monotonic()
        sending = asyncio.create_task(cancel_among_schedules(user, due_at))
        for _ in range(5):
            await asyncio.sleep(1)
            await victim.kill()
            await victim.start()
        await sending
        await user.until_handled()
        event = await announced(user, 300)
        seconds = time.monotonic() - began
        timers = {row["service_call_id"]: row["state"] for row in await connection.fetch(COUNTS)}
        left = await connection.fetchval(
            "SELECT COUNT(*) FROM timer_schedules WHERE service_call_id LIKE 'a/old-%' AND state <> 'Cancelled'"
        )
        cancelled = await connection.fetchval("SELECT COUNT(*) FROM timer_schedules WHERE state = 'Cancelled'")
        await connection.close()
    check(timers, event, left)
    assert event["count"] == cancelled
    print(f"{count} timers cancelled in {seconds:.1f} s, with the second pass")
