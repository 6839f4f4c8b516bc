import asyncio
from typing import Any

import pytest

from tests.harness.clock import ManualClock
from tests.harness.in_process import exhaust, next_at
from tests.harness.runs import Runs, jobs, run_of
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.database import Database
from timer_service.core.health import HEALTHY, Health
from timer_service.core.message import Position
from timer_service.core.transactions import in_transaction
from timer_service.runs import loader
from timer_service.runs.retention import delete_settled
from timer_service.runs.rules import RunKey
from timer_service.runs.run import SWEEP_MS


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    """Return the needs slice over every store in turn."""
    return Runs(store, memory_broker, clock)


async def sweep(runs: Runs) -> None:
    """Let the sweep do all it has to do by now."""
    await exhaust(runs.sweep, runs.clock.now())


async def test_job_nobody_hears_of(runs: Runs) -> None:
    """A job is ended when nothing is heard of it for as long as it says, counted anew with each report."""
    await runs.request(
        "StartRun", jobs=[{"name": "a", "staleAfterSeconds": 60}, *jobs({"b": ["a"], "c": [run_of("a")]})]
    )
    assert await next_at(runs.sweep, runs.clock.now()) == runs.clock.now() + 60_000
    runs.clock.advance(seconds=50)
    await runs.report("running", "a")
    runs.clock.advance(milliseconds=59_999)
    await sweep(runs)
    early = await runs.statuses()
    runs.clock.advance(milliseconds=1)
    await sweep(runs)
    assert (early["a"], await runs.statuses()) == ("running", {"a": "timed_out_stale", "b": "skipped", "c": "pending"})
    assert (await runs.ready(), runs.worker_wakes[-1][1]) == (["a", "c"], runs.clock.now())
    await runs.report("success", "a")
    assert (await runs.statuses())["a"] == "timed_out_stale"


async def test_stuck_job_is_seen_to(runs: Runs) -> None:
    """Jobs that wait though all they need has ended, as only a fault can bring about, are seen to and told of once."""
    await runs.start({"a": [], "b": ["a"], "c": [run_of("b"), "a"], "long": []})
    await runs.report("running", "long")
    await runs.sql("UPDATE run_jobs SET status = 'success', settled_at = ready_at WHERE job_name = 'a'")
    await sweep(runs)
    assert (await runs.ready(), runs.outcomes()) == (["a", "long"], ["recorded", "started"])
    runs.clock.advance(milliseconds=SWEEP_MS)
    await sweep(runs)
    assert [each["payload"]["jobs"] for each in await runs.events_of("RunStuck")] == [["b"]]
    await runs.report("success", "b")
    await runs.report("success", "c", "long")
    runs.clock.advance(milliseconds=SWEEP_MS)
    await sweep(runs)
    assert (await runs.completed(), len(await runs.events_of("RunStuck"))) == (["success"], 1)


async def test_end_told_again_has_its_run_looked_at(runs: Runs) -> None:
    """A report that comes again after its job has ended does no harm, and finds what its first coming has missed."""
    await runs.start({"a": [], "b": ["a"]})
    await runs.report("success", "a")
    await runs.sql("UPDATE run_jobs SET open_needs = 1, ready_at = NULL WHERE job_name = 'b'")
    await runs.deliver_again(1)
    assert runs.command_wakes[-1] == runs.clock.now() + 60_000
    runs.clock.advance(minutes=1)
    await sweep(runs)
    assert [each["payload"]["jobs"] for each in await runs.events_of("RunStuck")] == [["b"]]


async def test_run_that_is_well_is_left_alone(runs: Runs) -> None:
    """The sweep of a run in which nothing is wrong changes nothing and tells nothing, however often it comes by."""
    await runs.start({"a": [], "b": ["a"], "c": [{"group": "g"}]}, "g")
    await runs.publish()
    told = len(runs.broker.events)
    before = [row["open_needs"] for row in await runs.rows("run_jobs")]
    for _ in range(3):
        runs.clock.advance(milliseconds=SWEEP_MS)
        await sweep(runs)
    await runs.publish()
    assert [row["open_needs"] for row in await runs.rows("run_jobs")] == before
    assert len(runs.broker.events) == told


