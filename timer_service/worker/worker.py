"""The worker of a program: connects to the broker and executes workflows until the process is asked to stop."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from timer_service.client.checks import check_identifier, check_tenant
from timer_service.client.connection import connector
from timer_service.client.errors import ShortTraceback
from timer_service.core.values.address import Kind
from timer_service.sigterm import at_sigterm
from timer_service.worker.definition import Settings, WorkflowFunction
from timer_service.worker.names import check_name
from timer_service.worker.process import run_worker

_MOST_TYPES = 100
_MOST_SLOTS = 1000
_LEASES = (timedelta(seconds=10), timedelta(minutes=10))


class Worker:
    """Executes workflows of one tenant. `run` does the work."""

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str,
        workflows: Sequence[WorkflowFunction[Any, Any]],
        queue: str = "default",
        slots: int = 100,
        name: str | None = None,
        lease: timedelta = timedelta(seconds=30),
        shutdown_timeout: timedelta = timedelta(seconds=20),
        subject_prefix: str = "timer",
        inbox_prefix: str = "_INBOX",
        **options: Any,
    ) -> None:
        """Check the settings. Raises ValueError with the name of a wrong argument.

        The worker holds at most `slots` workflows at a time. If it dies, its workflows continue elsewhere after
        `lease` (10 s to 10 min), counted from its last request. When it is stopped, steps in progress may take
        `shutdown_timeout` to finish. `name` is shown by `list-workers`. `url` and `options` are those of
        `TimerClient.connect`.
        """
        if not all(isinstance(each, WorkflowFunction) for each in workflows):
            raise ValueError("workflows must be functions with the decorator @workflow")
        types = {each.type: each for each in workflows}
        if not 1 <= len(workflows) <= _MOST_TYPES:
            raise ValueError(f"workflows must have 1 to {_MOST_TYPES} workflows")
        if len(types) < len(workflows):
            raise ValueError("workflows must have one function for each type")
        if not 1 <= slots <= _MOST_SLOTS:
            raise ValueError(f"slots must lie between 1 and {_MOST_SLOTS}")
        if not _LEASES[0] <= lease <= _LEASES[1]:
            raise ValueError("lease must lie between 10 seconds and 10 minutes")
        self._settings = Settings(
            check_tenant(tenant),
            types,
            queue=check_name("queue", queue),
            name=None if name is None else check_identifier("name", name),
            slots=slots,
            lease_seconds=lease.total_seconds(),
            shutdown_seconds=shutdown_timeout.total_seconds(),
        )
        self._connect = connector("timer-worker", url, subject_prefix, inbox_prefix, options)
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Execute workflows until `stop`, SIGTERM or SIGINT, then finish or release every workflow.

        A second signal ends the worker at once. If code of steps hangs, the process ends at most 4 s after
        `shutdown_timeout`. Several workers can run in one event loop. Raises `NoAnswerError` if the broker cannot be
        reached at the start.
        """
        with ShortTraceback(), at_sigterm(self.stop, self._settings.shutdown_seconds):
            async with self._connect() as connection:
                send = partial(connection.request, Kind.REQUEST, self._settings.tenant)
                await run_worker(send, self._settings, self._stop)

    def stop(self) -> None:
        """Stop: take no new workflow, let steps in progress finish, and release the workflows."""
        self._stop.set()
