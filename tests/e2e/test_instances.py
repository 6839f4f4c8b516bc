"""Several instances on one Postgres share the work. Kills and outages of the database lose nothing."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path

import asyncpg
import pytest

from tests.e2e.conftest import User, check_fired, find_reader
from tests.harness.fleet import FIRED, Fleet
from tests.harness.postgres import PostgresServer
from tests.harness.processes import NatsServer

HOUR = 3_600
FAR_MS = 4_102_444_800_000
SCHEDULED = 'timer_commands_received_total{outcome="scheduled",type="ScheduleTimer"}'
LOAD = {"TIMER_BATCH_SIZE": "50", "TIMER_VISIBILITY_TIMEOUT": "10000"}
POLLS = {"TIMER_POLLING_INTERVAL": "200"}
"""So that every instance knows the timers before they are due, and not only the one that has read their commands."""
SHIFT_CLOCK = """
import time
from timer_service.cli import main
right_s, right_ns = time.time, time.time_ns
time.time = lambda: right_s() + {seconds}
time.time_ns = lambda: right_ns() + {seconds} * 1_000_000_000
main()
"""


def together(count: int, due_at: int) -> dict[str, int]:
    return {f"together-{index}": due_at for index in range(count)}


@pytest.mark.slow
async def test_all_timers_fire_when_two_of_four_instances_are_killed(user: User, fleet: Fleet) -> None:
    """If two of four instances are killed under load, all timers fire and the other instances take part."""
    async with fleet.running(4, **LOAD, **POLLS) as instances:
        due_at = int(time.time() * 1000) + 4_000
        due = together(2_000, due_at)
        await user.schedule(due)
        await user.until_handled()
        assert time.time() * 1000 < due_at, "scheduling took too long for this test to show anything"
        more = {f"more-{index}": due_at + index for index in range(200)}
        arriving = asyncio.create_task(user.schedule(more))
        await user.until_stored("TIMER_EVT", 50)
        await asyncio.gather(*(victim.kill() for victim in instances[:2]))
        await asyncio.gather(*(victim.start() for victim in instances[:2]))
        await arriving
        await user.schedule(late := {f"late-{index}": int(time.time() * 1000) for index in range(200)})
        due |= more | late
        await user.until_stored("TIMER_EVT", len(due))
        await user.until_handled()
        shares = await fleet.count_fired()
    check_fired(await user.fired(), due)
    assert all(shares[2:]), f"an instance fired nothing: {shares}"


@pytest.mark.slow
async def test_postgres_restart_loses_no_timer(
    tmp_path: Path, user: User, broker: NatsServer, postgres_server: PostgresServer
) -> None:
    """An immediate restart of Postgres under load loses no timer, and the instances keep running."""
    fleet = Fleet(tmp_path, broker, postgres_server.url)
    async with fleet.running(2, **LOAD):
        due_at = int(time.time() * 1000) + 4_000
        due = together(2_000, due_at)
        await user.schedule(due)
        await user.until_handled()
        more = {f"more-{index}": due_at + index for index in range(200)}
        arriving = asyncio.create_task(user.schedule(more))
        await user.until_stored("TIMER_EVT", 50)
        await postgres_server.restart("immediate")
        await arriving
        due |= more
        await user.until_stored("TIMER_EVT", len(due))
        await user.until_handled()
        for instance in fleet.instances:
            await instance.until_page("/readyz", 200)
    check_fired(await user.fired(), due)


@pytest.mark.slow
async def test_timers_fire_by_the_clock_of_the_database(tmp_path: Path, user: User, fleet: Fleet) -> None:
    """Instances with clocks two hours apart fire on time, because they use the clock of the database.

    By its own clock, the slow instance would fire nothing in this test, and the fast one would fire too early.
    """
    async with AsyncExitStack() as stack:
        for seconds in (-HOUR, HOUR):
            instance = fleet.instance(TIMER_BATCH_SIZE="10", **POLLS)
            instance.command = [sys.executable, "-c", SHIFT_CLOCK.format(seconds=seconds), "serve"]
            await stack.enter_async_context(instance)
        start = int(time.time() * 1000) + 1_500
        due = {f"call-{index}": start + index % 1000 for index in range(1000)}
        await user.schedule(due)
        await user.until_stored("TIMER_EVT", len(due))
        offsets = [await each.metric("timer_clock_offset_seconds") for each in fleet.instances]
        shares = await fleet.count_fired()
    fired = await user.fired()
    assert check_fired(fired, due) == 0
    reached = [datetime.fromisoformat(each.event["payload"]["reachedAt"]).timestamp() * 1000 for each in fired]
    assert all(each.due_at_ms <= at <= each.stored_at_ms for each, at in zip(fired, reached, strict=True))
    assert offsets == [pytest.approx(HOUR, abs=10), pytest.approx(-HOUR, abs=10)]
    assert all(shares), f"an instance fired nothing: {shares}"


async def test_handler_wakes_worker(user: User, fleet: Fleet) -> None:
    """A handler and a worker work together, and the handler wakes the worker."""
    # The worker polls once a day. The handler sends a hint for each timer that is due within its own polling interval.
    polls_daily = {"TIMER_ROLE": "worker", "TIMER_POLLING_INTERVAL": "86400000"}
    async with fleet.instance(TIMER_ROLE="handler") as handler, fleet.instance(**polls_daily) as worker:
        due = {f"call-{index}": int(time.time() * 1000) + 100 * index for index in range(20)}
        await user.schedule(due)
        await user.until_stored("TIMER_EVT", len(due), seconds=20)
        await worker.until_metric(FIRED, at_least=len(due))  # it is counted after the event is stored
        done = [(await each.metric(SCHEDULED), await each.metric(FIRED)) for each in (handler, worker)]
        fired = await user.fired()
    assert done == [(20, 0), (0, 20)]
    assert check_fired(fired, due) == 0
    assert max(each.stored_at_ms - each.due_at_ms for each in fired) < 2_000


@pytest.mark.slow
async def test_another_instance_reads_on(user: User, fleet: Fleet) -> None:
    """One instance reads the commands. If it is killed, another one reads after its lease; if it stops, at once."""
    async with fleet.running(3) as instances:
        killed = await find_reader(user, instances)
        await user.schedule(together(500, FAR_MS))
        await user.until_handled()
        shares = {each: await each.metric(SCHEDULED) for each in instances}
        await killed.kill()
        began = time.monotonic()
        await user.until_replied("acme")
        after_kill = time.monotonic() - began
        stopped = await find_reader(user, living := [each for each in instances if each is not killed])
        assert await stopped.terminate() == 0
        began = time.monotonic()
        await user.until_replied("acme")
        after_stop = time.monotonic() - began
        last = await find_reader(user, living := [each for each in living if each is not stopped])
    assert shares == {each: 500 if each is killed else 0 for each in instances}
    assert living == [last]
    assert after_kill < 5
    assert after_stop < 1.5, "it waited for the lease"


@asynccontextmanager
async def ended_while_preparing(database_url: str) -> AsyncIterator[None]:
    """End the sessions of paused processes that are between the preparation of a statement and its execution.

    PostgreSQL counts such a session as active, so `idle_in_transaction_session_timeout` does not end it.
    """
    end = """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'active' AND wait_event = 'ClientRead'
          AND state_change < clock_timestamp() - interval '5 s'
    """
    database = await asyncpg.connect(database_url)

    async def end_all() -> None:
        while True:
            await database.execute(end)
            await asyncio.sleep(0.1)

    ending = asyncio.create_task(end_all())
    try:
        yield
    finally:
        ending.cancel()
        await asyncio.wait([ending])
        await database.close()


@pytest.mark.slow
async def test_reader_that_was_paused(user: User, fleet: Fleet, database_url: str) -> None:
    """A reader that goes on after another one has taken its place handles no command a second time."""
    async with ended_while_preparing(database_url), fleet.running(2) as instances:
        total = 0
        for number in range(3):
            paused = await find_reader(user, instances)
            calls = {f"{number}-{index}": FAR_MS for index in range(2_000)}
            sending = asyncio.create_task(user.schedule(calls))
            await paused.until_metric(SCHEDULED, at_least=await paused.metric(SCHEDULED) + 100)
            paused.signal(signal.SIGSTOP)
            await sending
            await user.until_handled()
            paused.signal(signal.SIGCONT)
            total += len(calls)
            await paused.until_page("/readyz", 200)
            await user.until_handled()
        assert sum([await each.metric(SCHEDULED) for each in instances]) == total
        assert [await each.metric(SCHEDULED.replace("scheduled", "unchanged")) for each in instances] == [0, 0]
