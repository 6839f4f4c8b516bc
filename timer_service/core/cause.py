"""The cause of an event: what it tells of the command that led to it, and the columns that keep this until then."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from timer_service.core.database import Row
from timer_service.core.message import Command, Trace


class Cause(NamedTuple):
    """What an event tells of the command that led to it."""

    command_id: str | None = None
    correlation_id: str | None = None
    trace: Trace = Trace()


def cause_of(command: Command) -> Cause:
    """Return the cause of what a command leads to."""
    return Cause(command.id, command.correlation_id, command.trace)


def read_cause(row: Row) -> Cause:
    """Return the cause that a row keeps."""
    return Cause(row["causation_id"], row["correlation_id"], Trace(row["traceparent"], row["tracestate"]))


def cause_columns(cause: Cause) -> Mapping[str, Any]:
    """Return the columns that `read_cause` reads, with their values."""
    return {
        "causation_id": cause.command_id,
        "correlation_id": cause.correlation_id,
        "traceparent": cause.trace.traceparent,
        "tracestate": cause.trace.tracestate,
    }
