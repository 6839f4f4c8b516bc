"""The calls in progress on the connection of a client."""

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from nats.errors import NoRespondersError

from tests.harness.cases import case
from timer_service.client import TimerClient
from timer_service.client.calls import Calls
from timer_service.client.connection import Connection
from timer_service.client.errors import NoAnswerError, QueryError
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


async def calls_of(failing: Awaitable[Any]) -> list[str]:
    """Return the files of the calls below this function that the traceback of a call without an answer shows."""
    with pytest.raises(NoAnswerError) as caught:
        await failing
    assert "Error:" not in "".join(traceback.format_exception(caught.value)).partition("NoAnswerError:")[0]
    return [each.filename for each in traceback.extract_tb(caught.value.__traceback__)[1:]]


async def test_an_error_shows_one_call_of_the_client() -> None:
    """The traceback has neither the calls inside the client nor the error of the driver."""
    silent = Mock(is_connected=True, max_payload=10_000, request=AsyncMock(side_effect=NoRespondersError))
    lost = Mock(is_connected=False, max_payload=10_000)
    calls: list[tuple[Mock, Callable[[TimerClient], Awaitable[Any]]]] = [
        (silent, lambda client: client.timers.get("acme", "a")),
        (silent, lambda client: client.timers.count("acme")),
        (silent, lambda client: client.workflows.get("acme", "a")),
        (silent, lambda client: client.query("acme", "get-timer", {})),
        (silent, lambda client: anext(client.timers.list("acme"))),
        (lost, lambda client: client.timers.get("acme", "a")),
        (lost, lambda client: client.timers.cancel("acme", "a")),
        (lost, lambda client: client.timers.schedule("acme", "a", due_in=timedelta())),
    ]
    for number, (driver, call) in enumerate(calls):
        with case(str(number)):
            assert len(await calls_of(call(TimerClient(Connection(NatsLink(driver, "timer")))))) == 1
    unreachable = TimerClient.connect("redis://127.0.0.1:1")
    assert await calls_of(unreachable.__aenter__()) == [contextlib.__file__]
