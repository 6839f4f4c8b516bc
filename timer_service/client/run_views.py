"""Runs and their jobs as the client shows them, with aware datetimes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from timer_service.client.instants import read_instant


class RunStatus(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the service has it."""

    tenant: str
    name: str
    status: str
    """One of `RunStatus`, or what a newer service may add."""
    created_at: datetime
    open_jobs: int
    unresolved_groups: int
    settled_at: datetime | None = None
    code: str | None = None
    """Why it was rejected."""
    path: Sequence[str] = ()
    """The jobs at fault."""

    @classmethod
    def read(cls, view: Mapping[str, Any]) -> "Run":
        """Read one off the wire."""
        return cls(
            tenant=view["tenantId"],
            name=view["runId"],
            status=view["status"],
            created_at=datetime.fromisoformat(view["createdAt"]),
            open_jobs=view["openJobs"],
            unresolved_groups=view["unresolvedGroups"],
            settled_at=read_instant(view.get("settledAt")),
            code=view.get("code"),
            path=view.get("path", ()),
        )


@dataclass(frozen=True, slots=True)
class RunJob:
    """A job of a run as the service has it."""

    name: str
    status: str
    needs: Sequence[Mapping[str, str]]
    """As on the wire: `job` or `group`, and `ifFailed`."""
    group: str | None = None
    ready_at: datetime | None = None
    settled_at: datetime | None = None
    reason: str | None = None
    outputs: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, view: Mapping[str, Any]) -> "RunJob":
        """Read one off the wire."""
        return cls(
            name=view["name"],
            status=view["status"],
            needs=view["needs"],
            group=view.get("groupName"),
            ready_at=read_instant(view.get("readyAt")),
            settled_at=read_instant(view.get("settledAt")),
            reason=view.get("reason"),
            outputs=view.get("outputs"),
        )


@dataclass(frozen=True, slots=True)
class RunGraph:
    """A run with all its jobs."""

    run: Run
    counts: Mapping[str, int]
    groups: Mapping[str, bool]
    """Whether each dynamic group is resolved."""
    jobs: Sequence[RunJob]
