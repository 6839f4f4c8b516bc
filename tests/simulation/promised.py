"""Histories and orders of delivery for which docs/runs.md and docs/signals.md promise that the order does not matter."""

from collections.abc import Sequence
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.simulation.run_histories import resolves, starts
from tests.simulation.run_model import RunName, RunsModel
from tests.simulation.service import Sent
from tests.simulation.signal_histories import signal_commands
from tests.simulation.signal_model import SignalsModel
from timer_service.core.message import Position

_RUN = RunName("acme", "r1")
_MAKERS = {"StartRun", "ResolveGroup", "CancelRun"}
_MOVED = {"CreateWorkSignal", "TransitionWorkItem", "CreateWorkItem"}


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


def promised_run_orders(history: Sequence[Sent]) -> st.SearchStrategy[list[int]]:
    """Draw orders in which the reports keep theirs, and everything else comes at any time."""
    return _orders(history, lambda sent: sent.type in _MAKERS)


@st.composite
def promised_signals(draw: st.DrawFn) -> tuple[list[Sent], list[int]]:
    """Draw a history in which no signal is created twice, and an order of delivery: see the model of signals."""
    history = draw(signal_commands(unique_events=True))
    model = SignalsModel()
    created: set[str] = set()
    items: set[str] = set()
    for index, sent in enumerate(history):
        outcome = model.command(sent.type, sent.payload, Position(1, index + 1), f"message-{index + 1}")
        if sent.type == "CreateWorkSignal":
            assume(outcome == "unchanged" or (outcome.startswith("created") and sent.fields["signalId"] not in created))
            created.add(sent.fields["signalId"])
        if sent.type == "CreateWorkItem":
            assume(sent.fields["workItemId"] not in items)
            items.add(sent.fields["workItemId"])
    return history, draw(_orders(history, lambda sent: sent.type in _MOVED))


@st.composite
def _orders(draw: st.DrawFn, history: Sequence[Sent], moves: Any) -> list[int]:
    """Draw orders of indexes in which what does not move keeps its order."""
    order = [index for index, sent in enumerate(history) if not moves(sent)]
    for index, sent in enumerate(history):
        if moves(sent):
            order.insert(draw(st.integers(0, len(order))), index)
    return order


def ends_of_runs(model: RunsModel) -> dict[RunName, Any]:
    """Return what does not depend on the order of delivery: what runs and jobs ended as, and what was said of that."""
    told = {each for each in model.announced if each.type != "JobReady"}
    return {
        name: (
            run.status,
            {job: (each.status, each.ready, each.outputs) for job, each in run.jobs.items()},
            {each for each in told if each.run == name},
        )
        for name, run in model.runs.items()
    }
