"""Rows of every kind for the operations page, with ids that would do harm if they were not escaped."""

import json
import random
from collections.abc import Mapping, Sequence

from tests.harness.builders import in_state, scheduled
from tests.harness.clock import ManualClock, iso
from tests.harness.memory_broker import MemoryBroker
from tests.harness.runs import Runs, run_after
from tests.harness.schedules import Schedules
from tests.harness.signals import Signals
from tests.harness.timers import put_timers
from tests.harness.workflows import Workflows, complete, done, fail, failed, seen, sleep, wait_for
from timer_service.core.ports.database import Database
from timer_service.core.values.message import Position
from timer_service.timers.messages import State

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a\u202ecod.exe",
    "{{ 7*7 }}",
    "../../x?y=1&z=#w",
    "' OR 1=1 --",
    "-rf",
    "日本語のタイマー",
    "x" * 200,
    "שלום (7) עולם",
    "Zoe" + "\u0308\u0301\u0302\u0303\u0304\u0305" * 4 + "/1",
    "👩‍👩‍👧‍👧" * 12,
)
BURIED = """
INSERT INTO outbox (tenant_id, event_id, message, body, added_at, ordinal, state, attempt, last_error)
VALUES ('acme', :id, 'run-completed', :body, :now, 0, 'Buried', 20, 'stream TIMER_EVT: maximum bytes exceeded')
"""
PARKED = """
INSERT INTO parked_events (
    tenant_id, consumer, event_id, event_type, about, reason, attempts, parked_at, size, body
)
VALUES ('acme', 'orders', :id, 'DueTimeReached', :about, :reason, 5, :now, 2, '{}')
"""
FAILED_FIRING = """
INSERT INTO work_signal_firings (tenant_id, firing_id, signal_id, defined_epoch, defined_sequence, dedupe_key, status,
    due_at, created_at, position_epoch, position_sequence, settled_at, attempt, last_error)
VALUES ('acme', 'firing-1', 'signal-1', 1, 1, '1', 'failed', :now, :now, 1, 1, :now, 5, 'no room')
"""
WORKER = """
INSERT INTO workflow_workers (tenant_id, worker_id, queue, types, slots, first_seen_at, seen_at)
VALUES ('acme', :id, :queue, :types, 4, :seen, :seen)
"""
FAILED_BACKFILL = """
UPDATE schedule_backfills SET last_error = :error, available_at = :at, skipped_count = 7
WHERE position_sequence = (SELECT MAX(position_sequence) FROM schedule_backfills)
"""


