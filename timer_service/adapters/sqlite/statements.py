"""The statements of the port, as functions that run in the thread of a connection, and the errors of SQLite.

A fault of the disk can leave a text that is not UTF-8. Then its row is read with U+FFFD in place of the damage. A
function of Python that decodes each text is slow, so a connection has one only after it has met such a text.

Many rows are inserted with few statements. A thread takes Python's lock again after each statement, and after each row
that a statement returns, so that a busy event loop would delay it five times as much. So the rows are inserted without
RETURNING. Only if one of them existed, the keys of those that did are read: their rowids are not later than the newest
one before the insert.
"""

import logging
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from timer_service.adapters.sqlite.text import (
    Inserted,
    find_older,
    inserted_by,
    join,
    prepare,
    prepare_insert,
    without_returning,
)
from timer_service.core.ports.database import Parameters, Row
from timer_service.core.values.errors import ConflictError, DatabaseSetupError, DatabaseUnavailableError

log = logging.getLogger(__name__)

_OUTAGES = {sqlite3.OperationalError, sqlite3.DatabaseError}
"""The errors of a file that is locked, damaged, on a full disk or on a failing one."""
_WRONG_SETUP = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_WRONG_SCHEMA = re.compile(r"no such (table|column|function|index)|has no column named|but \d+ values were supplied")
"""SQLite has one code for all errors of a statement, such as a missing table and malformed JSON."""
_PRIMARY_CODE = 0xFF
_MOST_ROWS = 512
_FEW_ROWS = 32
Rows = Sequence[Sequence[Any]]


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise the core's error for an outage and for a wrong set-up. Other errors pass unchanged."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if type(error) not in _OUTAGES:
            raise
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY_CODE  # errors of Python have none
        if code in _WRONG_SETUP or (code == sqlite3.SQLITE_ERROR and _WRONG_SCHEMA.search(str(error))):
            raise DatabaseSetupError(str(error)) from error
        if code == sqlite3.SQLITE_ERROR:
            raise  # the statement is wrong
        raise DatabaseUnavailableError(str(error)) from error


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
