import pytest

from tests.harness.clock import ManualClock
from tests.harness.in_process import exhaust, next_at
from tests.harness.memory_broker import MemoryBroker
from tests.harness.runs import Runs, jobs, run_after
from timer_service.core.due.row_counts import RowCounts
from timer_service.core.ports.database import Database
from timer_service.core.ports.transactions import in_transaction
from timer_service.runs import SLICE
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
    assert runs.worker_wakes[-2:] == [(loop, runs.clock.now()) for loop in ("outbox", "announcements")]
    assert await next_at(runs.sweep, runs.clock.now()) == (await runs.only_row("runs"))["sweep_at"]
    assert await runs.ready() == ["a", "c"]
    await runs.report("success", "a")
    assert (await runs.statuses())["a"] == "timed_out_stale"


async def test_stale_always_job(runs: Runs) -> None:
    """An `always` job of a cancelled run that has no report ends as stale, and the run ends."""
    await runs.request("StartRun", jobs=jobs({"a": [], "clean": ["a"]}, ["clean"], staleAfterSeconds=60))
    runs.clock.advance(seconds=50)
    await runs.request("CancelRun")
    runs.clock.advance(seconds=59)
    await sweep(runs)
    early = await runs.statuses()
    runs.clock.advance(seconds=1)
    await sweep(runs)
    assert (early["clean"], await runs.completed()) == ("pending", ["cancelled"])
    assert await runs.statuses() == {"a": "cancelled", "clean": "timed_out_stale"}


async def test_cancelling_run_is_repaired(runs: Runs) -> None:
    """The sweep does not let an `always` job of a cancelled run wait for a group."""
    await runs.start({"first": [], "clean": ["first", {"group": "g"}]}, "g", always=["first", "clean"])
    await runs.request("CancelRun")
    runs.clock.advance(milliseconds=SWEEP_MS)
    await sweep(runs)
    assert (await runs.only_row("runs"))["open_groups"] == 0
    await runs.report("success", "first")
    assert (await runs.ready(), await runs.events_of("RunStuck")) == (["first", "clean"], [])


async def test_stuck_job_is_released(runs: Runs) -> None:
    """A waiting job whose needs have all ended is released by the sweep and named once in RunStuck."""
    await runs.start({"a": [], "b": ["a"], "c": [run_after("b"), "a"], "long": []})
    await runs.report("running", "long")
    await runs.sql("UPDATE run_jobs SET status = 'success', settled_at = ready_at WHERE job_name = 'a'")
    await runs.sql("UPDATE runs SET failed_jobs = 1, open_groups = 1")
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


async def test_many_stuck_jobs(runs: Runs) -> None:
    """RunStuck names at most 100 jobs."""
    await runs.start({"a": [], **{f"{number}": ["a"] for number in range(101)}})
    await runs.sql("UPDATE run_jobs SET status = 'success', settled_at = ready_at WHERE job_name = 'a'")
    runs.clock.advance(milliseconds=SWEEP_MS)
    await sweep(runs)
    assert [len(each["payload"]["jobs"]) for each in await runs.events_of("RunStuck")] == [100]


async def test_more_runs_than_one_pass_sweeps(runs: Runs) -> None:
    """If more runs are due than one pass takes, the next pass follows at once."""
    for number in range(51):
        runs.send("StartRun", runId=f"{number}", jobs=[{"name": "a"}])
    await runs.consume()
    now = runs.clock.advance(milliseconds=SWEEP_MS)
    done, at = await runs.sweep.tick(now)
    assert (done, at is not None and at <= now) == (50, True)


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
    await runs.request("StartRun", runId="fine", jobs=[STALE])
    await runs.request("StartRun", runId="damaged", jobs=[STALE, {"name": "b", "staleAfterSeconds": 3600}])
    await runs.sql("UPDATE runs SET open_jobs = 0 WHERE run_id = 'damaged'")
    runs.clock.advance(minutes=2)
    for tenant, name in (("acme", "other"), ("globex", "damaged")):
        await runs.request("StartRun", tenant=tenant, runId=name, jobs=[{**STALE, "staleAfterSeconds": 500}])
    before = [row["stale_at"] for row in await runs.rows("run_jobs") if row["stale_at"] > runs.clock.now()]
    runs.clock.advance(seconds=1)
    await sweep(runs)
    assert (await runs.statuses("fine"))["a"] == "timed_out_stale"
    assert set((await runs.statuses("damaged")).values()) == {"pending"}
    postponed = runs.clock.now() + SWEEP_MS
    left = [row["stale_at"] for row in await runs.rows("run_jobs") if row["stale_at"]]
    assert sorted(left) == sorted([*before, postponed])
    assert [row["run_id"] for row in await runs.rows("runs") if row["sweep_at"] == postponed] == ["damaged"]
    assert await next_at(runs.sweep, runs.clock.now()) == min(before)


