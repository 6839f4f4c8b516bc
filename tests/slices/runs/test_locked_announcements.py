"""A locked event of one tenant does not hold up the announcements of the others."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.locks import LockedPostgres
from tests.harness.runs import Runs, jobs
from timer_service.adapters.memory import MemoryBroker
from timer_service.runs import events, loader
from timer_service.runs.messages import JobReady
from timer_service.runs.rules import RunKey

TENANTS = ("acme", "globex")


async def test_an_event_that_another_session_has_locked(
    locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the jobs of a tenant cannot be announced because of a lock, those of others are. No pass fails."""
    monkeypatch.setattr(events, "_MOST_BYTES", 1)
    runs = Runs(locks.database, memory_broker, clock)
    for tenant in TENANTS:
        runs.send("StartRun", tenant=tenant, jobs=jobs({"a": [], "b": []}))
        await runs.consume()
    key = RunKey("acme", "run-1")
    run = (await loader.find_runs(locks.database.reader, [key])).get(key)
    assert run is not None
    event = events.run_event(JobReady.type, run, "b", {}, at=0).id
    columns = "tenant_id, event_id, message, body, added_at, ordinal, state, available_at, attempt"
    lock = f"INSERT INTO outbox ({columns}) VALUES ('acme', '{event}', 'job-ready', '{{}}', 0, 0, 'Waiting', 0, 0)"
    async with locks.locked(lock):
        ends = [await runs.announcer.tick(clock.now()) for _ in range(2)]
        assert [row["tenant_id"] for row in await runs.rows("run_announcements")] == ["acme"]
    assert [each.done for each in ends] == [2, 0]
    clock.advance(seconds=1)
    assert (await runs.announcer.tick(clock.now())).done == 1
