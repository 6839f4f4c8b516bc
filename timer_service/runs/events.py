"""Adds the events of runs to the outbox: those of the difference of two states, and those of announcements."""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from pydantic_core import from_json

from timer_service.core.events import outbox
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.instant import format_instant
from timer_service.core.values.message import Event
from timer_service.core.values.stored_json import RawJson, read_stored, write_object
from timer_service.runs import announcements, store
from timer_service.runs.announcements import Announcement, States
from timer_service.runs.draft import RunState
from timer_service.runs.edges import read_needs
from timer_service.runs.messages import (
    JobReady,
    JobSkipped,
    JobStatus,
    RunCompleted,
    RunRejected,
    RunStatus,
    RunStuck,
)
from timer_service.runs.rules import Run, RunKey
from timer_service.runs.store import JobKey

_SQL = load_sql("timer_service.runs", "events.sql")
_MAX_STUCK_JOBS = 100
_MOST_BYTES = 512 * 1024
"""How many bytes of events of jobs one transaction adds. The last event may exceed it."""
_JOBS_AT_ONCE = 200
"""Of how many jobs the needs are read at a time. Together they have at most 100,000 of each run."""
_OVERHEAD = 2000
"""The assumed size of an event without payload and outputs."""
_NOTHING: Mapping[str, RawJson | None] = {}


def run_event(
    kind: str,
    run: Run,
    subject: str,
    fields: Mapping[str, Any],
    raw: Mapping[str, RawJson | None] = _NOTHING,
    *,
    cause: str | None = None,
    at: int,
) -> Event:
    """Return an event of a run. `subject`: what the run has one event of this kind for, such as a job.

    Its id depends on the position of the StartRun: a later run of this name has other ids.
    """
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


async def add(
    tx: Transaction, before: States, after: States, now: int, stuck: Mapping[RunKey, Sequence[str]] | None = None
) -> int:
    """Add the events of the changes to the outbox. Return how many the changes have.

    `stuck` names the stuck jobs of each run. If the events of jobs have more than about 512 KiB, the `announcer` adds
    the others later.
    """
    of_jobs = announcements.find(before, after)
    added = await add_of_jobs(tx, of_jobs, now)
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


async def add_of_jobs(tx: Transaction, announcements: Sequence[Announcement], now: int) -> int:
    """Add the events of the first announcements, of about 512 KiB and at least one. Return how many these are."""
    added, room = 0, _MOST_BYTES
    while added < len(announcements) and room > 0:
        some = announcements[added : added + _JOBS_AT_ONCE]
        upstreams = await _read_upstreams(tx, some)
        sizes = [_size(each, upstreams) for each in some]
        fitting = some[: bisect_right(list(accumulate(sizes)), room) + 1]
        room -= sum(sizes[: len(fitting)])
        added += len(fitting)
        ready = [each for each in fitting if each.is_ready]
        skipped = [_skipped_event(each, now) for each in fitting if not each.is_ready]
        await outbox.add(tx, [*await _ready_events(tx, ready, upstreams, now), *skipped], now)
    return added


def _size(announcement: Announcement, upstreams: Mapping[JobKey, "_Upstreams"]) -> int:
    if not announcement.is_ready:
        return _OVERHEAD
    return _OVERHEAD + announcement.job.payload_bytes + upstreams.get(announcement.key, _NO_UPSTREAMS).size


def _skipped_event(skipped: Announcement, now: int) -> Event:
    run, job, _ = skipped
    fields = {"jobName": job.name, "reason": job.reason}
    return run_event(JobSkipped.type, run, job.name, fields, cause=skipped.caused_by, at=now)


class _Upstreams(NamedTuple):
    """The upstream jobs of one job that have outputs."""

    shown: Sequence[str] = ()
    """The upstream jobs whose outputs fit into the JobReady."""
    size: int = 0
    """The bytes of these outputs."""
    omitted: int = 0


_NO_UPSTREAMS = _Upstreams()


async def _ready_events(
    tx: Transaction, ready: Sequence[Announcement], upstreams: Mapping[JobKey, _Upstreams], now: int
) -> list[Event]:
    with_payload = [store.job_parameters(each.key) for each in ready if each.job.payload_bytes]
    payloads = await _read_texts(tx, "payload", with_payload)
    needs = {each.key: upstreams.get(each.key, _NO_UPSTREAMS) for each in ready}
    shown = {(key, name) for (key, _), each in needs.items() for name in each.shown}
    outputs = await _read_texts(tx, "outputs", [store.job_parameters(each) for each in shown])
    events = []
    for announcement in ready:
        run, job, key = announcement.run, announcement.job, announcement.key
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
        events.append(run_event(JobReady.type, run, job.name, fields, raw, cause=announcement.caused_by, at=now))
    return events


async def _read_texts(tx: Transaction, column: str, jobs: Sequence[Mapping[str, str]]) -> Mapping[JobKey, str]:
    """Return the payloads or the outputs of jobs as JSON. `column` is `payload` or `outputs`."""
    rows = await tx.fetch_each(_SQL[column], jobs)
    return {(store.run_key(row), row["job_name"]): row[column] for row in rows}


async def _read_upstreams(tx: Transaction, announcements: Sequence[Announcement]) -> Mapping[JobKey, _Upstreams]:
    """Return, for each ready job, the upstream jobs whose outputs fit into its JobReady."""
    shares = {each.key: each.outputs_share for each in announcements if each.is_ready and each.run.has_outputs}
    jobs = [store.job_parameters(key) for key in shares]
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
        count = bisect_right(totals, shares[key, job])
        size = totals[count - 1] if count else 0
        fitting[key, job] = _Upstreams(with_outputs[:count], size, len(with_outputs) - count)
    return fitting
