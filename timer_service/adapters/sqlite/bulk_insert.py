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

So the rows are inserted without RETURNING. Only if one of them existed, the keys of those that did are read: their
rowids are not later than the newest one before the insert. That looks up each row, but returns few.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from timer_service.adapters.sqlite.text import Inserted, find_older, inserted_by, prepare_insert, without_returning

_MOST_ROWS = 512
_FEW_ROWS = 32
Rows = Sequence[Sequence[Any]]


def insert(connection: sqlite3.Connection, sql: str, rows: Rows) -> Rows:
    """Run an INSERT for each of `rows`; return those that were inserted. See `core.database.Transaction.insert`."""
    inserted = inserted_by(sql)
    if inserted is None:
        _insert_plain(connection, sql, rows)
        return rows
    ((newest,),) = connection.execute(f"SELECT COALESCE(MAX(rowid), 0) FROM {inserted.table}")  # noqa: S608 - no user input
    if _insert_plain(connection, without_returning(sql), rows) == len(rows):
        return rows
    existed = {key for part in parts(rows) for key in _find_older(connection, inserted, part, newest)}
    return [row for row in rows if _key_of(inserted, row) not in existed]


def _insert_plain(connection: sqlite3.Connection, sql: str, rows: Rows) -> int:
    return sum(_run(connection, sql, part).rowcount for part in parts(rows))


def _find_older(connection: sqlite3.Connection, inserted: Inserted, rows: Rows, newest: int) -> list[tuple[Any, ...]]:
    values = chain.from_iterable(_key_of(inserted, row) for row in rows)
    found = connection.execute(find_older(inserted, len(rows)), [*values, newest])
    return [tuple(key) for key in found]


def _key_of(inserted: Inserted, row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(row[: len(inserted.key)])


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
