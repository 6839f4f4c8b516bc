"""Histories and orders of delivery for which docs/runs.md promises that the order does not matter."""

from collections.abc import Sequence
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.simulation.run_histories import resolves, starts
from tests.simulation.run_model import RunName, RunsModel
from tests.simulation.service import Sent
from timer_service.core.message import Position

_RUN = RunName("acme", "r1")


@st.composite
def executed_runs(draw: st.DrawFn) -> list[Sent]:
    """Draw a run as an executor plays it: it reports only jobs that are ready, and resolves each group once."""
    model = RunsModel()
    history: list[Sent] = []

    def send(kind: str, fields: Any) -> str:
        sent = Sent(kind, _RUN.tenant, {"runId": _RUN.run, **fields})
        history.append(sent)
        outcome = model.command(kind, sent.payload, Position(1, len(history)), 0)
        model.commit()
        return outcome

    if draw(st.booleans()):
        send("CancelRun", {})
    assume(send("StartRun", _timeless(draw(starts()))) == "started")
    run = model.runs[_RUN]
    for _ in range(draw(st.integers(1, 8))):
        open_groups = [name for name, members in run.groups.items() if members is None]
        ready = [name for name, job in run.jobs.items() if job.ready and not job.ended]
        if open_groups and (not ready or draw(st.booleans())):
            fields = {**_timeless(draw(resolves())), "groupName": draw(st.sampled_from(open_groups))}
            assume(send("ResolveGroup", fields) == "resolved")
        elif ready:
            status = draw(st.sampled_from(["success", "success", "failed", "running"]))
            report: dict[str, Any] = {"jobName": draw(st.sampled_from(ready)), "status": status}
            if draw(st.integers(0, 3)) == 3:
                report["outputs"] = {"n": len(history)}
            send("ReportJobStatus", report)
    return history


def _timeless(fields: Any) -> dict[str, Any]:
    jobs = [{key: value for key, value in job.items() if key != "staleAfterSeconds"} for job in fields["jobs"]]
    return {**fields, "jobs": jobs}


@st.composite
def promised_run_orders(draw: st.DrawFn, history: Sequence[Sent]) -> list[int]:
    """Draw orders of indexes in which the reports keep theirs, and everything else comes at any time."""
    order = [index for index, sent in enumerate(history) if sent.type == "ReportJobStatus"]
    for index, sent in enumerate(history):
        if sent.type != "ReportJobStatus":
            order.insert(draw(st.integers(0, len(order))), index)
    return order


def ends_of_runs(model: RunsModel) -> dict[RunName, Any]:
    """Return what does not depend on the order of delivery: what runs and jobs ended as, and what was said of that."""
    told = {each for each in model.expected_events if each.type != "JobReady"}
    return {
        name: (
            run.status,
            {job: (each.status, each.outputs) for job, each in run.jobs.items()},
            {each for each in told if each.run == name},
        )
        for name, run in model.runs.items()
    }
