"""A whole transaction in one call to the thread of a connection.

Each call wakes the thread, and then the event loop. A busy loop takes up to a turn for it: a claim of three statements
took up to 20 ms while events were encoded. In one call, only the statements count.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from timer_service.adapters.sqlite.statements import executemany, fetch, fetch_each, insert, translate_errors
from timer_service.core.ports.database import Parameters, Row, Transaction
from timer_service.core.ports.transactions import TransactionEnd

_T = TypeVar("_T")
_NONE: Parameters = {}


def run_whole(connection: sqlite3.Connection, *, work: Callable[[Transaction], Awaitable[_T]]) -> tuple[_T, int]:
    """Run `work` in a write transaction. Return its result, and how many rows the transaction has changed.

    What `on_commit` got is called in this thread.
    """
    end = TransactionEnd()
    with translate_errors():
        before = connection.total_changes
        connection.execute("BEGIN IMMEDIATE").close()
        try:
            result = _finish(work(_Statements(connection, end)))
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


class _Statements:
    """The open transaction. Its methods run in the thread of the connection, and never wait."""

    def __init__(self, connection: sqlite3.Connection, end: TransactionEnd) -> None:
        self._connection = connection
        self.on_commit = end.on_commit

    async def fetch(self, sql: str, parameters: Parameters = _NONE) -> list[Row]:
        with translate_errors():
            return fetch(self._connection, sql, parameters)

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> list[Row]:
        with translate_errors():
            return fetch_each(self._connection, sql, many)

    async def execute(self, sql: str, parameters: Parameters = _NONE) -> int:
        with translate_errors():
            return executemany(self._connection, sql, [parameters])

    async def executemany(self, sql: str, many: Sequence[Parameters]) -> int:
        with translate_errors():
            return executemany(self._connection, sql, many)

    async def insert(self, sql: str, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        with translate_errors():
            return insert(self._connection, sql, rows)

    async def wait_briefly(self) -> None:
        """Do nothing: the transaction has the only lock there is."""
