"""Histories and orders of publishing for which docs/runs.md guarantees the same final state."""

from collections.abc import Sequence
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.simulation.run_histories import resolves, starts
from tests.simulation.run_model import RunName, RunsModel
from tests.simulation.service import SentCommand
from timer_service.core.values.message import Position

_RUN = RunName("acme", "r1")


@st.composite
def executed_runs(draw: st.DrawFn) -> list[SentCommand]:
    """Draw the commands of an executor. It reports only ready jobs and resolves each group once."""
    model = RunsModel()
    history: list[SentCommand] = []

    def send(kind: str, fields: Any) -> str:
        sent = SentCommand(kind, _RUN.tenant, {"runId": _RUN.run, **fields})
        history.append(sent)
        outcome = model.command(kind, sent.payload, Position(1, len(history)), 0)
        model.commit()
        return outcome

    if draw(st.booleans()):
        send("CancelRun", {})  # it cancels nothing, because it comes first
    assume(send("StartRun", _without_stale_timeouts(draw(starts()))) == "started")
    run = model.runs[_RUN]
    for _ in range(draw(st.integers(1, 8))):
        open_groups = [name for name, members in run.groups.items() if members is None]
        ready = [name for name, job in run.jobs.items() if job.ready and not job.ended]
        if open_groups and (not ready or draw(st.booleans())):
            fields = {**_without_stale_timeouts(draw(resolves())), "groupName": draw(st.sampled_from(open_groups))}
            assume(send("ResolveGroup", fields) == "resolved")
        elif ready:
            status = draw(st.sampled_from(["success", "success", "failed", "running"]))
            report: dict[str, Any] = {"jobName": draw(st.sampled_from(ready)), "status": status}
            if draw(st.integers(0, 3)) == 3:
                report["outputs"] = {"n": len(history)}
            send("ReportJobStatus", report)
    return history


def _without_stale_timeouts(fields: Any) -> dict[str, Any]:
    jobs = [{key: value for key, value in job.items() if key != "staleAfterSeconds"} for job in fields["jobs"]]
    return {**fields, "jobs": jobs}


@st.composite
def guaranteed_run_orders(draw: st.DrawFn, history: Sequence[SentCommand]) -> list[int]:
    """Draw orders of indexes in which the reports keep their order. A StartRun or a ResolveGroup may be anywhere."""
    cancels = [index for index, sent in enumerate(history) if sent.type == "CancelRun"]
    order = [index for index, sent in enumerate(history) if sent.type == "ReportJobStatus"]
    for index, sent in enumerate(history):
        if sent.type in {"StartRun", "ResolveGroup"}:
            order.insert(draw(st.integers(0, len(order))), index)
    return [*cancels, *order]


def final_state_of_runs(model: RunsModel) -> dict[RunName, Any]:
    """Return what does not depend on the order of publishing: statuses, outputs, and all events but JobReady."""
    events = {each for each in model.expected_events if each.type != "JobReady"}
    return {
        name: (
            run.status,
            {job: (each.status, each.outputs) for job, each in run.jobs.items()},
            {each for each in events if each.run == name},
        )
        for name, run in model.runs.items()
    }