def graph(jobs: int) -> Mapping[str, Sequence[object]]:
    """Return the graph of a build: some steps, each with many jobs, and edges that pass several steps."""
    chance = random.Random(7)
    needs: dict[str, Sequence[object]] = {"checkout": []}
    previous = ["checkout"]
    for step in ("generate", "compile", "unit-test", "lint", "package", "integration", "e2e", "publish"):
        now = [f"{step}-{number:02d}" for number in range(max(jobs - 10, 8) // 8)]
        for name in now:
            upstream: set[str] = set(chance.sample(previous, min(len(previous), chance.randint(1, 3))))
            if chance.random() < 0.1:
                upstream.add("checkout")
            needs[name] = sorted(upstream)
        previous = now
    needs["report"] = [run_after(name) for name in previous[:12]]
    needs["deploy-to-production-in-every-region"] = previous
    needs["smoke-test"] = ["deploy-to-production-in-every-region"]
    needs["clean-up"] = [run_after("smoke-test")]
    needs[HOSTILE[0]] = ["checkout"]
    return needs


async def fill(database: Database, now: int, *, jobs: int = 40) -> None:
    """Add rows of every kind to an empty database."""
    broker = MemoryBroker()
    await fill_timers(database, now)
    await _fill_signals(database, broker, now)
    await _fill_runs(database, broker, now, jobs)
    await _fill_schedules(database, broker, now)
    await _fill_workflows(database, broker, now)
    async with database.transaction() as tx:
        for number, name in enumerate(HOSTILE[:3]):
            payload = f'{{"tenantId": "acme", "runId": "run-{number}", "status": "failed"}}'
            body = f'{{"id": "{number}", "type": "RunCompleted", "tenantId": "acme", "payload": {payload}}}'
            await tx.execute(BURIED, {"id": name, "body": body, "now": now})
            about = json.dumps({"serviceCallId": name})
            await tx.execute(PARKED, {"id": name, "about": about, "reason": f"cannot handle {name}", "now": now})
        await tx.execute(FAILED_FIRING, {"now": now})


async def fill_timers(database: Database, now: int) -> None:
    """Add timers with hostile ids, some of them given up."""
    timers = []
    for number, name in enumerate(HOSTILE):
        timer = scheduled(name, now + 60_000 * number, Position(1, number + 1), now=now - 5000, correlation_id=name)
        error = f"no response from stream TIMER_EVT for {name}"
        timers.append(timer if number % 2 else in_state(State.FAILED, timer)._replace(last_error=error))
    async with database.transaction() as tx:
        await put_timers(tx, timers)


async def _fill_signals(database: Database, broker: MemoryBroker, now: int) -> None:
    signals = Signals(database, broker, ManualClock(now - 60_000))
    for number, name in enumerate(HOSTILE):
        await signals.create(name, f"ticket-{number % 3}", note=name)
    await signals.create("invalid", triggerSpec={"kind": "work_item.status.transition", "to": 7})
    await signals.remind(iso(now + 3_600_000), "tomorrow")
    await signals.transition("blocked", "ticket-0")
    await signals.run()
    await signals.about("Pause", HOSTILE[1])


async def _fill_runs(database: Database, broker: MemoryBroker, now: int, jobs: int) -> None:
    clock = ManualClock(now - 600_000)
    runs = Runs(database, broker, clock)
    for name in HOSTILE:
        await runs.start({name: []}, runId=name)
    await runs.request("CancelRun", runId=HOSTILE[1])
    await runs.start({"a": ["b"], "b": ["a"]}, runId="circle")
    await runs.start(graph(jobs), "shards", runId="build")
    chance = random.Random(3)
    for turn in range(6):
        clock.advance(minutes=1)
        found = await runs.ask("get-run", runId="build", limit=1000)
        ready = [job["name"] for job in found["jobs"] if "readyAt" in job and job["status"] == "pending"]
        for name in ready:
            ends = chance.random() < (0.95 if turn < 4 else 0.5)
            status = "running" if not ends else "failed" if chance.random() < 0.02 else "success"
            runs.send("ReportJobStatus", runId="build", jobName=name, status=status)
        await runs.consume()


async def _fill_schedules(database: Database, broker: MemoryBroker, now: int) -> None:
    clock = ManualClock(now - 3_600_000)
    schedules = Schedules(database, broker, clock)
    for name in HOSTILE:
        await schedules.put(name, every="PT15M", data={"report": name})
    fortnight = {"every": 2, "unit": "weeks", "anchor": "2026-11-20T09:00"}
    await schedules.put("pay", calendar=fortnight, zone="Europe/Berlin")
    await schedules.put("weekdays", cron="0 9 * * MON-FRI", zone="Europe/Berlin", catchUp={"policy": "last"})
    await schedules.put("short", every="PT1M", endAt=iso(now - 3_000_000))
    await schedules.put("order", cron="*/5 * * * *", zone="UTC", start={"type": "order", "input": {"a": 1}})
    await schedules.about("Pause", HOSTILE[1])
    await schedules.advance(minutes=59)
    for days in (100, 90):
        await schedules.backfill(now - days * 86_400_000, now - 86_400_000, HOSTILE[0], limit=2000)
        await schedules.fire_backfills(most=1)
    async with database.transaction() as tx:
        await tx.execute("UPDATE schedules SET last_error = 'there is no zone X' WHERE schedule_id = '-rf'")
        await tx.execute(FAILED_BACKFILL, {"error": f"there is no zone {HOSTILE[0]}", "at": now + 42_000})


async def _fill_workflows(database: Database, broker: MemoryBroker, now: int) -> None:
    clock = ManualClock(now - 300_000)
    workflows = Workflows(database, broker, clock)
    task = await workflows.begin("order-1", input={"order": 1, "note": HOSTILE[0]})
    await workflows.report(task, steps=[done("charge the card", {"charge": "ch_1"})])
    waits = [sleep("cool down", 86_400_000), wait_for("approval", 172_800_000)]
    await workflows.report(task, {"action": "park"}, seen=seen("charge the card"), waits=waits)
    task = await workflows.begin("order-2")
    await workflows.report(task, steps=[failed("reserve", retryable=False)])
    await workflows.report(task, fail("the warehouse <b> is closed", "reserve"))
    task = await workflows.begin("order-3")
    await workflows.report(task, complete({"shipped": True}))
    for name in ("rare", "rare and ended"):
        await workflows.start(name, type="rare")
    await workflows.about("Cancel", "rare and ended", reason="a mistake")
    for name in ("turn-1", "turn-2"):
        await workflows.start(name, type="rare", concurrencyKey="turn", whenBusy="queue")
    for name in HOSTILE:
        await workflows.start(name)
    await workflows.about("Cancel", HOSTILE[1], reason="no longer needed")
    async with database.transaction() as tx:
        for number, name in enumerate(("worker-1", *HOSTILE)):
            types = json.dumps(["refund", name[:100]] if number else ["order"])
            at = now - 40_000 * number
            await tx.execute(
                WORKER, {"id": name, "queue": name[:100] if number else "default", "types": types, "seen": at}
            )
