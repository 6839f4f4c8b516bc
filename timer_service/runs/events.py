"""Adds the events of runs to the outbox. The events are the difference of two states of a run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic_core import from_json

from timer_service.core.events import outbox
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.message import Event
from timer_service.runs import announcements, job_events, store
from timer_service.runs.announcements import States
from timer_service.runs.draft import RunState
from timer_service.runs.messages import JobStatus, RunCompleted, RunRejected, RunStatus, RunStuck
from timer_service.runs.rules import Run, RunKey
from timer_service.runs.run_event import run_event

_SQL = load_sql("timer_service.runs", "events.sql")
_MAX_STUCK_JOBS = 100


async def add(
    tx: Transaction, before: States, after: States, now: int, stuck: Mapping[RunKey, Sequence[str]] | None = None
) -> int:
    """Add the events of the changes to the outbox. Return how many the changes have.

    `stuck` names the stuck jobs of each run. If the events of jobs have more than about 512 KiB, the `announcer` adds
    the others later.
    """
    of_jobs = announcements.find(before, after)
    added = await job_events.add(tx, of_jobs, now)
    await announcements.defer(tx, of_jobs[added:], now)
    completed = [key for key, state in after.items() if _has_completed(before[key].run, state.run)]
    counts = await _counts(tx, completed)
    of_runs = [
        event
        for key, state in after.items()
        for event in _events_of_run(before[key], state, counts.get(key), (stuck or {}).get(key, ()), now)
    ]
    await outbox.add(tx, of_runs, now)
    return len(of_jobs) + len(of_runs)


def _has_completed(before: Run, after: Run) -> bool:
    return after.ended and after.status is not RunStatus.REJECTED and not before.ended


def _events_of_run(
    before: RunState, after: RunState, counts: Mapping[JobStatus, int] | None, stuck: Sequence[str], now: int
) -> Iterator[Event]:
    run = after.run
    if stuck:
        yield run_event(RunStuck.type, run, str(now), {"jobs": stuck[:_MAX_STUCK_JOBS]}, at=now)
    if run.status is RunStatus.REJECTED and not before.run.ended:
        flaw = {"code": run.flaw_code, "path": from_json(run.flaw_path or "[]")}
        yield run_event(RunRejected.type, run, "", flaw, at=now)
    if counts is not None:
        yield run_event(RunCompleted.type, run, "", {"status": run.status, "counts": counts}, at=now)


async def _counts(tx: Transaction, keys: Iterable[RunKey]) -> dict[RunKey, dict[JobStatus, int]]:
    """Return the number of jobs by status of each run."""
    counts: dict[RunKey, dict[JobStatus, int]] = {key: {} for key in keys}
    for row in await tx.fetch_each(_SQL["counts"], [key._asdict() for key in counts]):
        counts[store.run_key(row)][JobStatus(row["status"])] = row["count"]
    return counts
