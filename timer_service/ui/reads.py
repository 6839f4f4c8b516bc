"""Reads of the page: the queries of the slices, a few at a time."""

import asyncio
import json
from collections.abc import Generator
from typing import Any, TypeVar

from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Reader
from timer_service.core.requests.computing import Computing, Steps
from timer_service.core.requests.query import QueryRoute
from timer_service.core.values.message import Payload
from timer_service.core.values.stored_json import write

_T = TypeVar("_T")
PAGE_ROWS = 50
"""How many rows a list shows."""
_AT_ONCE = 2
"""How many requests read at a time. Others wait: a page of large rows needs a few MiB."""


class Reads:
    """Answers queries for the page. Unlike queries of users, they do not wait for the turns of tenants."""

    def __init__(self, database: Database, clock: Clock, computing: Computing) -> None:
        self.turn = asyncio.Semaphore(_AT_ONCE)
        self._database = database
        self._clock = clock
        self._computing = computing

    @property
    def reader(self) -> Reader:
        """The reader for queries: a slow read delays no other part of the service."""
        return self._database.queries

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
