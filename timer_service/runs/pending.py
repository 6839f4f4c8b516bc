"""Pending commands: those that come before their run or their job is known. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from timer_service.core.values.message import Command, Position, TenantPayload, Trace
from timer_service.runs.messages import ReportJobStatus, ResolveGroup

MAX_PENDING_BYTES = 4 * 1024 * 1024
"""The limit for the pending commands of one run."""
_ROW_BYTES = 2000
"""What each one counts besides its payload: a StartRun applies all of them in its transaction."""
_DROPPED_JOB_BYTES = 100
"""What each job in `droppedJobs` counts besides its name."""
_TYPES: Mapping[str, type[ResolveGroup | ReportJobStatus]] = {
    each.type: each for each in (ResolveGroup, ReportJobStatus)
}


@dataclass(frozen=True)
class Pending:
    """A pending command as it is stored."""

    position: Position
    command_id: str
    command_type: str
    payload: str
    """JSON."""
    correlation_id: str | None
    trace: Trace

    @classmethod
    def of(cls, command: Command) -> "Pending":
        """Return a command as it is stored."""
        payload = command.payload
        assert isinstance(payload, TenantPayload)  # noqa: S101 - the commands of runs have no other decoder
        text = payload.model_dump_json(exclude_unset=True)
        return cls(command.position, command.id, payload.type, text, command.correlation_id, command.trace)

    def read(self) -> Command:
        """Return the command. For a ResolveGroup of 10,000 jobs, this takes 60 ms."""
        payload = _TYPES[self.command_type].model_validate_json(self.payload)
        return Command(self.command_id, payload, self.position, self.correlation_id, self.trace, None)

    @cached_property
    def report(self) -> Command | None:
        """The command if it is a report."""
        return self.read() if self.command_type == ReportJobStatus.type else None

    @cached_property
    def named_jobs(self) -> Collection[str]:
        """The jobs that a report names, each once, in its order. A ResolveGroup names none."""
        payload = None if self.report is None else self.report.payload
        return payload.named_jobs if isinstance(payload, ReportJobStatus) else ()

    @property
    def size(self) -> int:
        """The bytes that count towards the limit."""
        payload = None if self.report is None else self.report.payload
        dropped = len(payload.dropped_jobs or ()) if isinstance(payload, ReportJobStatus) else 0
        return len(self.payload.encode()) + _ROW_BYTES + _DROPPED_JOB_BYTES * dropped
