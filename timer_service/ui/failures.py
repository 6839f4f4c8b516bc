"""What was given up or cannot go on: its kinds, how much there is of each, and some of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from timer_service.core.events.outbox import OUTBOX
from timer_service.core.ports.database import Reader, Row
from timer_service.core.ports.sql import load_sql
from timer_service.events.store import TABLE as PARKED_EVENTS
from timer_service.schedules.messages import ShownStatus
from timer_service.schedules.store import SCHEDULES
from timer_service.signals.firing_store import FIRINGS
from timer_service.signals.signal import Status
from timer_service.timers.messages import State
from timer_service.timers.store import TIMERS
from timer_service.ui.links import command, link
from timer_service.ui.tenants import Rows, count_all
from timer_service.ui.words import why_failed
from timer_service.workflows.messages import WorkflowStatus
from timer_service.workflows.workflow import BLOCKED_FROM, Key

_SQL = load_sql("timer_service.ui", "rows.sql")


class Kind(NamedTuple):
    """One kind of failure."""

    name: str
    title: str
    one: str
    """The word for one of them."""
    meaning: str
    rows: Rows
    id: str
    """The column with the id of what failed."""
    at: str
    """The column with an instant. No index has the time of the failure, unless it is this one."""
    instant: str
    """What happens at this instant."""
    reason: str
    """The column that says why."""
    order: Sequence[str]
    """The columns of an index after the tenant. Lists begin with its last rows."""
    list: Callable[[str], str]
    """Returns the URL of a tenant's list."""
    item: str | None = None
    """The page of one of them."""
    retry: Callable[[str, str], str] | None = None
    """Returns the command that tries again, for a tenant and an id."""
    of_last: str = "TRUE"
    """The rest of the predicate of the index in `order`, if `rows` has another one."""

    @property
    def last(self) -> str:
        """The statement that reads the last failures of a tenant, in the order of the index."""
        order = ", ".join(f"{column} DESC" for column in self.order)
        rows = self.rows._replace(where=f"{self.rows.where} AND {self.of_last}")
        return rows.sql("last", id=self.id, at=self.at, reason=self.reason, order=order)

    def url(self, tenant: str, id_: str) -> str:
        """Return the URL of the page with a failure."""
        return self.list(tenant) if self.item is None else link(self.item, tenant=tenant, id=id_)


class Failure(NamedTuple):
    """One failure."""

    kind: Kind
    tenant: str
    id: str
    at: int
    reason: str

    @property
    def url(self) -> str:
        """The URL of its page."""
        return self.kind.url(self.tenant, self.id)


