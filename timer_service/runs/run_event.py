"""One event of a run. Pure."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from timer_service.core.values.message import Event
from timer_service.core.values.stored_json import RawJson, write_object
from timer_service.runs.rules import Run

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
