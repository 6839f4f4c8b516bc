"""Compares the rows and the published events of runs with the model of runs."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from tests.simulation.run_model import ExpectedEvent, JobModel, RunModel, RunName, RunsModel
from tests.simulation.service import Row, Service
from timer_service.core.values.message import Position

_EVENTS = {"JobReady": "jobName", "JobSkipped": "jobName", "RunCompleted": "status", "RunRejected": "code"}


def follow_sweep(model: RunsModel, service: Service, now: int) -> None:
    """Apply the changes of a sweep to the model: deferred evaluations and stale jobs. Assert that they are allowed."""
    runs = {_name(row): row for row in service.rows("runs")}
    evaluated = [name for name, run in model.runs.items() if not run.evaluated and runs[name]["evaluated"]]
    stale = [
        (_name(row), row["job_name"])
        for row in service.rows("run_jobs")
        if row["status"] == "timed_out_stale"
        and model.runs[_name(row)].jobs[row["job_name"]].status != "timed_out_stale"
    ]
    for name, job in stale:
        stale_at = model.runs[name].jobs[job].stale_at or 0
        left = service.ledger.of_tenants(service.ledger.sent_before(stale_at), [name.tenant])
        assert not left & service.ledger.unapplied, f"{job} of {name} ended as stale before its reports"
    model.apply_sweep(evaluated, stale, now)


def check_runs(model: RunsModel, service: Service) -> None:
    """Assert that the tables equal the model."""
    rows = {_name(row): row for row in service.rows("runs")}
    jobs: defaultdict[RunName, dict[str, Row]] = defaultdict(dict)
    for row in service.rows("run_jobs"):
        jobs[_name(row)][row["job_name"]] = row
    stored = {name: run for name, run in model.runs.items() if run.graph is not None or run.pending}
    assert rows.keys() == stored.keys()
    for name, run in stored.items():
        _check_run(run, rows[name])
        assert jobs[name].keys() == run.jobs.keys(), f"{name} has the wrong jobs"
        for job, wanted in run.jobs.items():
            _check_job(run, job, wanted, jobs[name][job])
    _check_needs(model, service)
    _check_pending(model, service)


def _check_run(run: RunModel, row: Row) -> None:
    assert row["status"] == run.status, f"{run.name} is {row['status']}, not {run.status}"
    assert (row["digest"] is not None) == (run.graph is not None)
    assert row["attempt"] == run.attempt, f"{run.name} is in attempt {row['attempt']}, not {run.attempt}"
    assert (row["open_jobs"], row["open_groups"]) == (run.open_jobs, run.open_groups), f"{run.name} has wrong counts"
    assert bool(row["evaluated"]) or not run.evaluated, f"the evaluation of {run.name} was deferred"
    if run.status is not None:
        position = Position(row["position_epoch"], row["position_sequence"])
        assert position == run.position, f"{run.name} is at {position}, not {run.position}"


def _check_job(run: RunModel, name: str, job: JobModel, row: Row) -> None:
    where = f"{name} of {run.name}"
    assert row["status"] == job.status, f"{where} is {row['status']}, not {job.status}"
    assert (bool(row["always"]), row["attempt"]) == (job.always, job.attempt), where
    assert row["group_name"] in {None} | run.groups.keys()
    assert (row["ready_at"] is not None) == job.ready, f"{where}: ready is wrong, {job}"
    assert (None if row["outputs"] is None else json.loads(row["outputs"])) == job.outputs, where
    assert row["stale_at"] == job.stale_at, f"{where} is stale at {row['stale_at']}, not {job.stale_at}"
    if job.is_waiting and run.evaluated:
        open_needs = sum(each == name and not run.jobs[up].ended for each, up in run.edges())
        wanted = (open_needs, len(run.unresolved(job)))
        assert (row["open_needs"], row["open_groups"]) == wanted, f"{where} has wrong counts: {dict(row)}, not {wanted}"


def _check_needs(model: RunsModel, service: Service) -> None:
    needs, needed_by = (
        {
            (_name(row), row["job_name"], other): if_failed
            for row in service.rows("run_edges")
            for if_failed, others in json.loads(row[column] or "{}").items()
            for other in others
        }
        for column in ("needs", "needed_by")
    )
    assert needs == {(run, job, upstream): if_failed for (run, upstream, job), if_failed in needed_by.items()}
    wanted = {
        (name, *edge): "skip" if skip else "run"
        for name, run in model.runs.items()
        for edge, skip in run.edges().items()
    }
    rejected = {name for name, run in model.runs.items() if run.status == "rejected"}
    assert _without(needs, rejected) == _without(wanted, rejected)


def _without(edges: Mapping[tuple[RunName, str, str], str], rejected: set[RunName]) -> dict[Any, str]:
    """Return the edges of runs that were not rejected. The rows of rejected runs are unspecified."""
    return {key: if_failed for key, if_failed in edges.items() if key[0] not in rejected}


def _check_pending(model: RunsModel, service: Service) -> None:
    """Assert that exactly the commands that may still be applied are pending."""
    found: defaultdict[RunName, set[Position]] = defaultdict(set)
    for row in service.rows("run_pending_commands"):
        found[_name(row)].add(Position(row["position_epoch"], row["position_sequence"]))
    for name, run in model.runs.items():
        assert found[name] == run.pending.keys(), f"{name} keeps {found[name]}, not {run.pending.keys()}"


def check_run_events(model: RunsModel, service: Service) -> None:
    """Assert that exactly the expected events were published, each once and with its own id.

    A job that ended, or ran again, before it was announced has no event.
    """
    events = [event for event in service.events() if event["type"] in {*_EVENTS, "RunStuck"}]
    found, wanted = Counter(map(_read_event, events)), model.expected_events
    missing = [each for each in (wanted - found).elements() if not _may_be_missing(model, each)]
    assert (missing, found - wanted) == ([], Counter())
    assert len({event["id"] for event in events}) == len(events)
    for event in events:
        published = _read_event(event)
        if published.type == "JobReady":
            assert event["payload"]["upstreamJobOutputs"] == model.outputs[published], published
        if published.type == "RunCompleted":
            assert event["payload"]["counts"] == model.counts[published], published


def _may_be_missing(model: RunsModel, event: ExpectedEvent) -> bool:
    job = model.runs[event.run].jobs.get(event.detail)
    if job is None or event.type not in {"JobReady", "JobSkipped"}:
        return False
    return job.attempt > event.attempt or (event.type == "JobReady" and job.ended)


def check_deleted(model: RunsModel, service: Service) -> None:
    """Assert that retention has deleted every settled run completely, and no row of the running runs."""
    running = {name for name, run in model.runs.items() if run.status in {"running", "cancelling"}}
    tables = (
        "runs",
        "run_jobs",
        "run_edges",
        "run_groups",
        "run_group_needs",
        "run_pending_commands",
        "run_announcements",
    )
    for table in tables:
        left = {_name(row) for row in service.rows(table)}
        assert left <= running, f"{table} has rows of {left - running}, which are settled"
    assert {_name(row) for row in service.rows("runs")} == running


def _read_event(event: Mapping[str, Any]) -> ExpectedEvent:
    payload = event["payload"]
    name = RunName(payload["tenantId"], payload["runId"])
    assert event["type"] in _EVENTS, f"a bug in the service: {event}"
    return ExpectedEvent(event["type"], name, payload[_EVENTS[event["type"]]], payload.get("attempt", 1))


def _name(row: Row) -> RunName:
    return RunName(row["tenant_id"], row["run_id"])
