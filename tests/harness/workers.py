"""A worker with a service in memory, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from tests.harness.clock import in_virtual_time
from tests.harness.workflow_service import MemoryService
from timer_service.worker import WorkflowFunction
from timer_service.worker.definition import Settings
from timer_service.worker.process import run_worker


def virtually(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in virtual time."""

    def run() -> None:
        in_virtual_time(test)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@asynccontextmanager
async def worker(
    service: MemoryService, *workflows: WorkflowFunction[Any, Any], **settings: Any
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Run a worker. It yields a function that stops the worker and waits for its end."""
    stop = asyncio.Event()
    types = {each.type: each for each in workflows}
    running = asyncio.create_task(run_worker(service.request, Settings("acme", types, **settings), stop))

    async def drain() -> None:
        stop.set()
        await running

    try:
        yield drain
        await drain()
    finally:
        running.cancel()


def now() -> float:
    """Return the time of the loop, in seconds since the begin of the test."""
    return asyncio.get_running_loop().time()
