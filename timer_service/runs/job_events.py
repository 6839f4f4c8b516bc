"""Adds the events of announcements to the outbox: JobReady with payload and outputs, and JobSkipped."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from timer_service.core.events import outbox
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.instant import format_instant
from timer_service.core.values.message import Event
from timer_service.core.values.stored_json import read_stored, write_object
from timer_service.runs import store
from timer_service.runs.announcements import Announcement
from timer_service.runs.edges import read_needs
from timer_service.runs.messages import JobReady, JobSkipped
from timer_service.runs.run_event import run_event
from timer_service.runs.store import JobKey

_SQL = load_sql("timer_service.runs", "job_events.sql")
_MOST_BYTES = 512 * 1024
"""How many bytes of these events one transaction adds. The last event may exceed it."""
_JOBS_AT_ONCE = 200
"""Of how many jobs the needs are read at a time. Together they have at most 100,000 of each run."""
_OVERHEAD = 2000
"""The assumed size of an event without payload and outputs."""


async def add(tx: Transaction, announcements: Sequence[Announcement], now: int) -> int:
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
