"""What goes into the client and comes out of it, with aware datetimes."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from timer_service.client.instants import read_instant
from timer_service.client.run_views import Run


class _Unset:
    """Tells `data` that was not given from `data=None`, which is JSON too."""

    def __repr__(self) -> str:
        return "<none>"


UNSET: Any = _Unset()


class State(StrEnum):
    """Where a timer stands."""

    SCHEDULED = "Scheduled"
    REACHED = "Reached"
    CANCELLED = "Cancelled"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class NewTimer:
    """A timer to schedule; the arguments of `TimerClient.schedule`."""

    tenant: str
    call: str
    due_at: datetime
    data: Any = UNSET


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer as the service has it."""

    tenant: str
    call: str
    due_at: datetime
    state: str
    """One of `State`, or what a newer service may add."""
    registered_at: datetime
    attempt: int
    reached_at: datetime | None = None
    last_error: str | None = None
    correlation_id: str | None = None
    data: Any = None

    @classmethod
    def read(cls, view: Mapping[str, Any]) -> "Timer":
        """Read one off the wire."""
        return cls(
            tenant=view["tenantId"],
            call=view["serviceCallId"],
            due_at=datetime.fromisoformat(view["dueAt"]),
            state=view["state"],
            registered_at=datetime.fromisoformat(view["registeredAt"]),
            attempt=view["attempt"],
            reached_at=read_instant(view.get("reachedAt")),
            last_error=view.get("lastError"),
            correlation_id=view.get("correlationId"),
            data=view.get("data"),
        )


class SignalStatus(StrEnum):
    """Where a signal stands."""

    ACTIVE = "active"
    PAUSED = "paused"
    FIRED = "fired"
    RESOLVED = "resolved"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Signal:
    """A work signal as the service has it."""

    tenant: str
    name: str
    status: str
    """One of `SignalStatus`, or what a newer service may add."""
    trigger_kind: str
    trigger_spec: Mapping[str, Any]
    created_at: datetime
    trigger_error: str | None = None
    item: str | None = None
    note: str | None = None
    last_fired_at: datetime | None = None
    last_error: str | None = None

    @classmethod
    def read(cls, view: Mapping[str, Any]) -> "Signal":
        """Read one off the wire."""
        return cls(
            tenant=view["tenantId"],
            name=view["signalId"],
            status=view["status"],
            trigger_kind=view["triggerKind"],
            trigger_spec=view["triggerSpec"],
            created_at=datetime.fromisoformat(view["createdAt"]),
            trigger_error=view.get("triggerError"),
            item=view.get("workItemId"),
            note=view.get("note"),
            last_fired_at=read_instant(view.get("lastFiredAt")),
            last_error=view.get("lastError"),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended: its id, the outcome's name, and what it was about as it stands now, if there is one."""

    command_id: str
    name: str
    timer: Timer | None = None
    signal: Signal | None = None
    run: Run | None = None

    @classmethod
    def read(cls, reply: Mapping[str, Any]) -> "Outcome":
        """Read one off the wire."""
        timer = Timer.read(reply["timer"]) if "timer" in reply else None
        signal = Signal.read(reply["signal"]) if "signal" in reply else None
        run = Run.read(reply["run"]) if "run" in reply else None
        return cls(reply["commandId"], reply["outcome"], timer, signal, run)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many timers a tenant has."""

    by_state: Mapping[str, int]
    overdue: int
    """Those Scheduled whose due time has passed."""
    exact: bool
    """False when the service stopped counting at its bound; the numbers are the least there are then."""
    oldest_due: datetime | None = None
    """The earliest due time of those Scheduled."""

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> "Counts":
        """Read them off the wire."""
        return cls(answer["counts"], answer["overdue"], answer["exact"], read_instant(answer.get("oldestDue")))
