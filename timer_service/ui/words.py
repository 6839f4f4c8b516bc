"""Codes in words. A code of a newer version of the service is shown as it is."""

from collections.abc import Mapping

from timer_service.runs.messages import FlawCode
from timer_service.schedules.messages import SkipReason
from timer_service.workflows.messages import FailureCode

_FLAWS: Mapping[str, str] = {
    FlawCode.CYCLE: "jobs need each other in a circle",
    FlawCode.UNKNOWN_UPSTREAM: "a job needs a job or group that does not exist",
    FlawCode.DUPLICATE_JOB: "two jobs have one name",
    FlawCode.TOO_LARGE: "too many jobs or needs, or too large ones",
}
_FAILURES: Mapping[str, str] = {
    FailureCode.STEP_FAILED: "a step failed",
    FailureCode.WORKFLOW_ERROR: "the function raised an error",
    FailureCode.DEADLINE: "its deadline passed",
    FailureCode.CRASHED: "its workers died or lost the lease, each time",
    FailureCode.TOO_LARGE: "it has too many effects, or its results are too large",
}
_SKIPS: Mapping[str, str] = {
    SkipReason.BUSY: "its concurrency key was busy",
    SkipReason.EXISTS: "a workflow with its id existed",
    SkipReason.CANCELLED: "its workflow was cancelled before",
    SkipReason.OVER_QUOTA: "the tenant was at a limit",
}
_UPSTREAM_FAILED = "upstream_failed: "


def why_rejected(code: str) -> str:
    """Return why the graph of a run is invalid."""
    return _FLAWS.get(code, code)


def why_failed(code: str, error: Mapping[str, str] | None) -> str:
    """Return why a workflow failed. The text of a step's error names the step."""
    words = _FAILURES.get(code, code)
    if error is None:
        return words
    parts = [error.get("message")] if code == FailureCode.STEP_FAILED else [error["type"], error.get("message")]
    return ": ".join(part for part in parts if part) or words


def why_skipped(reason: str) -> str:
    """Return why a slot of a schedule started no workflow."""
    return _SKIPS.get(reason, reason)


def failed_upstream(reason: str) -> str | None:
    """Return the job because of which the service skipped a job, or None for another reason."""
    return reason.removeprefix(_UPSTREAM_FAILED) if reason.startswith(_UPSTREAM_FAILED) else None
