import pytest

from tests.harness.clock import ManualClock
from tests.harness.in_process import exhaust, next_at
from tests.harness.runs import Runs, jobs, run_after
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.ports.database import Database
from timer_service.core.ports.transactions import in_transaction
from timer_service.runs import sweep as sweep_worker
from timer_service.runs.retention import delete_settled
from timer_service.runs.run import SWEEP_MS

STALE = {"name": "a", "staleAfterSeconds": 60}


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    """Return the runs slice on each store in turn."""
    return Runs(store, memory_broker, clock)


async def sweep(runs: Runs) -> None:
    """Run the sweep until it has nothing left to do now."""
    await exhaust(runs.sweep, runs.clock.now())


async def test_stale_job(runs: Runs) -> None:
    """A ready job without a report for `staleAfterSeconds` ends as stale. Each report restarts the time."""
    await runs.request("StartRun", jobs=[STALE, *jobs({"b": ["a"], "c": [run_after("a")]})])
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


async def test_stuck_job_is_released(runs: Runs) -> None:
    """A waiting job whose needs have all ended is released by the sweep and named once in RunStuck."""
    await runs.start({"a": [], "b": ["a"], "c": [run_after("b"), "a"], "long": []})
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


async def test_sweep_of_a_sound_run_changes_nothing(runs: Runs) -> None:
    """Repeated sweeps of a run without stuck jobs change no row and publish no event."""
    await runs.start({"a": [], "b": ["a"], "c": [{"group": "g"}]}, "g")
    await runs.publish()
    count = len(runs.broker.events)
    before = [row["open_needs"] for row in await runs.rows("run_jobs")]
    for _ in range(3):
        runs.clock.advance(milliseconds=SWEEP_MS)
        await sweep(runs)
    await runs.publish()
    assert [row["open_needs"] for row in await runs.rows("run_jobs")] == before
    assert len(runs.broker.events) == count


async def test_stale_jobs_of_one_tenant_delay_no_other(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass whose time is up ends. Tenants take turns: many runs of one tenant do not delay the job of another."""
    monkeypatch.setattr(sweep_worker, "PASS_SECONDS", -1)
    for number in range(4):
        await runs.request("StartRun", runId=f"run-{number}", jobs=[STALE])
    runs.clock.advance(seconds=1)
    await runs.request("StartRun", tenant="other", jobs=[STALE])
    now = runs.clock.advance(minutes=1)
    for _ in range(2):
        assert await runs.sweep.tick(now) == (1, now)
    swept = [each["tenantId"] for name in ("acme", "other") for each in await runs.events_of("RunCompleted", name)]
    assert sorted(swept) == ["acme", "other"]
    await sweep(runs)
    assert {row["status"] for row in await runs.rows("runs")} == {"failed"}


async def test_failing_sweep_of_one_run(runs: Runs) -> None:
    """If the sweep of one run fails, that run is postponed and the other runs are swept."""
    for name in ("damaged", "fine"):
        await runs.request("StartRun", runId=name, jobs=[STALE])
    await runs.sql("UPDATE runs SET open_jobs = 0 WHERE run_id = 'damaged'")
    runs.clock.advance(minutes=2)
    await sweep(runs)
    assert (await runs.statuses("fine"), await runs.statuses("damaged")) == ({"a": "timed_out_stale"}, {"a": "pending"})
    assert await next_at(runs.sweep, runs.clock.now()) == runs.clock.now() + SWEEP_MS


async def test_off_and_on(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """While runs are disabled, no job becomes ready. When they are enabled again, the sweep evaluates them."""
    off = Runs(store, memory_broker, clock, enabled=False)
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


async def test_report_in_the_stream_prevents_staleness(runs: Runs) -> None:
    """A job is not stale while its report waits in the stream, however long the service was down."""
    await runs.request("StartRun", jobs=[STALE, *jobs({"b": ["a"]})])
    runs.send("ReportJobStatus", jobName="a", status="success")
    runs.clock.advance(minutes=5)
    restarted = Runs(runs.database, runs.broker, runs.clock)
    before = await restarted.sweep.tick(runs.clock.now())
    await runs.consume()
    after = await restarted.sweep.tick(runs.clock.now())
    assert (before.done, before.next_at) == (0, runs.clock.now() - 1 + 1000)
    assert (after.done, await runs.statuses()) == (0, {"a": "success", "b": "pending"})
    assert await runs.ready() == ["a", "b"]


async def test_no_job_is_stale_while_the_broker_is_down(runs: Runs) -> None:
    """No job becomes stale while the broker is down, because its report could not be read."""
    await runs.request("StartRun", jobs=[STALE])
    runs.clock.advance(minutes=5)
    runs.broker.stored.away = "away"
    await sweep(runs)
    away = await runs.statuses()
    runs.broker.stored.away = None
    await sweep(runs)
    assert (away, await runs.statuses()) == ({"a": "pending"}, {"a": "timed_out_stale"})


async def test_open_runs_are_swept_less_and_less_often(runs: Runs) -> None:
    """A run that stays open for 30 days is swept a few dozen times."""
    await runs.start({"a": []})
    end = runs.clock.now() + 30 * 24 * 3_600_000
    sweeps = 0
    while (at := await next_at(runs.sweep, runs.clock.now())) is not None and at < end:
        runs.clock.set(at)
        sweeps += (await runs.sweep.tick(at)).done
    assert 10 < sweeps < 60


async def test_retention(runs: Runs) -> None:
    """Retention deletes old ended runs in bounded parts, and leaves other runs complete. Queries answer meanwhile."""
    await runs.start({**{f"{number}": [] for number in range(20)}, "b": ["1"], "c": [{"group": "g"}]}, "g")
    await runs.request("CancelRun")
    await runs.report("success", "unknown", runId="never started")
    await runs.start({"a": [], "b": ["a"]}, runId="open")
    runs.clock.advance(days=8)
    deleted, statuses = [], set()
    while count := await in_transaction(runs.database, lambda tx: delete_settled(tx, runs.clock.now(), 6)):
        deleted.append(count)
        statuses.add((await runs.ask("get-run", runId="run-1")).get("status"))
    tables = ("runs", "run_jobs", "run_edges", "run_groups", "run_group_needs", "run_pending_commands")
    left = {table: len(await runs.rows(table)) for table in tables}
    assert list(left.values()) == [1, 2, 2, 0, 0, 0]
    assert (len(deleted) > 3, max(deleted) <= 3 * 6, statuses) == (True, True, {"cancelled", None})
