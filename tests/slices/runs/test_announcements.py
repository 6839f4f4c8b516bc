"""Jobs that became ready or were skipped: their events are added with the change, or later in portions."""

import asyncio

import pytest

from tests.harness.clock import ManualClock
from tests.harness.in_process import exhaust
from tests.harness.memory_broker import MemoryBroker
from tests.harness.runs import Runs, jobs, run_after
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.ports.database import Database
from timer_service.runs import announcements, announcer, events

NAMES = [f"job-{number}" for number in range(9)]
STAR = {"seed": [], **{name: ["seed"] for name in NAMES}}


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Return the runs slice on each store in turn. A transaction adds the event of one job."""
    monkeypatch.setattr(events, "MOST_BYTES", 1)
    return Runs(store, memory_broker, clock)


async def deferred(runs: Runs) -> list[str]:
    return [row["job_name"] for row in await runs.rows("run_announcements")]


async def test_large_events(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads and outputs count: a portion ends with the event that exceeds it, and the announcer wakes the relay."""
    monkeypatch.setattr(events, "MOST_BYTES", 10_000)
    await runs.request("StartRun", jobs=jobs(STAR, payload="\u00fc" * 400))
    await runs.publish()
    await runs.report("success", "seed", outputs={"log": "\u00fc" * 400})
    counts = [9 - len(await deferred(runs))]
    while (await runs.announcer.tick(runs.clock.now())).done:
        counts.append(9 - len(await deferred(runs)))
    assert counts == [3, 6, 9]
    assert runs.worker_wakes == [("outbox", runs.clock.now())] * 2
    assert sorted(await runs.ready()) == [*NAMES, "seed"]


async def test_ready_at_once(runs: Runs) -> None:
    """A job is ready as soon as its needs have ended, also if its JobReady is added later, and all events say so."""
    await runs.start(STAR)
    await runs.report("success", "seed")
    (ready_at,) = {
        each["readyAt"] for each in (await runs.ask("get-run", runId="run-1"))["jobs"] if each["name"] in NAMES
    }
    assert len(await deferred(runs)) == 8
    runs.clock.advance(seconds=1)
    announced = [each["payload"]["readyAt"] for each in await runs.events_of("JobReady")]
    assert announced.count(ready_at) == 9


async def test_ready_jobs_come_first(runs: Runs) -> None:
    """A job that a failure makes ready is announced before the jobs that it skips, because a worker waits for it."""
    await runs.start({"seed": [], "a": ["seed"], "clean": [run_after("seed")], "z": ["seed"]})
    await runs.report("failed", "seed")
    assert await deferred(runs) == ["a", "z"]


async def test_skipped_jobs(runs: Runs) -> None:
    """The events of skipped jobs are added in portions too. The one of the run is added with the change."""
    await runs.start(STAR)
    await runs.report("failed", "seed")
    assert [row["message"] for row in await runs.rows("outbox")].count("run-completed") == 1
    assert len(await deferred(runs)) == 8
    assert await runs.skipped() == dict.fromkeys(NAMES, "upstream_failed: seed")
    assert await deferred(runs) == []
    causes = {each["causationId"] for each in await runs.events_of("JobSkipped")}
    (ready,) = await runs.events_of("JobReady")  # of the StartRun
    assert len(causes - {ready["causationId"]}) == len(causes) == 1


async def test_job_that_ended_before_it_was_announced(runs: Runs) -> None:
    """A job that ended has no JobReady any more, and a worker that knows its job may report it before."""
    await runs.start(STAR)
    await runs.report("success", "seed")
    ends, runs_already, *_ = await deferred(runs)
    assert (await runs.report("success", ends))["outcome"] == "recorded"
    assert (await runs.report("running", runs_already))["outcome"] == "recorded"
    assert sorted(await runs.ready()) == sorted({"seed", *NAMES} - {ends})


