"""Announcements: which jobs became ready or were skipped. Each of them is a JobReady or a JobSkipped.

A command may make 10,000 jobs ready, whose events may have many megabytes. Its transaction writes the first of them to
the outbox, and one row for each of the others. `announcer` writes these events later, portion by portion.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from timer_service.core.due.due_rows import DueTable
from timer_service.core.due.row_counts import CountedRows
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.service.clock_repair import SLACK_MS, TimedRows
from timer_service.core.values.delays import LONGEST
from timer_service.runs import loader, store
from timer_service.runs.draft import RunState
from timer_service.runs.rules import Job, Run, RunKey
from timer_service.runs.store import JobKey

OUTPUTS_BYTES = 512 * 1024
"""The limit for all outputs in one JobReady, including the names of their jobs. The whole event fits into 1 MiB."""
RUN_OUTPUTS_BYTES = 16 * 1024 * 1024
"""The limit for the outputs in all JobReady of one run that a transaction causes. Each has an equal share."""

_SQL = load_sql("timer_service.runs", "announcements.sql")

_KEY = ("tenant_id", "available_at", "run_id", "job_name")
ANNOUNCEMENTS = DueTable(
    "run_announcements", _KEY, order=_KEY[1:], columns=(*_KEY, "deferred_at", "attempt", "caused_by", "outputs_share")
)

COUNTED = CountedRows("run_announcements", "waiting", "TRUE")
"""The announcements that wait."""

TIMED = TimedRows(
    table="run_announcements",
    instant="available_at",
    is_wrong=f"available_at - {LONGEST // timedelta(milliseconds=1) + SLACK_MS} > :now",
    repair="available_at = :now",
)
"""The announcements that wait."""

States = Mapping[RunKey, RunState]


class AnnouncementKey(NamedTuple):
    """The key of a row."""

    tenant_id: str
    available_at: int
    run_id: str
    job_name: str

    @classmethod
    def of(cls, row: Row) -> "AnnouncementKey":
        """Return the key of a row."""
        return cls(*(row[name] for name in cls._fields))

    @property
    def job(self) -> JobKey:
        """The key of the job."""
        return RunKey(self.tenant_id, self.run_id), self.job_name


class Announcement(NamedTuple):
    """A job that became ready or was skipped, of which the outbox has no event yet."""

    run: Run
    job: Job
    outputs_share: int = OUTPUTS_BYTES
    """How many bytes of outputs its JobReady may have at most."""

    @property
    def key(self) -> JobKey:
        """The key of the job."""
        return self.run.key, self.job.name

    @property
    def is_ready(self) -> bool:
        """Whether the job is ready. If not, it was skipped."""
        return not self.job.ended


def find(before: States, after: States) -> list[Announcement]:
    """Return what the difference of two states of runs announces: first the ready jobs, then the skipped ones."""
    ready: list[Announcement] = []
    skipped: list[Announcement] = []
    for key, state in after.items():
        ready_jobs = list(_ready_jobs(before[key], state))
        share = min(OUTPUTS_BYTES, RUN_OUTPUTS_BYTES // max(len(ready_jobs), 1))
        ready += [Announcement(state.run, job, share) for job in ready_jobs]
        skipped += [Announcement(state.run, job) for job in _skipped(before[key], state)]
    return ready + skipped


def _ready_jobs(before: RunState, after: RunState) -> Iterator[Job]:
    """Yield the jobs that became ready, for the first time or in a new attempt, and have not ended since."""
    for name, job in after.jobs.items():
        old = before.jobs.get(name)
        was_ready = old is not None and old.ready_at is not None and old.attempt == job.attempt
        if job is not old and job.ready_at is not None and not job.ended and not was_ready:
            yield job


def _skipped(before: RunState, after: RunState) -> Iterator[Job]:
    """Yield the jobs that the service skipped."""
    for name, job in after.jobs.items():
        if job is not before.jobs.get(name) and job.is_skipped:
            yield job


async def defer(tx: Transaction, announcements: Sequence[Announcement], now: int) -> None:
    """Write announcements, so that their events can be added later."""
    rows = sorted(
        (run.key.tenant_id, now, run.key.run_id, job.name, now, job.attempt, job.caused_by, share)
        for run, job, share in announcements
    )
    await tx.insert(_SQL["defer"], rows)


async def read(reader: Reader, rows: Sequence[Row]) -> list[Announcement | None]:
    """Return the announcement of each row; None if the job has ended or run again since, or its run was deleted.

    A later run with the id of a deleted one has jobs of its own, which the rows do not announce.
    """
    runs = await loader.find_runs(reader, {store.run_key(row) for row in rows})
    jobs = await loader.find_jobs(reader, {store.job_key(row) for row in rows})
    return [_announcement(runs.get(store.run_key(row)), jobs.get(store.job_key(row)), row) for row in rows]


def _announcement(run: Run | None, job: Job | None, row: Row) -> Announcement | None:
    """Return the announcement of a row, given its run and its job; None as `read` says."""
    if run is None or job is None:
        return None
    if (job.ended and not job.is_skipped) or job.attempt != row["attempt"]:
        return None
    changed_at = job.settled_at if job.ended else job.ready_at
    if changed_at is None or changed_at > row["deferred_at"]:  # the job is one of a later run
        return None
    return Announcement(run, job._replace(caused_by=row["caused_by"]), row["outputs_share"])


async def delete(tx: Transaction, rows: Sequence[Row]) -> int:
    """Delete rows that were locked. Return how many."""
    return await tx.executemany(_SQL["delete"], [AnnouncementKey.of(row)._asdict() for row in rows])
