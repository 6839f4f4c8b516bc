"""The statements of the port, as functions that run in the thread of a connection.

A fault of the disk can leave a text that is not UTF-8. Then its row is read with U+FFFD in place of the damage. A
function of Python that decodes each text is slow, so a connection has one only after it has met such a text.
"""

import logging
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

from timer_service.adapters.sqlite.text import join, prepare
from timer_service.core.ports.database import Parameters, Row
from timer_service.core.values.errors import ConflictError

log = logging.getLogger(__name__)


def fetch(connection: sqlite3.Connection, sql: str, parameters: Parameters) -> list[Row]:
    """Run one statement; return all its rows."""
    text, values = prepare(sql)
    return _rows(connection, text, values(parameters))


def fetch_each(connection: sqlite3.Connection, sql: str, many: Sequence[Parameters]) -> list[Row]:
    """Run one statement for each of `many`; return all rows."""
    if not many:
        return []
    if joined := join(sql, many):
        return _rows(connection, *joined)
    text, values = prepare(sql)
    return [row for each in many for row in _rows(connection, text, values(each))]


def _rows(connection: sqlite3.Connection, text: str, values: Any) -> list[Row]:
    """Run a statement; return all its rows. Raises `ConflictError` if a transaction must be tried again."""
    try:
        return connection.execute(text, values).fetchall()
    except sqlite3.OperationalError as error:
        if not str(error).startswith("Could not decode to UTF-8"):
            raise
        reason = "a text in the database is damaged: it is not UTF-8"
        log.error(reason)  # noqa: TRY400 - the error quotes the text
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        if connection.in_transaction:  # the statement may have written
            raise ConflictError(reason) from None
        return connection.execute(text, values).fetchall()


def executemany(connection: sqlite3.Connection, sql: str, many: Sequence[Parameters]) -> int:
    """Run one statement for each of `many`; return the number of rows changed."""
    if not many:
        return 0
    text, values = prepare(sql)
    return connection.executemany(text, map(values, many)).rowcount