async def test_run_that_was_deleted_and_started_again(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a deleted run has not announced announces no job of a later run of this name."""
    await runs.start(STAR)
    await runs.report("failed", "seed")
    await runs.start(dict.fromkeys(NAMES, ()), runId="ready")
    for table in ("run_edges", "run_jobs", "runs"):
        await runs.sql(f"DELETE FROM {table}")
    monkeypatch.undo()
    await runs.start(STAR)
    await runs.report("failed", "seed")
    await runs.start(dict.fromkeys(NAMES, ()), runId="ready")
    await runs.sql("DELETE FROM outbox")  # they were published
    await exhaust(runs.announcer, runs.clock.now())
    assert (await runs.rows("outbox"), await deferred(runs)) == ([], [])


async def test_tenants_take_turns(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass announces a portion of each tenant, however many jobs of another one wait."""
    tenants = ("acme", "globex", "initech", "umbrella")
    for tenant in tenants:
        runs.send("StartRun", tenant=tenant, jobs=jobs(dict.fromkeys(NAMES, ())))
    runs.send("StartRun", runId="run-2", jobs=jobs(dict.fromkeys(NAMES, ())))
    await runs.consume()
    await runs.announcer.tick(runs.clock.now())
    waiting = [row["tenant_id"] for row in await runs.rows("run_announcements")]
    assert [waiting.count(tenant) for tenant in tenants] == [16, 8, 8, 8]  # the first event was added with the change
    monkeypatch.setattr(announcer, "PASS_SECONDS", -1)  # each pass ends after one tenant
    for _ in tenants:
        assert await runs.announcer.tick(runs.clock.now()) == (1, runs.clock.now())
    waiting = [row["tenant_id"] for row in await runs.rows("run_announcements")]
    assert [waiting.count(tenant) for tenant in tenants] == [15, 7, 7, 7]


async def test_damaged_jobs(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged payload delays no other job. Its job is announced when it is repaired."""
    for tenant in ("acme", "globex"):
        runs.send("StartRun", tenant=tenant, jobs=jobs(dict.fromkeys(NAMES, ()), payload="x"))
    await runs.consume()
    monkeypatch.undo()
    damaged = "tenant_id = 'acme' AND job_name IN ('job-2', 'job-7')"
    await runs.sql(f"""UPDATE run_jobs SET payload = '"x' WHERE {damaged}""")
    assert (await runs.announcer.tick(runs.clock.now())).done == 17  # a failure counts as work, so the loop goes on
    assert sorted(await runs.ready()) == [name for name in NAMES if name not in ("job-2", "job-7")]
    assert sorted(await runs.ready("globex")) == NAMES
    later = await runs.rows("run_announcements")
    assert {row["last_error"] is not None for row in later} == {True}
    assert await runs.announcer.tick(runs.clock.now()) == (0, min(row["available_at"] for row in later))
    await runs.sql(f"UPDATE run_jobs SET payload = '1' WHERE {damaged}")
    runs.clock.advance(minutes=2)
    assert sorted(await runs.ready()) == NAMES
    assert await deferred(runs) == []


async def test_two_instances_announce_at_the_same_time(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two instances announce each job exactly once."""
    monkeypatch.setattr(events, "MOST_BYTES", 1)
    both = [Runs(postgres, memory_broker, clock), Runs(postgres, memory_broker, clock)]
    await both[0].start(dict.fromkeys(NAMES, ()))
    for _ in NAMES:
        await asyncio.gather(*(each.announcer.tick(clock.now()) for each in both))
    assert await both[0].ready() == NAMES


@pytest.mark.parametrize(("size", "omitted"), [(1_000, 0), (5_000, 1)])
async def test_outputs_of_many_ready_jobs(runs: Runs, monkeypatch: pytest.MonkeyPatch, size: int, omitted: int) -> None:
    """Outputs that do not fit into a JobReady are counted. If many jobs become ready, they share a limit."""
    monkeypatch.setattr(events, "MOST_BYTES", 512 * 1024)
    monkeypatch.setattr(announcements, "RUN_OUTPUTS_BYTES", 20 * 2_500)
    graph = {f"job-{number}": ["a", "b", "last"] for number in range(20)}
    await runs.start({"a": [], "b": [], "last": [], **graph})
    await runs.report("success", "a", outputs={"log": "x" * 1_000})
    await runs.report("success", "b", outputs={"log": "x" * size})
    await runs.report("success", "last")
    ready = [each["payload"] for each in await runs.events_of("JobReady") if each["payload"]["jobName"] in graph]
    found = {(len(each["upstreamJobOutputs"]), each.get("outputsOmitted", 0)) for each in ready}
    assert (len(ready), found) == (20, {(2 - omitted, omitted)})


async def test_outputs_of_one_job(runs: Runs) -> None:
    """A JobReady has at most 512 KiB of outputs."""
    many = [f"part-{number:02}" for number in range(12)]
    await runs.start({**{name: [] for name in many}, "join": many})
    await runs.report("success", *many, outputs={"text": "x" * 60_000})
    payload = (await runs.events_of("JobReady"))[-1]["payload"]
    assert (len(payload["upstreamJobOutputs"]), payload["outputsOmitted"]) == (8, 4)
