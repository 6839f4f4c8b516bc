"""The names that the service gives to states and outcomes, as types: a checker of types finds a misspelt name.

A newer service may send other names. The client returns them as they are.
"""

from typing import Literal

TimerState = Literal["Scheduled", "Reached", "Expired", "Cancelled", "Failed"]
"""The state of a timer."""

SignalStatus = Literal["active", "paused", "fired", "resolved", "cancelled"]
"""The status of a work signal."""

FiringStatus = Literal["queued", "enqueued", "failed"]
"""The status of a firing; `enqueued`: the signal has fired."""

RunStatus = Literal["running", "cancelling", "success", "failed", "cancelled", "rejected"]
"""The status of a run; `cancelling`: only its `always` jobs still run."""

ReportedStatus = Literal[
    "dispatched", "running", "success", "failed", "cancelled", "skipped", "timed_out_stale", "drift_dropped"
]
"""A status of a job that a worker can report."""

JobStatus = Literal["pending"] | ReportedStatus
"""The status of a job."""

ScheduleStatus = Literal["active", "paused", "ended"]
"""The status of a schedule."""

EndReason = Literal["end_at", "max_count", "no_more_slots"]
"""Why a schedule has ended."""

SkipReason = Literal["busy", "exists", "cancelled", "over_quota"]
"""Why a slot started no workflow."""

CalendarUnit = Literal["days", "weeks", "months"]
"""The unit of a calendar interval."""

CatchUpPolicy = Literal["last", "skip", "all"]
"""Which slots fire that are more than `late_by` late: only the newest if all are that late, none, or all."""

WhenBusy = Literal["skip", "queue", "replace"]
"""What becomes of a workflow whose concurrency key is busy."""
WorkflowStatus = Literal["queued", "waiting", "running", "parked", "completed", "failed", "cancelled"]
"""The status of a workflow."""

EffectKind = Literal["step", "sleep", "message"]
"""The kind of an effect of a workflow."""

EffectStatus = Literal["open", "done", "failed"]
"""The status of an effect of a workflow."""

OutcomeName = Literal[
    "scheduled",
    "rescheduled",
    "updated",
    "cancelled",
    "cancelling",
    "retried",
    "unchanged",
    "not_found",
    "already_reached",
    "already_expired",
    "ignored_reached",
    "over_quota",
    "created",
    "created_invalid",
    "exists",
    "transitioned",
    "paused",
    "activated",
    "resolved",
    "already_fired",
    "already_ended",
    "ended",
    "resumed",
    "deleted",
    "triggered",
    "backfilling",
    "nothing_due",
    "queued",
    "skipped_busy",
    "started",
    "sent",
    "kept",
    "mailbox_full",
    "run_rejected",
    "unknown_group",
    "recorded",
    "not_kept",
    "unknown_job",
    "ignored_not_ready",
    "parked",
    "resubmitted",
    "dropped",
    "stored",
]
"""How a command ended. The page of each kind of resource explains its outcomes. `stored`: it waits in an outbox."""