async def test_off_and_on(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """While runs are disabled, no job becomes ready. When they are enabled again, the sweep evaluates them."""
    off = Runs(store, memory_broker, clock, enabled=False)
    await off.start({"a": [], "b": ["a"], "c": ["b"]}, "g")
    await off.resolve("g", {"d": ["a"]})
    await off.report("failed", "b")
    assert await off.ready() == []
    on = Runs(store, memory_broker, clock)
    await on.report("running", "a")
    assert len(on.command_wakes) == 1  # of the sweep, which is due
    await sweep(on)
    assert (await on.ready(), await on.skipped()) == (["a"], {"c": "upstream_failed: b"})
    await off.report("success", "a")
    await on.report("success", "d")
    await sweep(on)
    await on.report("success", "d")
    assert (await on.ready(), await on.completed(), await on.events_of("RunStuck")) == (["a", "d"], ["failed"], [])


async def test_cancel_while_off(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """If a run is cancelled while runs are disabled, its `always` jobs become ready when they are enabled again."""
    on, off = Runs(store, memory_broker, clock), Runs(store, memory_broker, clock, enabled=False)
    await on.start({"a": [], "clean": ["a"]}, always=["clean"])
    await off.request("CancelRun")
    assert await off.ready() == ["a"]
    await sweep(on)
    await on.report("success", "clean")
    assert (await on.ready(), await on.completed(), await on.events_of("RunStuck")) == (
        ["a", "clean"],
        ["cancelled"],
        [],
    )


async def test_report_in_the_stream_prevents_staleness(runs: Runs) -> None:
    """A job is not stale while its report waits in the stream, however long the service was down."""
    await runs.request("StartRun", jobs=[STALE, {**STALE, "name": "long"}, *jobs({"b": ["a"]})])
    runs.send("ReportJobStatus", jobName="a", status="success")
    runs.send("ReportJobStatus", jobName="long", status="running")
    runs.clock.advance(minutes=5)
    restarted = Runs(runs.database, runs.broker, runs.clock)
    before = await restarted.sweep.tick(runs.clock.now())
    await runs.consume()
    after = await restarted.sweep.tick(runs.clock.now())
    assert (before.done, before.next_at) == (0, runs.clock.now() - 1 + 1000)
    assert (after.done, await runs.statuses()) == (0, {"a": "success", "b": "pending", "long": "running"})
    assert await runs.ready() == ["a", "long", "b"]


async def test_no_job_is_stale_while_its_report_cannot_be_read(runs: Runs) -> None:
    """No job becomes stale while the broker is down, or while commands of its tenant wait to be applied.

    If a report comes meanwhile, this job no longer delays those of other tenants.
    """
    await runs.request("StartRun", jobs=[STALE])
    await runs.request("StartRun", tenant="globex", jobs=[{**STALE, "staleAfterSeconds": 600}])
    runs.clock.advance(minutes=5)
    runs.broker.stored.away = "away"
    await sweep(runs)
    statuses = [await runs.statuses()]
    runs.broker.stored.away = None
    columns = "epoch, first_sequence, number_of_commands, size, available_at, attempt"
    await runs.sql(
        f"INSERT INTO waiting_commands (tenant_id, {columns}, commands) VALUES ('acme', 1, 9, 1, 1, 0, 0, '')"
    )
    await sweep(runs)
    statuses.append(await runs.statuses())
    runs.clock.advance(minutes=6)
    await runs.sql(f"UPDATE run_jobs SET stale_at = {runs.clock.now() + 60_000} WHERE tenant_id = 'acme'")
    await sweep(runs)
    assert [row["status"] for row in await runs.rows("run_jobs")] == ["pending", "timed_out_stale"]
    runs.clock.advance(minutes=1)
    await runs.sql("DELETE FROM waiting_commands")
    await sweep(runs)
    assert (statuses, await runs.statuses()) == ([{"a": "pending"}] * 2, {"a": "timed_out_stale"})


async def test_open_runs_are_swept_less_and_less_often(runs: Runs) -> None:
    """A run that stays open for 30 days is swept a few dozen times."""
    await runs.start({"a": []})
    end = runs.clock.now() + 30 * 24 * 3_600_000
    sweeps = 0
    while (at := await next_at(runs.sweep, runs.clock.now())) is not None and at < end:
        runs.clock.set(at)
        sweeps += (await runs.sweep.tick(at)).done
    assert 10 < sweeps < 60


async def test_gauges(runs: Runs) -> None:
    """The gauges count the open runs, and their jobs that are not ready."""
    await runs.start({"a": [], "b": ["a"], "c": [], "d": ["c"]})
    await runs.start({}, runId="ended")
    await runs.report("failed", "a")
    await RowCounts(runs.database, runs.metrics, counted=SLICE.counted, overdue={}).tick(runs.clock.now())
    assert runs.metrics.counts.items() >= {("runs", "running"): 1, ("run_jobs", "waiting"): 1}.items()


async def test_retention(runs: Runs) -> None:
    """Retention deletes old ended runs in bounded parts, and leaves other runs complete. Queries answer meanwhile."""
    await runs.start({**{f"{number}": [] for number in range(20)}, "b": ["1"], "c": [{"group": "g"}]}, "g")
    await runs.request("CancelRun")
    for name in ("never started", "kept"):
        await runs.report("success", "unknown", runId=name)
    await runs.start({"a": [], "b": ["a"]}, runId="open")
    await runs.start({"0": ["1"], "1": []}, tenant="globex")  # the same id as the first one
    runs.clock.advance(days=8)
    old = runs.clock.now()
    await runs.report("success", "another", runId="kept")
    deleted, statuses = [], set()
    while count := await in_transaction(runs.database, lambda tx: delete_settled(tx, old, 6)):
        deleted.append(count)
        statuses.add((await runs.ask("get-run", runId="run-1")).get("status"))
    tables = ("runs", "run_jobs", "run_edges", "run_groups", "run_group_needs", "run_pending_commands")
    left = {table: len(await runs.rows(table)) for table in tables}
    assert list(left.values()) == [3, 4, 4, 0, 0, 2]
    assert (len(deleted) > 3, max(deleted) <= 3 * 6, statuses) == (True, True, {"cancelled", None})
    await runs.start({"0": []})
    assert (await runs.ready()).count("0") == 2  # the event of the new run has another id
