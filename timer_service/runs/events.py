"""The events of runs."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from timer_service.core.database import Row
from timer_service.core.instant import format_instant
from timer_service.core.message import Event
from timer_service.runs.checking import Flaw
from timer_service.runs.messages import JobReady, JobSkipped, JobStatus, RunCompleted, RunRejected, RunStuck
from timer_service.runs.rules import Job, Run

_OUTPUTS_BYTES = 512 * 1024
"""Of all upstreams together: half of what a broker's message usually may have."""
_MOST_STUCK = 100


def job_ready(run: Run, given: Row, outputs: Iterable[Row], cause: str | None, at: int) -> Event:
    """Return what tells that a job may go."""
    told: dict[str, Any] = {"jobName": given["job_name"]}
    if given["group_name"] is not None:
        told["groupName"] = given["group_name"]
    if given["payload"] is not None:
        told["payload"] = from_json(given["payload"])
    told["upstreamJobOutputs"], omitted = _fitting(outputs)
    if omitted:
        told["outputsOmitted"] = omitted
    told["readyAt"] = format_instant(given["ready_at"])
    return _event(JobReady.type, run, given["job_name"], told, cause=cause, at=at)


def job_skipped(run: Run, job: Job, cause: str | None, at: int) -> Event:
    """Return what tells that a job will not go."""
    told = {"jobName": job.name, "reason": job.reason}
    return _event(JobSkipped.type, run, job.name, told, cause=cause, at=at)


def run_rejected(run: Run, flaw: Flaw, at: int) -> Event:
    """Return what tells that a run's graph can't be run."""
    return _event(RunRejected.type, run, "", {"code": flaw.code, "path": flaw.path}, at=at)


def run_completed(run: Run, counts: Mapping[JobStatus, int], at: int) -> Event:
    """Return what tells that all jobs of a run have ended."""
    return _event(RunCompleted.type, run, "", {"status": run.status, "counts": counts}, at=at)


def run_stuck(run: Run, jobs: Sequence[str], at: int) -> Event:
    """Return what tells that jobs waited in vain, and did so until `at`."""
    return _event(RunStuck.type, run, str(at), {"jobs": jobs[:_MOST_STUCK]}, at=at)


def _fitting(outputs: Iterable[Row]) -> tuple[Mapping[str, Any], int]:
    """Return outputs by the names of their jobs, and how many found no room."""
    told, size, omitted = {}, 0, 0
    for row in outputs:
        size += len(row["outputs"].encode())
        if size > _OUTPUTS_BYTES:
            omitted += 1
        else:
            told[row["upstream_name"]] = from_json(row["outputs"])
    return told, omitted


def _event(kind: str, run: Run, subject: str, told: Mapping[str, Any], *, cause: str | None = None, at: int) -> Event:
    """Return an event whose id follows from what it tells: a run of the same name, started again, has others."""
    named = json.dumps([kind, *run.key, *run.position, subject])
    return Event(
        id=hashlib.sha256(named.encode()).hexdigest()[:32],
        type=kind,
        tenant=run.key.tenant_id,
        payload={"tenantId": run.key.tenant_id, "runId": run.key.run_id, **told},
        timestamp_ms=at,
        correlation_id=run.cause.correlation_id,
        causation_id=cause or run.cause.command_id,
        trace=run.cause.trace,
    )
