"""The calls in progress on the connection of a client."""

import asyncio
from unittest.mock import AsyncMock, Mock

import pytest

from timer_service.client.calls import Calls
from timer_service.client.connection import Connection
from timer_service.client.errors import QueryError
from timer_service.client.nats.link import NatsLink
from timer_service.core.values.address import Kind


@pytest.mark.parametrize("is_lost", [False, True])
async def test_cancellation_at_the_moment_of_the_answer(*, is_lost: bool) -> None:
    """A caller that is cancelled when the answer comes or the connection is lost is cancelled, and does not go on."""
    answer = asyncio.get_running_loop().create_future()
    calls, went_on = Calls(), []

    async def call() -> None:
        await calls.run(asyncio.wait_for(answer, 10))
        went_on.append(True)

    caller = asyncio.ensure_future(call())
    for _ in range(3):
        await asyncio.sleep(0)
    calls.end() if is_lost else answer.set_result(None)
    caller.cancel()
    await asyncio.wait([caller])
    assert (caller.cancelled(), went_on) == (True, [])


async def test_a_request_that_is_too_large_for_the_broker() -> None:
    """It is refused like one that is too large for the service, and not sent again and again."""
    connection = Connection(NatsLink(Mock(is_connected=True, max_payload=10), "timer"))
    with pytest.raises(QueryError, match="TOO_LARGE: the request has 11 bytes; the broker accepts 10"):
        await connection.request(Kind.REQUEST, "acme", "report-tasks", b"x" * 11, 1)
    answering = Mock(is_connected=True, max_payload=11, request=AsyncMock(return_value=Mock(data=b"{}")))
    connection = Connection(NatsLink(answering, "timer"))
    assert await connection.request(Kind.REQUEST, "acme", "report-tasks", b"x" * 11, 1) == {}


def test_a_command_that_is_too_large_for_the_broker() -> None:
    """The headers count too: the broker would end the connection."""
    connection = Connection(NatsLink(Mock(is_connected=True, max_payload=2000), "timer"))
    connection.command("ScheduleTimer", "acme", {"data": "x" * 100})
    with pytest.raises(ValueError, match=r"data must be smaller: the command has \d+ bytes"):
        connection.command("ScheduleTimer", "acme", {"data": "x" * 1000})
