"""The methods of the client for runs (job graphs)."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from timer_service.client.answers import read_rows
from timer_service.client.checks import check_choice, check_count, check_identifier, check_list, check_mapping, optional
from timer_service.client.events import JobReady, JobSkipped, RunCompleted, RunRejected, RunStuck
from timer_service.client.models import Outcome, Run, RunGraph, RunJob
from timer_service.client.names import ReportedStatus, RunStatus
from timer_service.client.resource import Resource
from timer_service.client.view import View


class _About(View):
    """What a reply to `get-run` has beside the run and its jobs."""

    counts: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, bool] = field(default_factory=dict)


class Runs(Resource):
    """Methods for runs, as `TimerClient.runs`. They raise the same exceptions as `TimerClient`."""

    _id = ("runId", "run_id")

    async def start(
        self,
        tenant: str,
        run_id: str,
        jobs: Sequence[Mapping[str, Any]],
        *,
        groups: Sequence[str] = (),
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Start a run. `jobs` are in the form of docs/runs.md. `resolve_group` adds the jobs of each group later."""
        names = [check_identifier("groups", group) for group in check_list("groups", groups)]
        return await self._send(
            "StartRun", tenant, run_id, timeout_seconds, jobs=check_list("jobs", jobs), groups=names
        )

    async def resolve_group(
        self, tenant: str, run_id: str, group: str, jobs: Sequence[Mapping[str, Any]], *, timeout_seconds: float = 10
    ) -> Outcome:
        """Add the jobs of a group."""
        fields = {"groupName": check_identifier("group", group), "jobs": check_list("jobs", jobs)}
        return await self._send("ResolveGroup", tenant, run_id, timeout_seconds, **fields)

    async def report(
        self,
        tenant: str,
        run_id: str,
        job: str,
        status: ReportedStatus,
        *,
        outputs: Mapping[str, Any] | None = None,
        attempt: int | None = None,
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Report the status of a job, and its outputs for the jobs that need it.

        `attempt` is that of the `JobReady`. With it, a late report changes no later attempt of the run.
        """
        fields = {
            "jobName": check_identifier("job", job),
            "status": check_choice("status", status, ReportedStatus),
            "outputs": optional(check_mapping, "outputs", outputs),
            "attempt": optional(check_count, "attempt", attempt),
        }
        return await self._send("ReportJobStatus", tenant, run_id, timeout_seconds, **fields)

    async def cancel(self, tenant: str, run_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Cancel a run: every job that has not ended ends as cancelled, except the `always` jobs."""
        return await self._send("CancelRun", tenant, run_id, timeout_seconds)

    async def retry(self, tenant: str, run_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Run the failed and cancelled jobs of an ended run again, and the jobs that were skipped because of them."""
        return await self._send("RetryRun", tenant, run_id, timeout_seconds)

    async def get(self, tenant: str, run_id: str, *, timeout_seconds: float = 10) -> RunGraph | None:
        """Return a run with all its jobs, or None if it does not exist. Reads every page."""
        pages = await self._connection.find_pages(tenant, "get-run", self._key(run_id), timeout_seconds)
        if not pages:
            return None
        jobs: dict[str, RunJob] = {}
        for job in (RunJob.read(row) for page in pages for row in read_rows(page, "jobs")):
            known = jobs.get(job.name)  # the needs of one job can continue on the next page
            needs = job.needs if known is None else [*known.needs, *job.needs]
            jobs[job.name] = replace(job, needs=needs)
        about = _About.read(pages[-1])
        return RunGraph(Run.read(pages[-1]), about.counts, about.groups, [*jobs.values()])

    def list(self, tenant: str, *, status: RunStatus | None = None, timeout_seconds: float = 10) -> AsyncIterator[Run]:
        """Iterate over the runs of a tenant, open ones first, each newest first. `status` filters them."""
        wanted = optional(check_choice, "status", status, RunStatus)
        return self._list("list-runs", "runs", Run, tenant, timeout_seconds, status=wanted)

    def watch(self, tenant: str = "*") -> AsyncIterator[JobReady]:
        """Iterate over `JobReady` events from now on, of a tenant or of all. See `Timers.watch`.

        An executor must not miss an event: it uses `TimerApp` instead (see docs/examples/executor.py).
        """
        return self._connection.events(tenant, "job-ready")

    def watch_all(
        self, tenant: str = "*"
    ) -> AsyncIterator[JobReady | JobSkipped | RunCompleted | RunRejected | RunStuck]:
        """Iterate over all events of runs from now on, of a tenant or of all. See `Timers.watch`.

        These are `JobReady`, `JobSkipped`, `RunCompleted`, `RunRejected` and `RunStuck`.
        """
        return self._connection.events(tenant, "job-ready", "job-skipped", "run-completed", "run-rejected", "run-stuck")
