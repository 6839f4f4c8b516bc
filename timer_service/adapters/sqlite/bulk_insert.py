"""Inserts many rows with few statements.

A thread takes Python's lock again after each statement, and after each row that a statement returns. While the event
loop computes, that is what an insert waits for. Measured for 1,000 new timers, in ms:

==================================================  ====  =======================
statements                                          idle  with a busy event loop
==================================================  ====  =======================
20 of 50 rows, each row returned                     4.3                     24.6
20 of 50 rows                                        3.4                     11.4
1 of 1,000 rows                                      2.9                      4.7
==================================================  ====  =======================

So the rows are first inserted without RETURNING. Only if one of them exists, that is undone, and the statement that
returns the inserted ones runs instead.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from timer_service.adapters.sqlite.text import prepare_insert, without_returning

_MOST_ROWS = 512
_FEW_ROWS = 32
Rows = Sequence[Sequence[Any]]


def insert(connection: sqlite3.Connection, sql: str, rows: Rows) -> Rows:
    """Run an INSERT for each of `rows`; return those that were inserted. See `core.database.Transaction.insert`."""
    plain = without_returning(sql)
    if plain == sql:
        _insert_plain(connection, sql, rows)
        return rows
    connection.execute("SAVEPOINT bulk_insert").close()
    inserted = _insert_plain(connection, plain, rows)
    if inserted < len(rows):
        connection.execute("ROLLBACK TO bulk_insert").close()
    connection.execute("RELEASE bulk_insert").close()
    return rows if inserted == len(rows) else _insert_returning(connection, sql, rows)


def _insert_plain(connection: sqlite3.Connection, sql: str, rows: Rows) -> int:
    return sum(_run(connection, sql, part).rowcount for part in parts(rows))


def _insert_returning(connection: sqlite3.Connection, sql: str, rows: Rows) -> Rows:
    keys = {tuple(key) for part in parts(rows) for key in _run(connection, sql, part)}
    length = len(next(iter(keys), ()))
    return [row for row in rows if tuple(row[:length]) in keys]


def _run(connection: sqlite3.Connection, sql: str, rows: Rows) -> sqlite3.Cursor:
    return connection.execute(prepare_insert(sql, len(rows)), list(chain.from_iterable(rows)))


def parts(rows: Rows) -> Iterator[Rows]:
    """Yield the rows in parts whose sizes are powers of two, so that few statements are prepared."""
    start, size = 0, _MOST_ROWS
    while start < len(rows):
        while _FEW_ROWS <= size > len(rows) - start:
            size //= 2
        yield rows[start : start + size] if size >= _FEW_ROWS else rows[start:]
        start += size if size >= _FEW_ROWS else len(rows)