KINDS = (
    Kind(
        "timers",
        "Timers that were given up",
        "timer",
        "Their events could not be published after all attempts. Fix the reason, then retry them.",
        Rows(TIMERS.name, "state = 'Failed'"),
        id="service_call_id",
        at="due_at",
        instant="due",
        reason="last_error",
        order=("due_at", "service_call_id"),
        list=lambda tenant: link("timers", tenant=tenant, state=State.FAILED.value),
        item="timer",
        retry=lambda tenant, _: command("timers", "retry", tenant, failed=True),
    ),
    Kind(
        "events",
        "Buried events",
        "event",
        "Events of signals, schedules, workflows and runs that could not be published. They keep their ids.",
        Rows(OUTBOX.name, "state = 'Buried'"),
        id="event_id",
        at="added_at",
        instant="added",
        reason="last_error",
        order=("added_at", "event_id"),
        list=lambda tenant: link("events", tenant=tenant),
        retry=lambda tenant, _: command("events", "retry", tenant, all=True),
    ),
    Kind(
        "parked",
        "Parked events",
        "parked event",
        "Events that a consumer of a tenant could not handle. Fix the reason, then resubmit them to this consumer.",
        Rows(PARKED_EVENTS),
        id="consumer",
        at="parked_at",
        instant="parked",
        reason="reason",
        order=("parked_at", "event_id", "consumer"),
        list=lambda tenant: link("parked", tenant=tenant),
        retry=lambda tenant, consumer: command("events", "resubmit", tenant, consumer, all=True),
    ),
    Kind(
        "firings",
        "Firings that were given up",
        "signal",
        "Their signals are paused. Fix the reason, then activate the signals.",
        Rows(FIRINGS.name, "status = 'failed'"),
        id="signal_id",
        at="settled_at",
        instant="given up",
        reason="last_error",
        order=("firing_id",),
        list=lambda tenant: link("signals", tenant=tenant, status=Status.PAUSED.value),
        item="signal",
        retry=lambda tenant, signal: command("signals", "activate", tenant, signal),
    ),
    Kind(
        "workflows",
        "Failed workflows",
        "workflow",
        "A step failed in all its attempts, the function raised an error, or the deadline passed.",
        Rows("workflows", "status = 'failed'"),
        id="workflow_id",
        at="ended_at",
        instant="ended",
        reason="failure_code",
        order=("created_at", "workflow_id"),
        of_last="ended_at IS NOT NULL AND type IS NOT NULL",
        list=lambda tenant: link("workflows", tenant=tenant, status=WorkflowStatus.FAILED.value),
        item="workflow",
        retry=lambda tenant, workflow: command("workflows", "retry", tenant, workflow),
    ),
    Kind(
        "blocked",
        "Blocked workflows",
        "workflow",
        "The function does not match what the workflow has done. Deploy workers with the right version.",
        Rows("workflows", f"blocks >= {BLOCKED_FROM} AND ended_at IS NULL"),
        id="workflow_id",
        at="created_at",
        instant="started",
        reason="last_error",
        order=("workflow_id",),
        list=lambda tenant: link("workflows", tenant=tenant, status=WorkflowStatus.WAITING.value),
        item="workflow",
    ),
    Kind(
        "schedules",
        "Schedules that cannot fire",
        "schedule",
        "Their next slot cannot be computed, for example because a time zone is missing. It is tried every minute.",
        Rows(SCHEDULES.name, "last_error IS NOT NULL"),
        id="schedule_id",
        at="slot_at",
        instant="slot",
        reason="last_error",
        order=("schedule_id",),
        list=lambda tenant: link("schedules", tenant=tenant, status=ShownStatus.ACTIVE.value),
        item="schedule",
    ),
)


async def count_kinds(reader: Reader) -> Mapping[Kind, int]:
    """Return how many failures there are of each kind that has any. Counting stops at `MOST_COUNTED`."""
    counts = {kind: await count_all(reader, kind.rows) for kind in KINDS}
    return {kind: count for kind, count in counts.items() if count}


async def read_last(reader: Reader, kind: Kind, names: Sequence[str], limit: int) -> Sequence[Failure]:
    """Return up to `limit` failures of each tenant, from the end of the index on."""
    rows = await reader.fetch_each(kind.last, [{"tenant_id": name, "limit": limit} for name in names])
    reasons = await _reasons(reader, kind, rows)
    return [
        Failure(kind, row["tenant_id"], row["id"], row["at"], reason) for row, reason in zip(rows, reasons, strict=True)
    ]


async def _reasons(reader: Reader, kind: Kind, rows: Sequence[Row]) -> Sequence[str]:
    """Return why each row failed. The error of a workflow is in another table."""
    if kind.reason != "failure_code":
        return [row["reason"] or "" for row in rows]
    keys = [Key(row["tenant_id"], row["id"]) for row in rows]
    found = await reader.fetch_each(_SQL["workflow_error"], [key._asdict() for key in keys])
    errors = {Key(row["tenant_id"], row["workflow_id"]): json.loads(row["error"]) for row in found}
    return [why_failed(row["reason"], errors.get(key)) for key, row in zip(keys, rows, strict=True)]
