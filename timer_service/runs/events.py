"""Adds the events of runs to the outbox: those of the difference of two states, and those of announcements."""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
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
from timer_service.runs.draft import RunState
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
    ended = {key: state.run for key, state in after.items() if state.run.ended and not before[key].run.ended}
    completed = [key for key, run in ended.items() if run.status is not RunStatus.REJECTED]
    counts = await loader.count_by_status(tx, completed)
    of_runs = [
        event
        for key, state in after.items()
        for event in _events_of_run(before[key], state, counts.get(key), (stuck or {}).get(key, ()), now)
    ]
    await outbox.add(tx, of_runs, now)
    return len(of_jobs) + len(of_runs)


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


async def add_of_jobs(tx: Transaction, announcements: Sequence[Announcement], now: int) -> int:
    """Add the events of the first announcements, of about 512 KiB and at least one. Return how many these are."""
    first = announcements[:_MOST_JOBS]
    upstreams = await _find_upstreams(tx, first)
    totals = list(accumulate(_size(each, upstreams) for each in first))
    fitting = first[: bisect_right(totals, MOST_BYTES) + 1]
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


_NO_UPSTREAMS = _Upstreams()


async def _find_upstreams(tx: Transaction, announcements: Sequence[Announcement]) -> Mapping[JobKey, _Upstreams]:
    """Return the upstreams of ready jobs whose outputs are shown: the first ones, up to the share of each job."""
    shares = {each.key: each.outputs_share for each in announcements if each.is_ready and each.run.has_outputs}
    texts = await loader.find_needs(tx, shares)
    needs = {key: [(key[0], name) for name, _ in read_needs(text)] for key, text in texts.items()}
    sizes = await loader.find_values(tx, "outputs_bytes", sorted(set(chain.from_iterable(needs.values()))))
    found: dict[JobKey, _Upstreams] = {}
    for key, needed in needs.items():
        with_outputs = [each for each in needed if each in sizes]
        totals = list(accumulate(sizes[each] for each in with_outputs))
        count = bisect_right(totals, shares[key])
        shown = [name for _, name in with_outputs[:count]]
        found[key] = _Upstreams(shown, totals[count - 1] if count else 0, len(with_outputs) - count)
    return found


def _size(announcement: Announcement, upstreams: Mapping[JobKey, _Upstreams]) -> int:
    if not announcement.is_ready:
        return _OVERHEAD
    return _OVERHEAD + announcement.job.payload_bytes + upstreams.get(announcement.key, _NO_UPSTREAMS).size


def _skipped_event(skipped: Announcement, now: int) -> Event:
    run, job, _ = skipped
    fields = {"jobName": job.name, "reason": job.reason}
    return run_event(JobSkipped.type, run, job.name, fields, cause=job.caused_by, at=now)


async def _ready_events(
    tx: Transaction, ready: Sequence[Announcement], upstreams: Mapping[JobKey, _Upstreams], now: int
) -> list[Event]:
    payloads = await loader.find_values(tx, "payload", [each.key for each in ready if each.job.payload_bytes])
    needed = {each.key: upstreams.get(each.key, _NO_UPSTREAMS) for each in ready}
    shown = {(run, name) for (run, _), each in needed.items() for name in each.shown}
    outputs = await loader.find_values(tx, "outputs", shown)
    events = []
    for announcement in ready:
        (run, job, _), key = announcement, announcement.key
        fields = omit_none(
            jobName=job.name,
            groupName=job.group,
            readyAt=format_instant(now if job.ready_at is None else job.ready_at),
            outputsOmitted=needed[key].omitted or None,
        )
        of_upstreams = {name: read_stored(outputs[run.key, name]) for name in needed[key].shown}
        raw = {"payload": read_stored(payloads.get(key)), "upstreamJobOutputs": write_object({}, of_upstreams)}
        events.append(run_event(JobReady.type, run, job.name, fields, raw, cause=job.caused_by, at=now))
    return events
