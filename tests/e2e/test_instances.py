"""Several instances on one Postgres share the work. Kills and outages of the database lose nothing."""

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path

import pytest

from tests.e2e.conftest import User, check_fired
from tests.harness.fleet import FIRED, Fleet
from tests.harness.processes import NatsServer
from tests.harness.provision import RestartablePostgres

HOUR = 3_600
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
@pytest.mark.parametrize(
    "timers", [pytest.param(3_000, id="short"), pytest.param(50_000, id="full", marks=pytest.mark.full)]
)
async def test_all_timers_fire_when_two_of_four_instances_are_killed(timers: int, user: User, fleet: Fleet) -> None:
    """If two of four instances are killed under load, all timers fire and the other instances take part."""
    settings = {"TIMER_BATCH_SIZE": "1000" if timers > 10_000 else "50", "TIMER_VISIBILITY_TIMEOUT": "10000"}
    async with fleet.running(4, **settings) as instances:
        due_at = int(time.time() * 1000) + max(4_000, timers // 2)
        due = together(timers, due_at)
        await user.schedule(due)
        await user.until_handled()
        assert time.time() * 1000 < due_at, "scheduling took too long for this test to show anything"
        more = {f"more-{index}": due_at + index for index in range(timers // 10)}
        arriving = asyncio.create_task(user.schedule(more))
        await user.until_stored("TIMER_EVT", timers // 50)
        await asyncio.gather(*(victim.kill() for victim in instances[:2]))
        await asyncio.gather(*(victim.start() for victim in instances[:2]))
        await arriving
        await user.shorten_ack_wait()
        await user.schedule(late := {f"late-{index}": int(time.time() * 1000) for index in range(timers // 10)})
        due |= more | late
        await user.until_stored("TIMER_EVT", len(due))
        await user.until_handled()
        shares = await fleet.count_fired()
    duplicates = check_fired(await user.fired(), due)
    assert all(shares[2:]), f"an instance fired nothing: {shares}"
    again = await fleet.count_reclaimed()
    print(f"{len(due)} timers, 4 instances, 2 killed: all fired, {again} claimed again, {duplicates} duplicates stored")
    print(f"fired by each, the killed ones since their restart: {shares}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "timers", [pytest.param(2_000, id="short"), pytest.param(50_000, id="full", marks=pytest.mark.full)]
)
async def test_postgres_restart_loses_no_timer(
    timers: int, tmp_path: Path, user: User, broker: NatsServer, postgres_server: RestartablePostgres
) -> None:
    """An immediate restart of Postgres under load loses no timer, and the instances keep running."""
    fleet = Fleet(tmp_path, broker, postgres_server.url)
    settings = {"TIMER_BATCH_SIZE": "1000" if timers > 10_000 else "50", "TIMER_VISIBILITY_TIMEOUT": "10000"}
    async with fleet.running(2, **settings):
        due_at = int(time.time() * 1000) + max(4_000, timers // 2)
        due = together(timers, due_at)
        await user.schedule(due)
        await user.until_handled()
        more = {f"more-{index}": due_at + index for index in range(timers // 10)}
        arriving = asyncio.create_task(user.schedule(more))
        await user.until_stored("TIMER_EVT", timers // 50)
        await postgres_server.restart("immediate")
        await arriving
        due |= more
        await user.until_stored("TIMER_EVT", len(due))
        await user.until_handled()
        for instance in fleet.instances:
            await instance.until_page("/readyz", 200)
    duplicates = check_fired(await user.fired(), due)
    again = await fleet.count_reclaimed()
    print(f"{len(due)} timers, Postgres restarted: all fired, {again} claimed again, {duplicates} duplicates stored")


async def test_commands_wait_during_a_postgres_outage(
    tmp_path: Path, user: User, broker: NatsServer, postgres_server: RestartablePostgres
) -> None:
    """During an outage of Postgres, no command is acknowledged and readiness fails. Afterwards, all are handled."""
    fleet = Fleet(tmp_path, broker, postgres_server.url)
    async with fleet.running(1) as (instance,):
        await postgres_server.stop("immediate")
        due = together(500, int(time.time() * 1000))
        await user.schedule(due)
        page = json.loads(await instance.until_page("/readyz", 503))
        waiting = await user.unhandled()
        alive, _ = await instance.page("/livez")
        await postgres_server.start()
        await user.until_stored("TIMER_EVT", len(due))
        await user.until_handled()
        assert (waiting, alive) == (500, 200)
        assert (page["commands"] != "ok", page["events"] != "ok", page["service"]) == (True, True, "ok")
        await instance.until_page("/readyz", 200)
        assert check_fired(await user.fired(), due) == 0


@pytest.mark.slow
async def test_timers_fire_by_the_clock_of_the_database(tmp_path: Path, user: User, fleet: Fleet) -> None:
    """Instances with clocks two hours apart fire on time, because they use the clock of the database.

    By its own clock, the slow instance would fire nothing in this test, and the fast one would fire too early.
    """
    async with AsyncExitStack() as stack:
        for seconds in (-HOUR, HOUR):
            instance = fleet.instance(TIMER_BATCH_SIZE="10")
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
        received = 'timer_commands_received_total{outcome="scheduled",type="ScheduleTimer"}'
        done = [(await each.metric(received), await each.metric(FIRED)) for each in (handler, worker)]
        fired = await user.fired()
    assert done == [(20, 0), (0, 20)]
    assert check_fired(fired, due) == 0
    assert max(each.stored_at_ms - each.due_at_ms for each in fired) < 2_000
