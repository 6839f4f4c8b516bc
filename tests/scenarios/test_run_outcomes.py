from typing import Any, NamedTuple

from tests.support.runs import RunConversation, jobs
from timer_service.needs.rules import Verdict

Told = tuple[str, dict[str, Any]]
"""A command's type and what is in it."""


class Row(NamedTuple):
    """A row of the table in docs/needs.md."""

    before: list[Told]
    """What was told and handled already."""
    command: Told
    outcome: Verdict
    newer: Told | None = None
    """What was told after the command and is delivered before it."""


def report(status: str, job: str = "a") -> Told:
    return "ReportJobStatus", {"jobName": job, "status": status}


START: Told = ("StartRun", {"jobs": jobs({"a": [], "b": ["a"]})})
CYCLE: Told = ("StartRun", {"jobs": jobs({"a": ["a"]}), "groups": ["g"]})
WITH_GROUP: Told = ("StartRun", {"jobs": jobs({"a": [], "b": ["a", {"group": "g"}]}), "groups": ["g"]})
RESOLVE: Told = ("ResolveGroup", {"groupName": "g", "jobs": jobs({"c": []})})
OTHERWISE: Told = ("ResolveGroup", {"groupName": "g", "jobs": jobs({"d": []})})
CLOSING: Told = ("ResolveGroup", {"groupName": "g", "jobs": jobs({"c": ["b"]})})
CANCEL: Told = ("CancelRun", {})
DONE = [START, report("success"), report("success", "b")]

ROWS = {
    "start: none": Row([], START, Verdict.STARTED),
    "start: cancelled before it was started": Row([CANCEL], START, Verdict.STARTED),
    "start: none, cyclic": Row([], CYCLE, Verdict.RUN_REJECTED),
    "start: known by a newer CancelRun": Row([], START, Verdict.IGNORED_STALE, newer=CANCEL),
    "start: started by the same graph": Row([START], START, Verdict.UNCHANGED),
    "start: rejected, the same graph": Row([CYCLE], CYCLE, Verdict.UNCHANGED),
    "start: started, another graph": Row([START], WITH_GROUP, Verdict.EXISTS),
    "start: rejected, another graph": Row([CYCLE], START, Verdict.EXISTS),
    "resolve: not resolved": Row([WITH_GROUP], RESOLVE, Verdict.RESOLVED),
    "resolve: not resolved, cyclic": Row([WITH_GROUP], CLOSING, Verdict.RUN_REJECTED),
    "resolve: resolved, the same": Row([WITH_GROUP, RESOLVE], RESOLVE, Verdict.UNCHANGED),
    "resolve: resolved, others": Row([WITH_GROUP, RESOLVE], OTHERWISE, Verdict.EXISTS),
    "resolve: no such group": Row([START], RESOLVE, Verdict.UNKNOWN_GROUP),
    "resolve: none": Row([], RESOLVE, Verdict.KEPT),
    "resolve: cancelled": Row([WITH_GROUP, CANCEL], RESOLVE, Verdict.ALREADY_ENDED),
    "resolve: cancelled before it was started": Row([CANCEL], RESOLVE, Verdict.ALREADY_ENDED),
    "resolve: rejected": Row([CYCLE], RESOLVE, Verdict.ALREADY_ENDED),
    "resolve: started by a newer StartRun": Row([], RESOLVE, Verdict.IGNORED_STALE, newer=WITH_GROUP),
    "report: under way": Row([START], report("running"), Verdict.RECORDED),
    "report: let go, success": Row([START], report("success"), Verdict.RECORDED),
    "report: not let go, failed": Row([START], report("failed", "b"), Verdict.RECORDED),
    "report: ended, the same": Row([START, report("failed")], report("failed"), Verdict.UNCHANGED),
    "report: ended, another": Row([START, report("failed")], report("success"), Verdict.ALREADY_ENDED),
    "report: a newer one came": Row([START], report("dispatched"), Verdict.IGNORED_STALE, newer=report("running")),
    "report: not let go, running": Row([START], report("running", "b"), Verdict.IGNORED_NOT_READY),
    "report: not let go, success": Row([START], report("success", "b"), Verdict.IGNORED_NOT_READY),
    "report: no such job": Row([START], report("success", "c"), Verdict.UNKNOWN_JOB),
    "report: none": Row([], report("success"), Verdict.KEPT),
    "report: maybe of a group": Row([WITH_GROUP], report("success", "c"), Verdict.KEPT),
    "report: started by a newer StartRun": Row([], report("success"), Verdict.IGNORED_STALE, newer=START),
    "cancel: running": Row([START], CANCEL, Verdict.CANCELLED),
    "cancel: none": Row([], CANCEL, Verdict.NOT_FOUND),
    "cancel: cancelled": Row([START, CANCEL], CANCEL, Verdict.UNCHANGED),
    "cancel: cancelled before it was started": Row([CANCEL], CANCEL, Verdict.UNCHANGED),
    "cancel: ended": Row(DONE, CANCEL, Verdict.ALREADY_ENDED),
    "cancel: rejected": Row([CYCLE], CANCEL, Verdict.ALREADY_ENDED),
    "cancel: started by a newer StartRun": Row([], CANCEL, Verdict.IGNORED_STALE, newer=START),
}


async def outcome(runs: RunConversation, run: str, row: Row) -> Any:
    """Return how the command of a row ends."""
    for message, fields in row.before:
        await runs.tell(message, runId=run, **fields)
    message, fields = row.command
    if row.newer is None:
        return (await runs.tell(message, runId=run, **fields))["outcome"]
    number = runs.sent
    runs.send(message, runId=run, **fields)
    message, fields = row.newer
    runs.send(message, runId=run, **fields)
    await runs.deliver_reversed()
    return runs.reply(number)["outcome"]


async def test_every_outcome(runs: RunConversation) -> None:
    """Each command on a run in each state ends as the table of docs/needs.md says, and is told on request."""
    found = {name: await outcome(runs, name, row) for name, row in ROWS.items()}
    assert found == {name: row.outcome for name, row in ROWS.items()}


def test_no_outcome_is_left_out() -> None:
    """The rows have every verdict there is."""
    assert {row.outcome for row in ROWS.values()} == set(Verdict)
