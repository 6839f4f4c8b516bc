"""Runs whose service, or one of its instances, is killed."""

import json
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from nats.aio.msg import Msg

from tests.e2e.conftest import WITH_KILLS, User, kill_and_start
from tests.harness.fleet import Fleet
from tests.harness.live_service import Server
from tests.harness.processes import NatsServer, Service, body
from tests.harness.runs import Graph, LiveRuns, jobs

DIAMOND: Graph = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}
RECORDED = 'timer_commands_received_total{outcome="recorded",type="ReportJobStatus"}'


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
        await kill_and_start(service, user)
        await runs.consume()
        assert now_ready <= set(await runs.ready())
        runs.send("ReportJobStatus", jobName=min(now_ready), status="success")
    await runs.publish()
    await kill_and_start(service, user)
    await runs.consume()
    ready = await runs.events_of("JobReady")
    assert {each["payload"]["jobName"] for each in ready} == DIAMOND.keys()
    assert len({each["id"] for each in ready}) == len(DIAMOND)
    assert set(await runs.completed()) == {"success"}


async def test_two_instances_end_siblings_at_the_same_time(broker: NatsServer, fleet: Fleet) -> None:
    """When two instances handle the ends of the jobs that a join needs, the join becomes ready exactly once."""
    names = [f"run-{number}" for number in range(100)]
    async with fleet.running(2) as instances, LiveRuns.connect(Server(broker.url, instances[0])) as runs:
        for name in names:
            runs.send("StartRun", runId=name, jobs=jobs({"left": [], "right": [], "join": ["left", "right"]}))
        await runs.consume()
        for name in names:
            for job in ("left", "right"):
                runs.send("ReportJobStatus", runId=name, jobName=job, status="success")
        await runs.consume()
        joins = [each for each in await runs.events_of("JobReady") if each["payload"]["jobName"] == "join"]
        shares = [await each.metric(RECORDED) for each in instances]
    assert Counter(each["payload"]["runId"] for each in joins) == Counter(names)
    assert sum(shares) == 2 * len(names)
    assert all(shares), f"one instance handled no reports: {shares}"


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
async def test_one_of_three_is_killed(count: int, user: User, broker: NatsServer, fleet: Fleet) -> None:
    """One of three instances is killed during many runs. Each run completes, and each job has one JobReady id."""
    async with fleet.running(3) as (victim, *others), LiveRuns.connect(Server(broker.url, victim)) as runs:
        await execute(user)
        for number in range(count):
            runs.send("StartRun", runId=f"run-{number}", jobs=jobs(DIAMOND))
        await runs.publish()
        await user.until_stored("TIMER_EVT", count * len(DIAMOND) // 2)
        await victim.kill()
        await victim.start()
        await user.shorten_ack_wait()
        await fleet.expire_outbox_leases()
        await user.until_stored("TIMER_EVT", count * (len(DIAMOND) + 1))
        await user.until_handled()
        completed, ready = await runs.events_of("RunCompleted"), await runs.events_of("JobReady")
        done = [await each.metric(RECORDED) for each in others]
    names = {f"run-{number}" for number in range(count)}
    assert {(each["payload"]["runId"], each["payload"]["status"]) for each in completed} == {
        (name, "success") for name in names
    }
    ids = {(each["payload"]["runId"], each["payload"]["jobName"], each["id"]) for each in ready}
    assert sorted((run, job) for run, job, _ in ids) == sorted((run, job) for run in names for job in DIAMOND)
    assert all(done), f"an instance handled no reports: {done}"
    print(f"{count} runs, 3 instances, 1 killed: all complete, {len(ready) - len(ids)} duplicates, others: {done}")
