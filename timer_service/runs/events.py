"""Adds the events of runs to the outbox: those of the difference of two states, and those of announcements."""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from pydantic_core import from_json

from timer_service.core.events import outbox
from timer_service.core.ports.database import Transaction
from timer_service.core.values.instant import format_instant
from timer_service.core.values.message import Event
from timer_service.core.values.stored_json import RawJson, omit_none, read_stored, write_object
from timer_service.runs import announcements, loader
from timer_service.runs.announcements import Announcement, States
from timer_service.runs.graph import read_needs
from timer_service.runs.messages import JobReady, JobSkipped, JobStatus, RunCompleted, RunRejected, RunStatus, RunStuck
from timer_service.runs.rules import Run, RunKey
from timer_service.runs.store import JobKey

_MAX_STUCK_JOBS = 100
MOST_BYTES = 512 * 1024
"""How many bytes of events of jobs one transaction adds. The last event may exceed it."""
_MOST_JOBS = 250
"""How many jobs these are at most: more have no room."""
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
    attempt: int | None = None,
    cause: str | None = None,
    at: int,
) -> Event:
    """Return an event of a run. An attempt has at most one event of a kind for each `subject`, such as a job.

    `attempt` is that of the run if it is None. `cause` is the id of the command that led to the event, or None for the
    StartRun. The id of the event depends on the position of the StartRun and on the attempt: a later run of this name,
    and a later attempt, have other ids.
    """
    attempt = attempt or run.attempt
    named = json.dumps([kind, *run.key, *run.position, attempt, subject])
    shown = {"attempt": attempt} if attempt > 1 else {}
    return Event(
        id=hashlib.sha256(named.encode()).hexdigest()[:32],
        type=kind,
        tenant=run.key.tenant_id,
        payload=write_object({"tenantId": run.key.tenant_id, "runId": run.key.run_id, **fields, **shown}, raw),
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
    ended = [
        state.run for key, state in after.items() if state.run.ended and not _had_ended(before[key].run, state.run)
    ]
    counts = await loader.count_by_status(tx, [run.key for run in ended if run.status is not RunStatus.REJECTED])
    of_runs = [_stuck_event(after[key].run, jobs, now) for key, jobs in (stuck or {}).items() if jobs]
    of_runs += [_end_event(run, counts.get(run.key, {}), now) for run in ended]
    await outbox.add(tx, of_runs, now)
    return len(of_jobs) + len(of_runs)


def _had_ended(before: Run, after: Run) -> bool:
    """Return whether the end of a run was published before: an attempt has one end."""
    return before.ended and before.attempt == after.attempt


def _stuck_event(run: Run, jobs: Sequence[str], now: int) -> Event:
    return run_event(RunStuck.type, run, str(now), {"jobs": jobs[:_MAX_STUCK_JOBS]}, at=now)


def _end_event(run: Run, counts: Mapping[JobStatus, int], now: int) -> Event:
    """Return the event of a run that has ended. `counts` are its jobs by status."""
    if run.status is RunStatus.REJECTED:
        flaw = {"code": run.flaw_code, "path": from_json(run.flaw_path or "[]")}
        return run_event(RunRejected.type, run, "", flaw, at=now)
    return run_event(RunCompleted.type, run, "", {"status": run.status, "counts": counts}, at=now)


async def add_of_jobs(tx: Transaction, announcements: Sequence[Announcement], now: int) -> int:
    """Add the events of the first announcements, of about 512 KiB and at least one. Return how many these are."""
    first = announcements[:_MOST_JOBS]
    upstreams = await _find_upstreams(tx, first)
    totals = list(accumulate(_size(each, upstreams) for each in first))
    fitting = first[: bisect_right(totals, MOST_BYTES) + 1]  # the last one may exceed the limit
    ready = await _ready_events(tx, [each for each in fitting if each.is_ready], upstreams, now)
    skipped = [_skipped_event(each, now) for each in fitting if not each.is_ready]
    await outbox.add(tx, [*ready, *skipped], now)
    return len(fitting)


class _Upstreams(NamedTuple):
    """The jobs with outputs that one job needs."""

    shown: Sequence[str] = ()
    """Those whose outputs fit into the JobReady."""
    size: int = 0
    """The bytes of these outputs."""
    omitted: int = 0
    """The number of the others."""


_NO_UPSTREAMS = _Upstreams()


async def _find_upstreams(tx: Transaction, announcements: Sequence[Announcement]) -> Mapping[JobKey, _Upstreams]:
    """Return the upstreams of ready jobs whose outputs are shown: the first ones, up to the share of each job."""
    shares = {each.key: each.outputs_share for each in announcements if each.is_ready and each.run.has_outputs}
    texts = await loader.find_needs(tx, shares)
    needs = {(run, job): [(run, name) for name, _ in read_needs(text)] for (run, job), text in texts.items()}
    sizes = await loader.find_values(tx, "outputs_bytes", sorted(set(chain.from_iterable(needs.values()))))
    found: dict[JobKey, _Upstreams] = {}
    for key, needed in needs.items():
        with_outputs = [each for each in needed if each in sizes]
        totals = list(accumulate((sizes[each] for each in with_outputs), initial=0))
        count = bisect_right(totals, shares[key]) - 1  # how many outputs fit
        found[key] = _Upstreams([name for _, name in with_outputs[:count]], totals[count], len(with_outputs) - count)
    return found


def _size(announcement: Announcement, upstreams: Mapping[JobKey, _Upstreams]) -> int:
    """Return about how many bytes the event of an announcement has."""
    if not announcement.is_ready:
        return _OVERHEAD
    return _OVERHEAD + announcement.job.payload_bytes + upstreams.get(announcement.key, _NO_UPSTREAMS).size


def _skipped_event(skipped: Announcement, now: int) -> Event:
    run, job, _ = skipped
    fields = {"jobName": job.name, "reason": job.reason}
    return run_event(JobSkipped.type, run, job.name, fields, attempt=job.attempt, cause=job.caused_by, at=now)


async def _ready_events(
    tx: Transaction, ready: Sequence[Announcement], upstreams: Mapping[JobKey, _Upstreams], now: int
) -> list[Event]:
    """Return a JobReady for each announcement, with the payload of its job and the shown outputs."""
    payloads = await loader.find_values(tx, "payload", [each.key for each in ready if each.job.payload_bytes])
    of_job = {each.key: upstreams.get(each.key, _NO_UPSTREAMS) for each in ready}
    shown = {(run_key, name) for (run_key, _), each in of_job.items() for name in each.shown}
    outputs = await loader.find_values(tx, "outputs", shown)
    events = []
    for announcement in ready:
        run, job, key = announcement.run, announcement.job, announcement.key
        fields = omit_none(
            jobName=job.name,
            groupName=job.group,
            readyAt=format_instant(now if job.ready_at is None else job.ready_at),
            outputsOmitted=of_job[key].omitted or None,
        )
        of_upstreams = {name: read_stored(outputs[run.key, name]) for name in of_job[key].shown}
        raw = {"payload": read_stored(payloads.get(key)), "upstreamJobOutputs": write_object({}, of_upstreams)}
        events.append(
            run_event(JobReady.type, run, job.name, fields, raw, attempt=job.attempt, cause=job.caused_by, at=now)
        )
    return events
