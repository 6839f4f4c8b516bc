"""The calls in progress on the connection of a client."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import ANY, AsyncMock, Mock

import pytest

from timer_service.client.calls import Calls
from timer_service.client.connection import Connection
from timer_service.client.errors import QueryError
from timer_service.client.workflows import Workflows
from timer_service.core.values.message import Kind


async def test_cancellation_at_the_moment_of_the_answer() -> None:
    """A caller that is cancelled in the moment in which the answer comes is cancelled, and does not go on."""
    answer = asyncio.get_running_loop().create_future()
    calls, went_on = Calls(), []

    async def call() -> None:
        await calls.run(asyncio.wait_for(answer, 10))
        went_on.append(True)

    caller = asyncio.ensure_future(call())
    for _ in range(3):
        await asyncio.sleep(0)
    answer.set_result(None)
    caller.cancel()
    await asyncio.wait([caller])
    assert (caller.cancelled(), went_on) == (True, [])


async def test_a_request_that_is_too_large_for_the_broker() -> None:
    """It is refused like one that is too large for the service, and not sent again and again."""
    connection = Connection(Mock(is_connected=True, max_payload=10), "timer")
    with pytest.raises(QueryError, match="TOO_LARGE: the request has 11 bytes; the broker accepts 10"):
        await connection.request(Kind.REQUEST, "acme", "report-tasks", b"x" * 11, 1)


async def test_a_result_needs_no_effects() -> None:
    """A program that waits for the result of a workflow reads one effect at each look, not all pages of them."""
    about = {"tenantId": "acme", "workflowId": "order-1", "type": "order", "queue": "default", "status": "completed"}
    counters = dict.fromkeys(("attempt", "retries", "effects", "messages"), 0)
    view = {**about, **counters, "createdAt": "2027-01-01T00:00:00.000Z"}
    page = {"workflow": view, "hasWorkers": True, "result": 7, "effects": [], "cursor": "more"}
    connection = Mock(find=AsyncMock(return_value=page), events=_no_events)
    assert await Workflows(connection).result("acme", "order-1") == 7
    connection.find.assert_awaited_once_with("acme", "get-workflow", {"workflowId": "order-1", "limit": 1}, ANY)


async def _no_events(*_: str) -> AsyncIterator[dict[str, Any]]:
    await asyncio.Event().wait()
    yield {}
