"""The events of firings."""

from collections.abc import Mapping
from typing import Any

from timer_service.core.events.cause import read_cause
from timer_service.core.ports.database import Row
from timer_service.core.values.instant import format_instant
from timer_service.core.values.message import Event
from timer_service.core.values.stored_json import omit_none
from timer_service.signals.firing_store import task_id
from timer_service.signals.messages import WorkSignalFailed, WorkSignalFired


def fired_event(row: Row, at: int) -> Event:
    """Return the event of a firing whose signal has fired. Its id depends only on the firing."""
    payload = omit_none(**_about(row), taskId=task_id(row), firedAt=format_instant(at))
    return _event(f"fired-{row['firing_id']}", WorkSignalFired.type, row, payload, at)


def failed_event(row: Row, error: str, at: int) -> Event:
    """Return the event of a firing that is given up.

    Its id contains the instant, because the firing of a time trigger can be queued again and given up again.
    """
    attempt = row["attempt"] + 1  # the one that has failed now
    payload = omit_none(**_about(row), attempt=attempt, error=error, failedAt=format_instant(at))
    return _event(f"failed-{row['firing_id']}-{at}", WorkSignalFailed.type, row, payload, at)


def _about(row: Row) -> dict[str, Any]:
    """Return the fields that both events have. The work item is None if the firing has none."""
    return {
        "tenantId": row["tenant_id"],
        "signalId": row["signal_id"],
        "firingId": row["firing_id"],
        "workItemId": row["work_item_id"],
        "dedupeKey": row["dedupe_key"],
    }


def _event(event_id: str, message_type: str, row: Row, payload: Mapping[str, Any], at: int) -> Event:
    command_id, correlation_id, trace = read_cause(row)
    return Event(event_id, message_type, row["tenant_id"], payload, at, correlation_id, command_id, trace)
