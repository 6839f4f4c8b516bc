"""The statements of the port on a connection: each in a call to its thread, or a whole transaction in one call.

Each call wakes the thread, and then the event loop, which a busy loop delays.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from timer_service.adapters.sqlite.statements import executemany, fetch, fetch_each, insert, translate_errors
from timer_service.core.ports.database import Parameters, Row, Transaction
from timer_service.core.ports.transactions import TransactionEnd

_T = TypeVar("_T")
_NONE: Parameters = {}
Run = Callable[[Callable[[sqlite3.Connection], Any]], Awaitable[Any]]
"""Calls a function with a connection, and returns its result."""


class Statements:
    """`core.database.Transaction`, and `Reader` on a connection that only reads."""

    def __init__(self, run: Run, end: TransactionEnd) -> None:
        self._run = run
        self.on_commit = end.on_commit

    async def fetch(self, sql: str, parameters: Parameters = _NONE) -> list[Row]:
        """See `Transaction.fetch`."""
        rows: list[Row] = await self._run(partial(fetch, sql=sql, parameters=parameters))
        return rows

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> list[Row]:
        """See `Transaction.fetch_each`."""
        return await self._run(partial(fetch_each, sql=sql, many=many)) if many else []

    async def execute(self, sql: str, parameters: Parameters = _NONE) -> int:
        """See `Transaction.execute`."""
        return await self.executemany(sql, [parameters])

    async def executemany(self, sql: str, many: Sequence[Parameters]) -> int:
        """See `Transaction.executemany`."""
        return await self._run(partial(executemany, sql=sql, many=many)) if many else 0

    async def insert(self, sql: str, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """See `Transaction.insert`."""
        return await self._run(partial(insert, sql=sql, rows=rows)) if rows else []

    async def wait_briefly(self) -> None:
        """Do nothing: the transaction has the only lock there is."""


def run_whole(connection: sqlite3.Connection, *, work: Callable[[Transaction], Awaitable[_T]]) -> tuple[_T, int]:
    """Run `work` in a write transaction. Return its result, and how many rows the transaction has changed.

    What `on_commit` got is called in this thread.
    """
    end = TransactionEnd()

    async def run_now(function: Callable[[sqlite3.Connection], Any]) -> Any:
        with translate_errors():
            return function(connection)

    with translate_errors():
        before = connection.total_changes
        connection.execute("BEGIN IMMEDIATE").close()
        try:
            result = _finish(work(Statements(run_now, end)))
            connection.execute("COMMIT").close()
        except BaseException:
            connection.rollback()  # does nothing if an error such as a full disk has ended the transaction already
            raise
        end.committed()
        return result, connection.total_changes - before


def _finish(work: Awaitable[_T]) -> _T:
    """Return the result of a coroutine that never waits."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as end:
        result: _T = end.value
        return result
    raise RuntimeError("the work awaits something else than its transaction")
