"""Adds the events of runs to the outbox. The events are the difference of two states of a run."""

import hashlib
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from pydantic_core import from_json

from timer_service.core import outbox
from timer_service.core.database import Transaction
from timer_service.core.instant import format_instant
from timer_service.core.message import Event
from timer_service.core.sql import load_sql
from timer_service.core.stored_json import RawJson, read_stored, write_object
from timer_service.runs import store
from timer_service.runs.draft import RunState
from timer_service.runs.edges import read_needs
from timer_service.runs.messages import JobReady, JobSkipped, JobStatus, RunCompleted, RunRejected, RunStatus, RunStuck
from timer_service.runs.rules import Job, Run, RunKey
from timer_service.runs.store import JobKey

_SQL = load_sql("timer_service.runs", "events.sql")
OUTPUTS_BYTES = 512 * 1024
"""The limit for all outputs in one JobReady, including the names of their jobs. The whole event fits into 1 MiB."""
_RUN_OUTPUTS_BYTES = 16 * 1024 * 1024
"""The limit for the outputs in all JobReady of one run that a transaction adds. Each of them has an equal share.

With 512 KiB in each, one report that makes 10,000 jobs ready would write 5 GB.
"""
_PART_BYTES = 4 * 1024 * 1024
"""The limit for the JobReady events that are in memory at the same time."""
_JOBS_AT_ONCE = 200
"""Of how many ready jobs the needs are read at a time. Together they have at most 100,000 of each run."""
_JOB_READY_OVERHEAD = 2000
"""The assumed size of a JobReady without payload and outputs."""
_MAX_STUCK_JOBS = 100

_NOTHING: Mapping[str, RawJson | None] = {}

States = Mapping[RunKey, RunState]


