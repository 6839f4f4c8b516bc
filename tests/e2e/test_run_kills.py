"""Runs whose service, or one of its instances, is killed."""

import json
from collections.abc import AsyncIterator

import pytest
from nats.aio.msg import Msg

from tests.e2e.conftest import WITH_KILLS, User, find_reader, kill_and_start
from tests.harness.fleet import Fleet
from tests.harness.live_service import Server
from tests.harness.processes import NatsServer, Service, body
from tests.harness.runs import Graph, LiveRuns, jobs

DIAMOND: Graph = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}


@pytest.fixture
async def runs(broker: NatsServer, service: Service) -> AsyncIterator[LiveRuns]:
    async with LiveRuns.connect(Server(broker.url, service)) as conversation:
        yield conversation


@pytest.mark.slow
@WITH_KILLS
async def test_killed_between_each_pair_of_steps(
    runs: LiveRuns,
    user: User,
    service: Service,
    handled: bool,  # noqa: FBT001
) -> None:
    """A service that is killed after each step of a diamond makes each job ready once."""
    runs.send("StartRun", jobs=jobs(DIAMOND))
    for now_ready in ({"top"}, {"left", "right"}, {"right"}, {"bottom"}):
        await runs.publish()
        if handled:
            await user.until_handled()
            await runs.until_quiet()
        await kill_and_start(service)
        await user.until_handled()
        assert now_ready <= set(await runs.ready())
        runs.send("ReportJobStatus", jobName=min(now_ready), status="success")
    await runs.publish()
    await kill_and_start(service)
    await user.until_handled()
    ready = await runs.events_of("JobReady")
    assert {each["payload"]["jobName"] for each in ready} == DIAMOND.keys()
    assert len({each["id"] for each in ready}) == len(DIAMOND)
    assert set(await runs.completed()) == {"success"}


async def execute(user: User) -> None:
    """Report the success of each job when its JobReady arrives, as an executor does."""

    async def report(message: Msg) -> None:
        event = json.loads(message.data)
        named = {name: event["payload"][name] for name in ("tenantId", "runId", "jobName")}
        command = body("ReportJobStatus", event["tenantId"], {**named, "status": "success"})
        await user.connection.publish(f"timer.cmd.v1.{event['tenantId']}.report-job-status", command)

    await user.connection.subscribe("timer.evt.v1.*.job-ready", cb=report)


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(200, id="short", marks=pytest.mark.slow),
        pytest.param(3_000, id="full", marks=pytest.mark.full),
    ],
)
async def test_reader_of_three_is_killed(count: int, user: User, broker: NatsServer, fleet: Fleet) -> None:
    """The reader of three instances is killed during many runs. All complete, and each job has one JobReady id."""
    async with fleet.running(3) as instances, LiveRuns.connect(Server(broker.url, instances[0])) as runs:
        victim = await find_reader(user, instances)
        await execute(user)
        for number in range(count):
            runs.send("StartRun", runId=f"run-{number}", jobs=jobs(DIAMOND))
        await runs.publish()
        await user.until_stored("TIMER_EVT", count * len(DIAMOND) // 2)
        await victim.kill()
        await victim.start()
        await fleet.expire_outbox_leases()
        await user.until_stored("TIMER_EVT", count * (len(DIAMOND) + 1))
        await user.until_handled()
        completed, ready = await runs.events_of("RunCompleted"), await runs.events_of("JobReady")
    names = {f"run-{number}" for number in range(count)}
    assert {(each["payload"]["runId"], each["payload"]["status"]) for each in completed} == {
        (name, "success") for name in names
    }
    ids = {(each["payload"]["runId"], each["payload"]["jobName"], each["id"]) for each in ready}
    assert sorted((run, job) for run, job, _ in ids) == sorted((run, job) for run in names for job in DIAMOND)
    print(f"{count} runs, 3 instances, the reader killed: all complete, {len(ready) - len(ids)} duplicates")
