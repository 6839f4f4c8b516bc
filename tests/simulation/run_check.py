"""Holds stored rows and published events of runs against the model of runs."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from tests.simulation.run_model import Announced, JobModel, RunModel, RunName, RunsModel
from tests.simulation.service import Row, Service
from timer_service.core.message import Position

_EVENTS = {"JobReady": "jobName", "JobSkipped": "jobName", "RunCompleted": "status", "RunRejected": "code"}


def follow_sweep(model: RunsModel, service: Service, now: int) -> None:
    """Tell the model what a sweep did, if that may be: catch up with runs, end stale jobs."""
    runs = {_name(row): row for row in service.rows("runs")}
    caught_up = [name for name, run in model.runs.items() if not run.evaluated and runs[name]["evaluated"]]
    stale = [
        (_name(row), row["job_name"])
        for row in service.rows("run_jobs")
        if row["status"] == "timed_out_stale"
        and model.runs[_name(row)].jobs[row["job_name"]].status != "timed_out_stale"
    ]
    assert not (stale and service.broker.unsettled), "jobs were timed out while reports of them may be waiting"
    model.swept(caught_up, stale, now)


def check_runs(model: RunsModel, service: Service) -> None:
    """Assert that the tables hold exactly what the model does."""
    rows = {_name(row): row for row in service.rows("runs")}
    jobs: defaultdict[RunName, dict[str, Row]] = defaultdict(dict)
    for row in service.rows("run_jobs"):
        jobs[_name(row)][row["job_name"]] = row
    assert rows.keys() == model.runs.keys()
    for name, run in model.runs.items():
        _check_run(run, rows[name])
        assert jobs[name].keys() == run.jobs.keys(), f"{name} has other jobs"
        for job, wanted in run.jobs.items():
            _check_job(run, job, wanted, jobs[name][job])
    _check_needs(model, service)
    _check_kept(model, service)


def _check_run(run: RunModel, row: Row) -> None:
    assert row["status"] == run.status, f"{run.name} is {row['status']}, not {run.status}"
    assert (row["digest"] is not None) == (run.graph is not None)
    assert (row["open_jobs"], row["open_groups"]) == (run.open_jobs, run.open_groups), f"{run.name} counts wrongly"
    assert bool(row["evaluated"]) or not run.evaluated, f"{run.name} is left to the sweep"
    if run.status is not None:
        position = Position(row["position_epoch"], row["position_sequence"])
        assert position == run.position, f"{run.name} stands at {position}, not {run.position}"


def _check_job(run: RunModel, name: str, job: JobModel, row: Row) -> None:
    where = f"{name} of {run.name}"
    assert row["status"] == job.status, f"{where} is {row['status']}, not {job.status}"
    assert row["group_name"] in {None} | run.groups.keys()
    assert (row["ready_at"] is not None) == job.ready, f"{where}: ready is wrong, {job}"
    assert (None if row["outputs"] is None else json.loads(row["outputs"])) == job.outputs, where
    assert row["stale_at"] == job.stale_at, f"{where} is stale at {row['stale_at']}, not {job.stale_at}"
    if job.waits and run.evaluated:
        open_needs = sum(each == name and not run.jobs[up].ended for each, up in run.edges())
        wanted = (open_needs, len(run.unresolved(job)))
        assert (row["open_needs"], row["open_groups"]) == wanted, f"{where} counts wrongly: {dict(row)}, not {wanted}"


def _check_needs(model: RunsModel, service: Service) -> None:
    found = {(_name(row), row["job_name"], row["upstream_name"]): row["if_failed"] for row in service.rows("run_needs")}
    wanted = {
        (name, *edge): "skip" if skip else "run"
        for name, run in model.runs.items()
        for edge, skip in run.edges().items()
    }
    rejected = {name for name, run in model.runs.items() if run.status == "rejected"}
    assert _without(found, rejected) == _without(wanted, rejected)


def _without(edges: Mapping[tuple[RunName, str, str], str], rejected: set[RunName]) -> dict[Any, str]:
    """Leave out what is kept of runs that can't go on: that is nobody's business."""
    return {key: if_failed for key, if_failed in edges.items() if key[0] not in rejected}


def _check_kept(model: RunsModel, service: Service) -> None:
    """Commands that may still be applied are kept; no others of runs that go on, for they would be kept for ever."""
    found: defaultdict[RunName, set[Position]] = defaultdict(set)
    for row in service.rows("run_pending_commands"):
        found[_name(row)].add(Position(row["position_epoch"], row["position_sequence"]))
    for name, run in model.runs.items():
        if run.graph is None or run.going:
            assert found[name] == run.kept.keys(), f"{name} keeps {found[name]}, not {run.kept.keys()}"


def check_run_events(model: RunsModel, service: Service) -> None:
    """Assert that exactly the events were published that had to be, each once, each under an id of its own."""
    events = [event for event in service.events() if event["type"] in {*_EVENTS, "RunStuck"}]
    found = Counter(map(_announced, events))
    assert found == model.announced, f"missing {model.announced - found}, too many {found - model.announced}"
    assert len({event["id"] for event in events}) == len(events)
    for event in events:
        told = _announced(event)
        if told.type == "JobReady":
            assert event["payload"]["upstreamJobOutputs"] == model.outputs[told], told
        if told.type == "RunCompleted":
            assert event["payload"]["counts"] == model.counts[told.run], told


def check_deleted(model: RunsModel, service: Service) -> None:
    """Assert that retention has deleted every run that is over, whole, and has left the others whole."""
    going = {name for name, run in model.runs.items() if run.status == "running"}
    tables = ("runs", "run_jobs", "run_needs", "run_groups", "run_group_needs", "run_pending_commands")
    for table in tables:
        left = {_name(row) for row in service.rows(table)}
        assert left <= going, f"{table} has rows of {left - going}, which are over"
    assert {_name(row) for row in service.rows("runs")} == going


def _announced(event: Mapping[str, Any]) -> Announced:
    payload = event["payload"]
    name = RunName(payload["tenantId"], payload["runId"])
    assert event["type"] in _EVENTS, f"a fault of the service: {event}"
    return Announced(event["type"], name, payload[_EVENTS[event["type"]]])


def _name(row: Row) -> RunName:
    return RunName(row["tenant_id"], row["run_id"])
