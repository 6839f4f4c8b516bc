"""Runs: the part of the client that is about job graphs."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from timer_service.client.arguments import check_identifier, check_run_status, check_tenant
from timer_service.client.link import Link
from timer_service.client.run_views import Run, RunGraph, RunJob
from timer_service.client.views import Outcome


class Runs:
    """Speaks the contracts of runs; `TimerClient.runs` is one.

    As there, ValueError names the argument that can't be used, `CommandError` says why the service rejected a command,
    `QueryError` why it can't tell, and `NoAnswerError` that there was no answer within `timeout_seconds`.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    async def start(
        self,
        tenant: str,
        run: str,
        jobs: Sequence[Mapping[str, Any]],
        *,
        groups: Sequence[str] = (),
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Start a run of jobs, written as in docs/runs.md, and of groups whose jobs are named later."""
        fields = {"jobs": list(jobs), "groups": list(groups)}
        return await self._tell("StartRun", tenant, run, fields, timeout_seconds)

    async def resolve_group(
        self, tenant: str, run: str, group: str, jobs: Sequence[Mapping[str, Any]], *, timeout_seconds: float = 10
    ) -> Outcome:
        """Name the jobs of a group."""
        fields = {"groupName": check_identifier("group", group), "jobs": list(jobs)}
        return await self._tell("ResolveGroup", tenant, run, fields, timeout_seconds)

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
        """Tell how far a job has come, and what it has put out for those that need it."""
        fields = {"jobName": check_identifier("job", job), "status": status}
        more = {} if outputs is None else {"outputs": outputs}
        return await self._tell("ReportJobStatus", tenant, run, fields | more, timeout_seconds)

    async def cancel(self, tenant: str, run: str, *, timeout_seconds: float = 10) -> Outcome:
        """End every job of a run that has not ended."""
        return await self._tell("CancelRun", tenant, run, {}, timeout_seconds)

    async def get(self, tenant: str, run: str, *, timeout_seconds: float = 10) -> RunGraph | None:
        """Return a run with all its jobs, asking for page after page, or None when there is none."""
        question: dict[str, Any] = {"runId": check_identifier("run", run)}
        jobs: dict[str, RunJob] = {}
        while (page := await self._link.find(tenant, "get-run", question, timeout_seconds)) is not None:
            for job in map(RunJob.read, page["jobs"]):
                known = jobs.get(job.name)  # one with many needs goes on on the next page
                jobs[job.name] = job if known is None else replace(job, needs=[*known.needs, *job.needs])
            if "cursor" not in page:
                return RunGraph(Run.read(page), page["counts"], page["groups"], [*jobs.values()])
            question["cursor"] = page["cursor"]
        return None

    def list(self, tenant: str, *, status: str | None = None, timeout_seconds: float = 10) -> AsyncIterator[Run]:
        """Iterate over a tenant's runs, newest first; those of one status only."""
        check_tenant(tenant)
        question = {} if status is None else {"status": check_run_status(status)}
        views = self._link.pages(tenant, "list-runs", question, "runs", timeout_seconds)
        return (Run.read(view) async for view in views)

    def watch(self, tenant: str = "*") -> AsyncIterator[dict[str, Any]]:
        """Iterate over the `JobReady` events of a tenant (default: all) as `TimerClient.watch` does.

        To look on: an executor must not miss any, and reads the stream (docs/examples/executor.py).
        """
        if tenant != "*":
            check_tenant(tenant)
        return self._link.events(tenant, "job-ready")

    async def _tell(
        self, message_type: str, tenant: str, run: str, fields: Mapping[str, Any], timeout_seconds: float
    ) -> Outcome:
        named = {"runId": check_identifier("run", run), **fields}
        return await self._link.send(self._link.command(message_type, tenant, named), timeout_seconds)
