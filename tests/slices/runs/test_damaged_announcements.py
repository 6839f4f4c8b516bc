"""Announcements of damaged jobs."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.runs import Runs, jobs
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.database import Database
from timer_service.runs import job_events

NAMES = [f"job-{number}" for number in range(9)]


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Return the runs slice on each store in turn. A transaction adds the event of one job."""
    monkeypatch.setattr(job_events, "_MOST_BYTES", 1)
    return Runs(store, memory_broker, clock)


async def test_damaged_job(runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged payload delays no other job of the tenant for long. Its job is announced when it is repaired."""
    await runs.request("StartRun", jobs=jobs(dict.fromkeys(NAMES, ()), payload="x"))
    monkeypatch.undo()
    await runs.sql("""UPDATE run_jobs SET payload = '"x' WHERE job_name IN ('job-2', 'job-7')""")
    for _ in range(9):
        await runs.announcer.tick(runs.clock.advance(seconds=2))
    assert sorted(await runs.ready()) == [name for name in NAMES if name not in ("job-2", "job-7")]
    assert {job for job in ("job-2", "job-7", "job-1") if f"run run-1, job {job}" in caplog.text} == {"job-2", "job-7"}
    await runs.sql("UPDATE run_jobs SET payload = '1' WHERE job_name IN ('job-2', 'job-7')")
    runs.clock.advance(minutes=2)
    assert sorted(await runs.ready()) == NAMES
    assert await runs.rows("run_announcements") == []