async def test_one_run_that_can_not_be_swept(runs: Runs) -> None:
    """A run that is damaged is put off, and the others are swept."""
    for name in ("damaged", "fine"):
        await runs.request("StartRun", runId=name, jobs=[{"name": "a", "staleAfterSeconds": 60}])
    await runs.sql("UPDATE runs SET open_jobs = 0 WHERE run_id = 'damaged'")
    runs.clock.advance(minutes=2)
    await sweep(runs)
    assert (await runs.statuses("fine"), await runs.statuses("damaged")) == ({"a": "timed_out_stale"}, {"a": "pending"})
    assert await next_at(runs.sweep, runs.clock.now()) == runs.clock.now() + SWEEP_MS


async def test_off_and_on(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """While it is off commands are taken and nobody goes; once it is on, the sweep catches up, and nothing is stuck."""
    off = Runs(store, memory_broker, clock, evaluating=False)
    await off.start({"a": [], "b": ["a"], "c": ["b"]}, "g")
    await off.resolve("g", {"d": ["a"]})
    await off.report("failed", "b")
    assert await off.ready() == []
    on = Runs(store, memory_broker, clock)
    await on.report("running", "a")
    await sweep(on)
    assert (await on.ready(), await on.skipped()) == (["a"], {"c": "upstream_failed: b"})
    await off.report("success", "a")
    await on.report("success", "d")
    await sweep(on)
    await on.report("success", "d")
    assert (await on.ready(), await on.completed(), await on.events_of("RunStuck")) == (["a", "d"], ["failed"], [])


async def test_restart_at_every_step(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A process that ends after any step, its acknowledgements lost, leaves the next one everything it needs."""
    told: list[Position] = []
    steps: list[tuple[str, dict[str, Any]]] = [
        ("StartRun", {"jobs": jobs({"a": [], "b": ["a", {"group": "g"}], "z": [run_of("b")]}), "groups": ["g"]}),
        ("ReportJobStatus", {"jobName": "a", "status": "success"}),
        ("ResolveGroup", {"groupName": "g", "jobs": jobs({"c": ["a"]})}),
        ("ReportJobStatus", {"jobName": "c", "status": "success"}),
        ("ReportJobStatus", {"jobName": "b", "status": "failed"}),
        ("ReportJobStatus", {"jobName": "z", "status": "success"}),
    ]
    for message, fields in steps:
        once = Runs(store, memory_broker, clock)
        await once.request(message, **fields)
        told += once.positions
        again = Runs(store, memory_broker, clock)
        memory_broker.deliver(*told)
        await again.consume()
        await sweep(again)
    last = Runs(store, memory_broker, clock)
    assert (await last.ready(), await last.completed()) == (["a", "c", "b", "z"], ["failed"])
    assert await last.events_of("RunStuck") == []


async def test_two_instances_end_siblings_at_one_moment(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """However two instances race with the siblings of a join, it is let go exactly once, and never not."""
    both = [Runs(postgres, memory_broker, clock), Runs(postgres, memory_broker, clock)]
    names = [f"run-{number}" for number in range(20)]
    for name in names:
        await both[0].start({"left": [], "right": [], "join": ["left", "right"]}, runId=name)
    for name in names:
        for job in ("left", "right"):
            both[0].send("ReportJobStatus", runId=name, jobName=job, status="success")
    await asyncio.gather(*(runs.consume(batch_size=1) for runs in both))
    assert (await both[0].ready()).count("join") == len(names)


async def test_different_runs_do_not_wait_for_each_other(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """While one run is being evaluated, another goes on."""
    runs = Runs(postgres, memory_broker, clock)
    for name in ("slow", "quick"):
        await runs.start({"a": [], "b": ["a"]}, runId=name)
    async with asyncio.timeout(10), postgres.transaction() as tx:
        await loader.lock_run(tx, RunKey("acme", "slow"))
        await runs.report("success", "a", runId="quick")
    assert (await runs.ready()).count("b") == 1


async def test_deep_cascade(runs: Runs) -> None:
    """However long the chain of jobs that a failure skips, it is skipped to its end at once."""
    chain = [f"job-{number:03}" for number in range(200)]
    await runs.start({name: [chain[at - 1]] if at else [] for at, name in enumerate(chain)})
    await runs.report("failed", chain[0])
    assert (len(await runs.skipped()), await runs.completed()) == (199, ["failed"])


async def test_retention(runs: Runs) -> None:
    """Of runs that ended long ago everything is deleted, a bounded part at a time; the others stay whole."""
    await runs.start({"a": [], "b": ["a"], "c": [{"group": "g"}]}, "g")
    await runs.request("CancelRun")
    await runs.report("success", "nobody", runId="never started")
    await runs.start({"a": [], "b": ["a"]}, runId="going")
    runs.clock.advance(days=8)
    passes = 0
    while await in_transaction(runs.database, lambda tx: delete_settled(tx, runs.clock.now(), 2)):
        passes += 1
    tables = ("runs", "run_jobs", "run_needs", "run_groups", "run_group_needs", "run_pending_commands")
    left = {table: len(await runs.rows(table)) for table in tables}
    assert list(left.values()) == [1, 2, 1, 0, 0, 0]
    assert passes > 1


async def test_report_that_waits_beats_staleness(runs: Runs) -> None:
    """A job whose report waits in the stream is not stale, however long the service was away."""
    await runs.request("StartRun", jobs=[{"name": "a", "staleAfterSeconds": 60}, *jobs({"b": ["a"]})])
    runs.send("ReportJobStatus", jobName="a", status="success")
    runs.clock.advance(minutes=5)
    restarted = Runs(runs.database, runs.broker, runs.clock)
    before = await restarted.sweep.tick(runs.clock.now())
    await runs.consume()
    after = await restarted.sweep.tick(runs.clock.now())
    assert (before.done, before.next_at) == (0, runs.clock.now() - 1 + 1000)
    assert (after.done, await runs.statuses()) == (0, {"a": "success", "b": "pending"})
    assert await runs.ready() == ["a", "b"]


async def test_each_stale_job_waits_for_the_reports_of_its_time(runs: Runs) -> None:
    """That one stale job was reported in the end says nothing of the reports that wait when another one is stale."""
    graph = [{"name": "a", "staleAfterSeconds": 60}]
    await runs.request("StartRun", jobs=graph)
    runs.send("ReportJobStatus", jobName="a", status="success")
    runs.clock.advance(minutes=2)
    await runs.sweep.tick(runs.clock.now())
    await runs.consume()
    await runs.request("StartRun", runId="run-2", jobs=graph)
    runs.send("ReportJobStatus", runId="run-2", jobName="a", status="success")
    runs.clock.advance(hours=2)
    await runs.sweep.tick(runs.clock.now())
    await runs.consume()
    await sweep(runs)
    assert (await runs.statuses(), await runs.statuses("run-2")) == ({"a": "success"}, {"a": "success"})


async def test_staleness_waits_for_a_broker_that_is_away(runs: Runs) -> None:
    """While the broker is away no job is stale: its report could not be delivered."""
    await runs.request("StartRun", jobs=[{"name": "a", "staleAfterSeconds": 60}])
    runs.clock.advance(minutes=5)
    runs.broker.health = Health.down("away")
    await sweep(runs)
    away = await runs.statuses()
    runs.broker.health = HEALTHY
    await sweep(runs)
    assert (away, await runs.statuses()) == ({"a": "pending"}, {"a": "timed_out_stale"})


async def test_open_runs_are_swept_less_and_less_often(runs: Runs) -> None:
    """A run that stays open for a month is swept a few dozen times, not every ten minutes."""
    await runs.start({"a": []})
    end = runs.clock.now() + 30 * 24 * 3_600_000
    sweeps = 0
    while (at := await next_at(runs.sweep, runs.clock.now())) is not None and at < end:
        runs.clock.set(at)
        sweeps += (await runs.sweep.tick(at)).done
    assert 10 < sweeps < 60
