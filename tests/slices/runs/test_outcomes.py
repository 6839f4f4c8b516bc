from typing import Any, NamedTuple

from tests.harness.runs import RunConversation, jobs
from timer_service.runs.rules import Outcome

Sent = tuple[str, dict[str, Any]]
"""The type and the fields of a command."""


class Row(NamedTuple):
    """A row of the table in contracts/outcomes.md."""

    before: list[Sent]
    """The commands that were handled before."""
    command: Sent
    outcome: Outcome


def report(status: str, job: str = "a") -> Sent:
    return "ReportJobStatus", {"jobName": job, "status": status}


START: Sent = ("StartRun", {"jobs": jobs({"a": [], "b": ["a"]})})
CYCLE: Sent = ("StartRun", {"jobs": jobs({"a": ["a"]}), "groups": ["g"]})
WITH_GROUP: Sent = ("StartRun", {"jobs": jobs({"a": [], "b": ["a", {"group": "g"}]}), "groups": ["g"]})
RESOLVE: Sent = ("ResolveGroup", {"groupName": "g", "jobs": jobs({"c": []})})
OTHER_JOBS: Sent = ("ResolveGroup", {"groupName": "g", "jobs": jobs({"d": []})})
RESOLVE_WITH_CYCLE: Sent = ("ResolveGroup", {"groupName": "g", "jobs": jobs({"c": ["b"]})})
CANCEL: Sent = ("CancelRun", {})
RETRY: Sent = ("RetryRun", {})
ALWAYS: Sent = ("StartRun", {"jobs": jobs({"a": [], "clean": ["a"]}, always=["clean"])})
FAILED = [START, report("failed")]
DONE = [START, report("success"), report("success", "b")]

ROWS = {
    "start: none": Row([], START, Outcome.STARTED),
    "start: cancelled before it was started": Row([CANCEL], START, Outcome.STARTED),
    "start: none, cyclic": Row([], CYCLE, Outcome.RUN_REJECTED),
    "start: started by the same graph": Row([START], START, Outcome.UNCHANGED),
    "start: rejected, the same graph": Row([CYCLE], CYCLE, Outcome.UNCHANGED),
    "start: started, another graph": Row([START], WITH_GROUP, Outcome.EXISTS),
    "start: rejected, another graph": Row([CYCLE], START, Outcome.EXISTS),
    "resolve: not resolved": Row([WITH_GROUP], RESOLVE, Outcome.RESOLVED),
    "resolve: not resolved, cyclic": Row([WITH_GROUP], RESOLVE_WITH_CYCLE, Outcome.RUN_REJECTED),
    "resolve: resolved, the same": Row([WITH_GROUP, RESOLVE], RESOLVE, Outcome.UNCHANGED),
    "resolve: resolved, others": Row([WITH_GROUP, RESOLVE], OTHER_JOBS, Outcome.EXISTS),
    "resolve: no such group": Row([START], RESOLVE, Outcome.UNKNOWN_GROUP),
    "resolve: none": Row([], RESOLVE, Outcome.KEPT),
    "resolve: cancelled": Row([WITH_GROUP, CANCEL], RESOLVE, Outcome.ALREADY_ENDED),
    "resolve: cancelled before it was started": Row([CANCEL], RESOLVE, Outcome.KEPT),
    "report: cancelled before it was started": Row([CANCEL], report("success"), Outcome.KEPT),
    "resolve: rejected": Row([CYCLE], RESOLVE, Outcome.ALREADY_ENDED),
    "report: running": Row([START], report("running"), Outcome.RECORDED),
    "report: ready, success": Row([START], report("success"), Outcome.RECORDED),
    "report: not ready, failed": Row([START], report("failed", "b"), Outcome.RECORDED),
    "report: ended, the same": Row([START, report("failed")], report("failed"), Outcome.UNCHANGED),
    "report: ended, another": Row([START, report("failed")], report("success"), Outcome.ALREADY_ENDED),
    "report: not ready, running": Row([START], report("running", "b"), Outcome.IGNORED_NOT_READY),
    "report: not ready, success": Row([START], report("success", "b"), Outcome.IGNORED_NOT_READY),
    "report: no such job": Row([START], report("success", "c"), Outcome.UNKNOWN_JOB),
    "report: none": Row([], report("success"), Outcome.KEPT),
    "report: may be a job of an open group": Row([WITH_GROUP], report("success", "c"), Outcome.KEPT),
    "cancel: running": Row([START], CANCEL, Outcome.CANCELLED),
    "cancel: none": Row([], CANCEL, Outcome.NOT_FOUND),
    "cancel: cancelled": Row([START, CANCEL], CANCEL, Outcome.UNCHANGED),
    "cancel: cancelled before it was started": Row([CANCEL], CANCEL, Outcome.NOT_FOUND),
    "cancel: ended": Row(DONE, CANCEL, Outcome.ALREADY_ENDED),
    "cancel: rejected": Row([CYCLE], CANCEL, Outcome.ALREADY_ENDED),
    "cancel: only always jobs are open": Row([ALWAYS, CANCEL], CANCEL, Outcome.UNCHANGED),
    "resolve: only always jobs are open": Row([ALWAYS, CANCEL], RESOLVE, Outcome.ALREADY_ENDED),
    "report: an earlier attempt": Row(
        [*FAILED, RETRY], ("ReportJobStatus", {"jobName": "a", "status": "failed", "attempt": 1}), Outcome.ALREADY_ENDED
    ),
    "retry: failed": Row(FAILED, RETRY, Outcome.RETRIED),
    "retry: timed out": Row([START, report("timed_out_stale")], RETRY, Outcome.RETRIED),
    "retry: cancelled": Row([START, CANCEL], RETRY, Outcome.RETRIED),
    "retry: none": Row([], RETRY, Outcome.NOT_FOUND),
    "retry: only kept commands": Row([report("success")], RETRY, Outcome.NOT_FOUND),
    "retry: running": Row([START], RETRY, Outcome.UNCHANGED),
    "retry: retried": Row([*FAILED, RETRY], RETRY, Outcome.UNCHANGED),
    "retry: only always jobs are open": Row([ALWAYS, CANCEL], RETRY, Outcome.UNCHANGED),
    "retry: success": Row(DONE, RETRY, Outcome.ALREADY_ENDED),
    "retry: rejected": Row([CYCLE], RETRY, Outcome.ALREADY_ENDED),
    "retry: nothing to run": Row([START, report("drift_dropped")], RETRY, Outcome.ALREADY_ENDED),
}


async def outcome_of(runs: RunConversation, run: str, row: Row) -> Any:
    """Return the outcome of the command of a row."""
    for message, fields in row.before:
        await runs.request(message, runId=run, **fields)
    message, fields = row.command
    return (await runs.request(message, runId=run, **fields))["outcome"]


async def test_every_outcome(runs: RunConversation) -> None:
    """Each command on a run in each state has the outcome of contracts/outcomes.md, and the reply names it."""
    found = {name: await outcome_of(runs, name, row) for name, row in ROWS.items()}
    assert found == {name: row.outcome for name, row in ROWS.items()}


def test_rows_cover_all_outcomes() -> None:
    """The rows have every outcome except those with tests of their own."""
    others = {Outcome.NOT_KEPT, Outcome.OVER_QUOTA}
    assert {row.outcome for row in ROWS.values()} == set(Outcome) - others
