"""A tenant that uses the service while another tenant floods it, and measures how it is served."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count, takewhile
from secrets import token_hex
from typing import Any, NamedTuple, Self, TypeVar

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import Error as JetStreamError

from soak.mistakes import LONG_AFTER
from tests.harness.processes import body
from timer_service.core.values.address import kebab
from timer_service.core.values.instant import format_instant

TENANT = "tenant-b"
_REFUSED = (nats.errors.Error, JetStreamError, TimeoutError)
_PAUSE_SECONDS = 0.05
_AHEAD_MS = 1_500
"""How long a timer waits: longer than its command may take."""
_PATIENCE_SECONDS = 60
_T = TypeVar("_T")


class Waits(NamedTuple):
    """How long the tenant waited, in milliseconds."""

    commands: list[float]
    """From publishing a command to its outcome. A refused command is published again meanwhile."""
    queries: list[float]
    timers: list[float]
    """From the due time to the arrival of the event."""


class Neighbour:
    """Tenant B. It sends one command, one timer and one query after the other."""

    def __init__(self, connection: Client, marker: str) -> None:
        self._connection = connection
        self._marker = marker
        """A word in all ids and data of this tenant."""
        self._inbox = f"_INBOX.{TENANT}.{token_hex(8)}"
        self._outcomes: dict[str, asyncio.Future[str]] = {}
        self._due: dict[str, float] = {}
        self._stopping = False
        self.waits = Waits([], [], [])

    @classmethod
    @asynccontextmanager
    async def using(cls, url: str, password: str, marker: str) -> AsyncIterator[Self]:
        """Use the service while the block runs. Afterwards, wait for all outcomes, replies and events."""
        async with await nats.connect(
            url, user=TENANT, password=password, inbox_prefix=f"_INBOX.{TENANT}", allow_reconnect=False
        ) as connection:
            neighbour = cls(connection, marker)
            await connection.subscribe(f"{neighbour._inbox}.*", cb=neighbour._receive_outcome)
            await connection.subscribe(f"timer.evt.v1.{TENANT}.due-time-reached", cb=neighbour._receive_event)
            await connection.flush()
            async with asyncio.TaskGroup() as work:
                for each in (neighbour._schedule_and_cancel, neighbour._schedule, neighbour._ask):
                    work.create_task(each())
                try:
                    yield neighbour
                finally:
                    neighbour._stopping = True
            await neighbour._until_fired()

    async def _schedule_and_cancel(self) -> None:
        for number in self._numbers():
            call = f"{self._marker}-{number}"
            assert await self._send("ScheduleTimer", call, dueAt=LONG_AFTER, data=self._marker) == "scheduled"
            assert await self._send("CancelTimer", call) == "cancelled"
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _schedule(self) -> None:
        for number in self._numbers():
            call, due = f"{self._marker}-due-{number}", math.ceil(time.time() * 1000) + _AHEAD_MS
            self._due[call] = due
            due_at = format_instant(due)
            assert await self._send("ScheduleTimer", call, dueAt=due_at, data=self._marker) == "scheduled"
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _ask(self) -> None:
        for number in self._numbers():
            began = time.monotonic()
            name, question = [("count-timers", {}), ("get-timer", {"serviceCallId": f"{self._marker}-0"})][number % 2]
            reply = await self._request(f"timer.qry.v1.{TENANT}.{name}", json.dumps(question).encode())
            assert reply.get("counts") or reply.get("serviceCallId") or reply["error"]["code"] == "NOT_FOUND", reply
            self.waits.queries.append((time.monotonic() - began) * 1000)
            await asyncio.sleep(_PAUSE_SECONDS)

    def _numbers(self) -> Iterator[int]:
        return takewhile(lambda _: not self._stopping, count())

    async def _send(self, kind: str, call: str, **payload: str) -> str:
        """Publish a command until it is stored. Return its outcome."""
        began = time.monotonic()
        to = f"{self._inbox}.{token_hex(8)}"
        outcome = self._outcomes[to] = asyncio.get_running_loop().create_future()
        headers = {"Nats-Msg-Id": token_hex(16), "Timer-Reply-To": to}
        content = body(kind, TENANT, {"serviceCallId": call, **payload})
        await self._until_accepted(
            lambda: self._connection.jetstream().publish(
                f"timer.cmd.v1.{TENANT}.{kebab(kind)}", content, timeout=_PATIENCE_SECONDS, headers=dict(headers)
            )
        )
        async with asyncio.timeout(_PATIENCE_SECONDS):
            received: str = await outcome
        self.waits.commands.append((time.monotonic() - began) * 1000)
        return received

    async def _request(self, subject: str, content: bytes) -> Any:
        """Ask until there is a reply."""
        reply = await self._until_accepted(
            lambda: self._connection.request(subject, content, timeout=_PATIENCE_SECONDS)
        )
        return json.loads(reply.data)

    async def _until_accepted(self, send: Callable[[], Awaitable[_T]]) -> _T:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                try:
                    return await send()
                except _REFUSED:
                    await asyncio.sleep(_PAUSE_SECONDS)

    async def _receive_outcome(self, message: Msg) -> None:
        outcome = json.loads(message.data)
        self._outcomes.pop(message.subject).set_result(outcome.get("outcome", "rejected"))

    async def _receive_event(self, message: Msg) -> None:
        late = time.time() * 1000 - self._due.pop(json.loads(message.data)["payload"]["serviceCallId"])
        assert late >= 0
        self.waits.timers.append(late)

    async def _until_fired(self) -> None:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while self._due:
                await asyncio.sleep(_PAUSE_SECONDS)
