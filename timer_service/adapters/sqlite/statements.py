"""The statements of the port, as functions that run in the thread of a connection."""

import sqlite3
from collections.abc import Sequence

from timer_service.adapters.sqlite.text import join, prepare
from timer_service.core.database import Parameters, Row


def fetch(connection: sqlite3.Connection, sql: str, parameters: Parameters) -> list[Row]:
    """Run one statement; return all its rows."""
    text, values = prepare(sql)
    return connection.execute(text, values(parameters)).fetchall()


def fetch_each(connection: sqlite3.Connection, sql: str, many: Sequence[Parameters]) -> list[Row]:
    """Run one statement for each of `many`; return all rows."""
    if not many:
        return []
    if joined := join(sql, many):
        return connection.execute(*joined).fetchall()
    text, values = prepare(sql)
    return [row for each in many for row in connection.execute(text, values(each)).fetchall()]


def executemany(connection: sqlite3.Connection, sql: str, many: Sequence[Parameters]) -> int:
    """Run one statement for each of `many`; return the number of rows changed."""
    if not many:
        return 0
    text, values = prepare(sql)
    return connection.executemany(text, map(values, many)).rowcount
