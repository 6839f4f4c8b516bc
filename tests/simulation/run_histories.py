"""Draws commands on few runs with few names, so that many commands are about the same job or group."""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.simulation.run_model import RunName, RunsModel
from tests.simulation.service import SentCommand
from timer_service.core.values.message import Position

STATIC, MEMBERS, GROUPS = ["a", "b", "c", "d"], ["m", "n", "o"], ["g", "h"]
_ENDS = ["success", "success", "failed", "timed_out_stale", "running"]
STATUSES = ["success", "success", "success", "success", "failed", "running", "dispatched", "cancelled", "skipped"]


@st.composite
def _jobs(draw: st.DrawFn, names: Sequence[str], known: Sequence[str], groups: Sequence[str]) -> list[dict[str, Any]]:
    """Draw jobs. Most of them need only earlier or known jobs."""
    jobs: list[dict[str, Any]] = []
    for name in names:
        job: dict[str, Any] = {"name": name}
        pool = [*known, *(each["name"] for each in jobs)]
        if draw(st.integers(0, 19)) == 19:
            pool = [*STATIC, *MEMBERS, "nobody"]
        needs = draw(st.lists(_need_of(pool, groups), max_size=3, unique_by=_named)) if pool or groups else []
        if needs:
            job["needs"] = needs
        if draw(st.integers(0, 5)) == 5:
            job["staleAfterSeconds"] = 60
        if draw(st.integers(0, 4)) == 4:
            job["always"] = True
        jobs.append(job)
    return jobs


def _need_of(pool: Sequence[str], groups: Sequence[str]) -> st.SearchStrategy[Any]:
    policies = st.sampled_from(["skip", "skip", "run"])
    kinds = []
    if pool:
        kinds.append(st.builds(lambda job, policy: _need("job", job, policy), st.sampled_from(pool), policies))
    if groups:
        kinds.append(st.builds(lambda group, policy: _need("group", group, policy), st.sampled_from(groups), policies))
    return st.one_of(kinds)


def _need(kind: str, name: str, policy: str) -> Any:
    if policy == "skip":
        return name if kind == "job" else {"group": name}
    return {kind: name, "ifFailed": policy}


def _named(need: Any) -> str:
    if isinstance(need, str):
        return f"job {need}"
    return f"group {need['group']}" if "group" in need else f"job {need['job']}"


@st.composite
def starts(draw: st.DrawFn) -> Mapping[str, Any]:
    names = STATIC[: draw(st.sampled_from([3, 2, 4, 1, 0]))]
    groups = GROUPS[: draw(st.sampled_from([1, 2, 0]))]
    jobs = draw(_jobs(names, [], groups))
    if jobs and draw(st.integers(0, 39)) == 39:
        jobs.append(jobs[0])
    return {"jobs": jobs, "groups": groups}


@st.composite
def resolves(draw: st.DrawFn) -> Mapping[str, Any]:
    group = draw(st.sampled_from([*GROUPS, "g", "unknown"] if draw(st.integers(0, 9)) == 9 else GROUPS))
    pool = MEMBERS[:2] if group == "g" else MEMBERS[2:]
    names = pool[: draw(st.integers(0, len(pool)))]
    if draw(st.integers(0, 19)) == 19:
        names = [*names, draw(st.sampled_from([*STATIC, *MEMBERS]))]
    known = STATIC[: draw(st.integers(0, 2))]
    needed = [each for each in GROUPS if each != group and draw(st.integers(0, 5)) == 5]
    return {"groupName": group, "jobs": draw(_jobs(names, known, needed))}


@st.composite
def reports(draw: st.DrawFn) -> Mapping[str, Any]:
    fields: dict[str, Any] = {
        "jobName": draw(st.sampled_from(["a", "a", "b", "b", "c", "d", "m", "m", "n", "o"])),
        "status": draw(st.sampled_from(STATUSES)),
    }
    if draw(st.integers(0, 3)) == 3:
        fields["outputs"] = {"n": draw(st.integers(0, 3))}
    if draw(st.integers(0, 5)) == 5:
        fields["droppedJobs"] = draw(
            st.lists(st.sampled_from([*MEMBERS, *STATIC]), min_size=1, max_size=2, unique=True)
        )
    if draw(st.integers(0, 3)) == 3:
        fields["attempt"] = draw(st.sampled_from([1, 1, 2]))
    return fields


_KINDS = ["ReportJobStatus"] * 6 + ["ResolveGroup"] * 3 + ["StartRun", "CancelRun", "RetryRun"]
_FIELDS = {"StartRun": starts, "ResolveGroup": resolves, "ReportJobStatus": reports}


@st.composite
def run_commands(draw: st.DrawFn, most: int = 10) -> list[SentCommand]:
    """Draw commands on one or two runs, in stream order. `most` limits their number."""
    history: list[SentCommand] = []
    if draw(st.integers(0, 5)) < 5:
        history.append(SentCommand("StartRun", "acme", {"runId": "r1", **draw(starts())}))
    for _ in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from(_KINDS))
        fields = draw(_FIELDS[kind]()) if kind in _FIELDS else {}
        run = "r2" if draw(st.integers(0, 7)) == 7 else "r1"
        history.append(SentCommand(kind, "acme", {"runId": run, **fields}))
    return history


@st.composite
def retried_runs(draw: st.DrawFn, most: int = 12) -> list[SentCommand]:
    """Draw the commands of an executor whose jobs often fail. When its run has ended, the run is retried."""
    model, history = RunsModel(), list[SentCommand]()

    def send(kind: str, fields: Mapping[str, Any]) -> None:
        history.append(SentCommand(kind, "acme", {"runId": "r1", **fields}))
        model.command(kind, history[-1].payload, Position(1, len(history)), 0)
        model.commit()

    send("StartRun", draw(starts()))
    run = model.runs[RunName("acme", "r1")]
    for _ in range(draw(st.integers(1, most))):
        ready = [name for name, job in run.jobs.items() if job.ready and not job.ended]
        if not run.is_open:
            send("RetryRun", {})
        elif run.open_groups and draw(st.booleans()):
            send("ResolveGroup", draw(resolves()))
        elif ready and draw(st.integers(0, 5)) > 0:
            report: dict[str, Any] = {"jobName": draw(st.sampled_from(ready)), "status": draw(st.sampled_from(_ENDS))}
            report |= draw(st.sampled_from([{}, {"outputs": {"n": len(history)}}]))
            send("ReportJobStatus", report | draw(st.sampled_from([{}, {"attempt": run.attempt}, {"attempt": 1}])))
        else:
            send("CancelRun", {})
    return history
