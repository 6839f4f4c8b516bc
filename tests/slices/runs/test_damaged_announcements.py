"""Announcements of damaged jobs."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.in_process import exhaust
from tests.harness.runs import Runs, jobs
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.database import Database
from timer_service.core.service.clock_repair import ClockRepair
from timer_service.runs import announcements, events

NAMES = [f"job-{number}" for number in range(9)]


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Return the runs slice on each store in turn. A transaction adds the event of one job."""
    monkeypatch.setattr(events, "_MOST_BYTES", 1)
    return Runs(store, memory_broker, clock)


async def test_damaged_job(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged payload delays no other job of the tenant. Its job is announced when it is repaired."""
    await runs.request("StartRun", jobs=jobs(dict.fromkeys(NAMES, ()), payload="x"))
    monkeypatch.undo()
    await runs.sql("""UPDATE run_jobs SET payload = '"x' WHERE job_name IN ('job-2', 'job-7')""")
    await runs.announcer.tick(runs.clock.now())
    assert sorted(await runs.ready()) == [name for name in NAMES if name not in ("job-2", "job-7")]
    waiting = {row["job_name"] for row in await runs.rows("run_announcements") if row["last_error"] is not None}
    assert waiting == {"job-2", "job-7"}
    await runs.sql("UPDATE run_jobs SET payload = '1' WHERE job_name IN ('job-2', 'job-7')")
    runs.clock.advance(minutes=2)
    assert sorted(await runs.ready()) == NAMES
    assert await runs.rows("run_announcements") == []


async def test_damaged_outputs_that_many_jobs_need(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged row that many jobs need delays no other run of the tenant. Its jobs are announced later."""
    needs = [f"need-{number:03}" for number in range(100)]
    await runs.start({"seed": [], **{name: ["seed"] for name in needs}})
    await runs.report("success", "seed", outputs={"log": "x"})
    runs.clock.advance(seconds=1)
    for name in ("after", "zzz"):
        await runs.request("StartRun", runId=name, jobs=jobs({f"{name}-{number}": [] for number in range(3)}))
    monkeypatch.undo()
    await runs.sql("""UPDATE run_jobs SET outputs = '{"log' WHERE job_name = 'seed'""")
    await exhaust(runs.announcer, runs.clock.now())
    others = {f"{name}-{number}" for name in ("after", "zzz") for number in range(3)}
    assert others < set(await runs.ready())
    assert len(await runs.rows("run_announcements")) == 99
    await runs.sql("UPDATE run_jobs SET outputs = '{}' WHERE job_name = 'seed'")
    await exhaust(runs.announcer, runs.clock.advance(seconds=60))
    assert sorted(await runs.ready()) == sorted([*others, *needs, "seed"])
    assert await runs.rows("run_announcements") == []


async def test_announcements_of_a_clock_that_was_ahead(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the clock was set back, the announcements are corrected, and do not wait."""
    runs.clock.advance(hours=1)
    await runs.request("StartRun", jobs=jobs(dict.fromkeys(NAMES, ()), payload="x"))
    monkeypatch.undo()
    now = runs.clock.advance(hours=-1)
    assert (await runs.announcer.tick(now)).done == 0
    assert (await ClockRepair(runs.database, runs.clock, [announcements.TIMED]).tick(now)).done == len(NAMES) - 1
    await exhaust(runs.announcer, now)
    assert len(await runs.rows("outbox")) == len(NAMES)


async def test_name_that_is_not_utf8(sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """An announcement with a damaged name cannot be deleted. It does not make passes follow each other at once."""
    runs = Runs(sqlite, memory_broker, clock)
    await runs.start({"first": []})
    await runs.sql(
        "INSERT INTO run_announcements (tenant_id, available_at, run_id, job_name, deferred_at, outputs_share)"
        " VALUES ('acme', 1, 'run-1', CAST(x'6aff' AS TEXT), 1, 1)"
    )
    assert await runs.announcer.tick(clock.now()) == (0, None)
