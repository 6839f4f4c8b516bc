"""The cause of an event: the command that led to it, and the columns that store it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from timer_service.core.ports.database import Row
from timer_service.core.values.message import Command, Trace


class Cause(NamedTuple):
    """The ids and the trace of the command that led to an event."""

    command_id: str | None = None
    correlation_id: str | None = None
    trace: Trace = Trace()


def cause_of(command: Command) -> Cause:
    """Return the cause of the events that a command leads to."""
    return Cause(command.id, command.correlation_id, command.trace)


def read_cause(row: Row) -> Cause:
    """Return the cause that is stored in a row."""
    return Cause(row["causation_id"], row["correlation_id"], Trace(row["traceparent"], row["tracestate"]))


def cause_columns(cause: Cause) -> Mapping[str, Any]:
    """Return the values of the columns that `read_cause` reads."""
    return {
        "causation_id": cause.command_id,
        "correlation_id": cause.correlation_id,
        "traceparent": cause.trace.traceparent,
        "tracestate": cause.trace.tracestate,
    }