async def add(
    tx: Transaction, before: States, after: States, now: int, stuck: Mapping[RunKey, Sequence[str]] | None = None
) -> int:
    """Add the events of the changes to the outbox and return their number. `stuck` names the stuck jobs of each run."""
    completed = [key for key, state in after.items() if _has_completed(before[key].run, state.run)]
    counts = await _counts(tx, completed)
    ready = [(state.run, job) for key, state in after.items() for job in ready_jobs(before[key], state)]
    shares = {key: _RUN_OUTPUTS_BYTES // count for key, count in Counter(run.key for run, _ in ready).items()}
    for start in range(0, len(ready), _JOBS_AT_ONCE):
        some = ready[start : start + _JOBS_AT_ONCE]
        may_have_outputs = [store.job_parameters((run.key, job.name)) for run, job in some if run.has_outputs]
        upstreams = await _read_upstreams(tx, may_have_outputs, shares)
        for part in _parts(some, upstreams):
            await outbox.add(tx, await _ready_events(tx, part, upstreams, now), now)
    others = [
        event
        for key, state in after.items()
        for event in _other_events(before[key], state, counts.get(key), (stuck or {}).get(key, ()), now)
    ]
    await outbox.add(tx, others, now)
    return len(ready) + len(others)


def _has_completed(before: Run, after: Run) -> bool:
    return after.ended and after.status is not RunStatus.REJECTED and not before.ended


def ready_jobs(before: RunState, after: RunState) -> Iterator[Job]:
    """Yield the jobs that became ready and have not ended since."""
    for name, job in after.jobs.items():
        old = before.jobs.get(name)
        if job is not old and job.ready_at is not None and not job.ended and (old is None or old.ready_at is None):
            yield job


def _other_events(
    before: RunState, after: RunState, counts: Mapping[JobStatus, int] | None, stuck: Sequence[str], now: int
) -> Iterator[Event]:
    run = after.run
    for name, job in after.jobs.items():
        if job.status is JobStatus.SKIPPED and job.reason is not None and job is not before.jobs.get(name):
            yield _job_skipped(run, job, now)
    if stuck:
        yield _event(RunStuck.type, run, str(now), {"jobs": stuck[:_MAX_STUCK_JOBS]}, at=now)
    if run.status is RunStatus.REJECTED and not before.run.ended:
        flaw = {"code": run.flaw_code, "path": from_json(run.flaw_path or "[]")}
        yield _event(RunRejected.type, run, "", flaw, at=now)
    if counts is not None:
        yield _event(RunCompleted.type, run, "", {"status": run.status, "counts": counts}, at=now)


async def _counts(tx: Transaction, keys: Iterable[RunKey]) -> dict[RunKey, dict[JobStatus, int]]:
    """Return the number of jobs by status of each run."""
    counts: dict[RunKey, dict[JobStatus, int]] = {key: {} for key in keys}
    for row in await tx.fetch_each(_SQL["counts"], [key._asdict() for key in counts]):
        counts[store.run_key(row)][JobStatus(row["status"])] = row["count"]
    return counts


class _Upstreams(NamedTuple):
    """The upstream jobs of one job that have outputs."""

    shown: Sequence[str] = ()
    """The upstream jobs whose outputs fit into the JobReady."""
    size: int = 0
    """The bytes of these outputs."""
    omitted: int = 0


_NO_UPSTREAMS = _Upstreams()


def _parts(jobs: Iterable[tuple[Run, Job]], upstreams: Mapping[JobKey, _Upstreams]) -> Iterator[list[tuple[Run, Job]]]:
    """Split ready jobs so that the events of each part fit into `_PART_BYTES`."""
    part: list[tuple[Run, Job]] = []
    size = 0
    for run, job in jobs:
        part.append((run, job))
        size += job.payload_bytes + _JOB_READY_OVERHEAD + upstreams.get((run.key, job.name), _NO_UPSTREAMS).size
        if size >= _PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


async def _ready_events(
    tx: Transaction, jobs: Sequence[tuple[Run, Job]], upstreams: Mapping[JobKey, _Upstreams], now: int
) -> list[Event]:
    with_payload = [store.job_parameters((run.key, job.name)) for run, job in jobs if job.payload_bytes]
    payloads = await _read_texts(tx, "payload", with_payload)
    needs = {(run.key, job.name): upstreams.get((run.key, job.name), _NO_UPSTREAMS) for run, job in jobs}
    shown = {(key, name) for (key, _), each in needs.items() for name in each.shown}
    outputs = await _read_texts(tx, "outputs", [store.job_parameters(each) for each in shown])
    events = []
    for run, job in jobs:
        key = run.key, job.name
        needed = needs[key]
        fields: dict[str, Any] = {"jobName": job.name}
        if job.group is not None:
            fields["groupName"] = job.group
        fields["readyAt"] = format_instant(now if job.ready_at is None else job.ready_at)
        if needed.omitted:
            fields["outputsOmitted"] = needed.omitted
        raw = {
            "payload": read_stored(payloads.get(key)),
            "upstreamJobOutputs": write_object(
                {}, {each: read_stored(outputs[run.key, each]) for each in needed.shown}
            ),
        }
        events.append(_event(JobReady.type, run, job.name, fields, raw, cause=job.ready_by, at=now))
    return events


async def _read_texts(tx: Transaction, column: str, jobs: Sequence[Mapping[str, str]]) -> Mapping[JobKey, str]:
    """Return the payloads or the outputs of jobs as JSON. `column` is `payload` or `outputs`."""
    rows = await tx.fetch_each(_SQL[column], jobs)
    return {(store.run_key(row), row["job_name"]): row[column] for row in rows}


async def _read_upstreams(
    tx: Transaction, jobs: Sequence[Mapping[str, str]], shares: Mapping[RunKey, int]
) -> Mapping[JobKey, _Upstreams]:
    """Return, for each job, the upstream jobs whose outputs fit into its JobReady. `shares` are in bytes."""
    needs = {
        (store.run_key(row), row["job_name"]): [name for name, _ in read_needs(row["needs"])]
        for row in await tx.fetch_each(_SQL["needs"], jobs)
    }
    upstream = {(key, name) for (key, _), names in needs.items() for name in names}
    rows = await tx.fetch_each(_SQL["outputs_size"], [store.job_parameters(each) for each in sorted(upstream)])
    sizes = {(store.run_key(row), row["job_name"]): row["outputs_bytes"] for row in rows}
    fitting: dict[JobKey, _Upstreams] = {}
    for (key, job), names in needs.items():
        with_outputs = [name for name in names if (key, name) in sizes]
        totals = list(accumulate(sizes[key, name] for name in with_outputs))
        count = bisect_right(totals, min(OUTPUTS_BYTES, shares[key]))
        size = totals[count - 1] if count else 0
        fitting[key, job] = _Upstreams(with_outputs[:count], size, len(with_outputs) - count)
    return fitting


def _job_skipped(run: Run, job: Job, at: int) -> Event:
    return _event(
        JobSkipped.type, run, job.name, {"jobName": job.name, "reason": job.reason}, cause=job.changed_by, at=at
    )


def _event(
    kind: str,
    run: Run,
    subject: str,
    fields: Mapping[str, Any],
    raw: Mapping[str, RawJson | None] = _NOTHING,
    *,
    cause: str | None = None,
    at: int,
) -> Event:
    """Return an event. Its id depends on the position of the StartRun: a later run of this name has other ids."""
    named = json.dumps([kind, *run.key, *run.position, subject])
    return Event(
        id=hashlib.sha256(named.encode()).hexdigest()[:32],
        type=kind,
        tenant=run.key.tenant_id,
        payload=write_object({"tenantId": run.key.tenant_id, "runId": run.key.run_id, **fields}, raw),
        timestamp_ms=at,
        correlation_id=run.cause.correlation_id,
        causation_id=cause or run.cause.command_id,
        trace=run.cause.trace,
    )
