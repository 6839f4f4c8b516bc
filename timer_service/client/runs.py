"""The methods of the client for runs (job graphs)."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from timer_service.client.answers import read_cursor, read_rows
from timer_service.client.checks import check_choice, check_identifier, check_list, check_mapping
from timer_service.client.connection import Connection
from timer_service.client.models import Outcome, ReportedStatus, Run, RunGraph, RunJob, RunStatus
from timer_service.client.view import View


class _About(View):
    """What a reply to `get-run` has beside the run and its jobs."""

    counts: Mapping[str, int] = {}
    groups: Mapping[str, bool] = {}


class Runs:
    """Methods for runs, as `TimerClient.runs`. They raise the same exceptions as `TimerClient`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def start(
        self,
        tenant: str,
        run: str,
        jobs: Sequence[Mapping[str, Any]],
        *,
        groups: Sequence[str] = (),
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Start a run. `jobs` are in the form of docs/runs.md. `resolve_group` adds the jobs of each group later."""
        names = [check_identifier("groups", group) for group in check_list("groups", groups)]
        fields = {"jobs": check_list("jobs", jobs), "groups": names}
        return await self._send("StartRun", tenant, run, fields, timeout_seconds)

    async def resolve_group(
        self, tenant: str, run: str, group: str, jobs: Sequence[Mapping[str, Any]], *, timeout_seconds: float = 10
    ) -> Outcome:
        """Add the jobs of a group."""
        fields = {"groupName": check_identifier("group", group), "jobs": check_list("jobs", jobs)}
        return await self._send("ResolveGroup", tenant, run, fields, timeout_seconds)

    async def report(
        self,
        tenant: str,
        run: str,
        job: str,
        status: str,
        *,
        outputs: Mapping[str, Any] | None = None,
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Report the status of a job, and its outputs for the jobs that need it."""
        fields = {"jobName": check_identifier("job", job), "status": check_choice("status", status, ReportedStatus)}
        more = {} if outputs is None else {"outputs": check_mapping("outputs", outputs)}
        return await self._send("ReportJobStatus", tenant, run, fields | more, timeout_seconds)

    async def cancel(self, tenant: str, run: str, *, timeout_seconds: float = 10) -> Outcome:
        """Cancel a run: every job that has not ended ends as cancelled."""
        return await self._send("CancelRun", tenant, run, {}, timeout_seconds)

    async def get(self, tenant: str, run: str, *, timeout_seconds: float = 10) -> RunGraph | None:
        """Return a run with all its jobs, or None if it does not exist. Reads every page."""
        question: dict[str, Any] = {"runId": check_identifier("run", run)}
        jobs: dict[str, RunJob] = {}
        while (page := await self._connection.find(tenant, "get-run", question, timeout_seconds)) is not None:
            for job in map(RunJob.read, read_rows(page, "jobs")):
                known = jobs.get(job.name)  # the needs of one job can continue on the next page
                needs = job.needs if known is None else [*known.needs, *job.needs]
                jobs[job.name] = job.model_copy(update={"needs": needs})
            cursor = read_cursor(page, question.get("cursor"))
            if cursor is None:
                about = _About.read(page)
                return RunGraph(Run.read(page), about.counts, about.groups, [*jobs.values()])
            question["cursor"] = cursor
        return None

    def list(self, tenant: str, *, status: str | None = None, timeout_seconds: float = 10) -> AsyncIterator[Run]:
        """Iterate over the runs of a tenant, newest first. `status` filters them."""
        question = {} if status is None else {"status": check_choice("status", status, RunStatus)}
        views = self._connection.pages(tenant, "list-runs", question, "runs", timeout_seconds)
        return (Run.read(view) async for view in views)

    def watch(self, tenant: str = "*") -> AsyncIterator[dict[str, Any]]:
        """Iterate over `JobReady` events from now on, of a tenant or of all. See `TimerClient.watch`.

        An executor must not miss an event: it reads the stream instead (see docs/examples/executor.py).
        """
        return self._connection.events(tenant, "job-ready")

    def watch_all(self, tenant: str = "*") -> AsyncIterator[dict[str, Any]]:
        """Iterate over all events of runs from now on, of a tenant or of all. See `TimerClient.watch`.

        These are `JobReady`, `JobSkipped`, `RunCompleted`, `RunRejected` and `RunStuck`.
        """
        return self._connection.events(tenant, "job-ready", "job-skipped", "run-completed", "run-rejected", "run-stuck")

    async def _send(
        self, message_type: str, tenant: str, run: str, fields: Mapping[str, Any], timeout_seconds: float
    ) -> Outcome:
        named = {"runId": check_identifier("run", run), **fields}
        return await self._connection.send(message_type, tenant, named, timeout_seconds)
