"""Reads of the page: the queries of the slices, a few at a time, until the time of a page is over."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeVar

from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Parameters, Reader, Row
from timer_service.core.requests.computing import Computing, Steps
from timer_service.core.requests.query import QueryRoute
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.core.values.message import Payload
from timer_service.core.values.stored_json import write

_T = TypeVar("_T")
_NONE: Parameters = {}
PAGE_ROWS = 50
"""How many rows a list shows."""
AT_ONCE = 2
"""How many pages are made at a time, and how many reads. Others wait: a page of large rows needs a few MiB."""
SECONDS = 5
"""How long a page waits for its turn and for all its reads. The service closes a connection after ten seconds."""


class PageReader:
    """Reads for one page. When its time is over, it raises `DatabaseUnavailableError`."""

    def __init__(self, database: Database, turn: asyncio.Semaphore) -> None:
        self._reader = database.queries  # a slow read delays no other part of the service
        self._turn = turn
        self._until = asyncio.get_running_loop().time() + SECONDS

    async def fetch(self, sql: str, parameters: Parameters = _NONE) -> Sequence[Row]:
        """Run a statement."""
        return await self._in_time(partial(self._reader.fetch, sql, parameters))

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> Sequence[Row]:
        """Run a statement for each of `many`."""
        return await self._in_time(partial(self._reader.fetch_each, sql, many))

    async def _in_time(self, read: Callable[[], Awaitable[Sequence[Row]]]) -> Sequence[Row]:
        """Return the rows. Do not wait for the end of a late read: to cancel it may take as long as the database."""
        reading = asyncio.create_task(self._take_turn(read))
        try:
            await asyncio.wait([reading], timeout=self._until - asyncio.get_running_loop().time())
            if reading.done():
                return reading.result()
        finally:
            reading.cancel()
        raise DatabaseUnavailableError("no answer in time")

    async def _take_turn(self, read: Callable[[], Awaitable[Sequence[Row]]]) -> Sequence[Row]:
        async with self._turn:
            return await read()


class Reads:
    """Answers queries for the page. Unlike queries of users, they do not wait for the turns of tenants."""

    def __init__(self, reader: Reader, clock: Clock, computing: Computing) -> None:
        self.reader = reader
        self._clock = clock
        self._computing = computing

    async def ask(self, route: QueryRoute, tenant: str, request: Payload) -> Any:
        """Return the reply to a query, as parsed JSON. Raises as the query, for example `Rejection`."""
        answer = await route.answer(self.reader, tenant, request, self._clock.now())
        document = await self.compute(answer) if isinstance(answer, Generator) else answer
        async with self._computing.slice():
            # Not pydantic's `from_json`: it refuses a list of data that is nested as deep as a command may be.
            return json.loads(write(document).text)

    async def compute(self, steps: Steps[_T]) -> _T:
        """Return the result of work in steps. The service has its turns in between."""
        return await self._computing.run(steps)
