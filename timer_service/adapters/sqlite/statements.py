"""The statements of the port, as functions that run in the thread of a connection, and the errors of SQLite.

Portable SQL is translated to the form that SQLite runs fastest. Many rows are inserted without RETURNING, because a
thread takes Python's lock again after each row that a statement returns. Only if one of them existed, the keys of those
that did are read: their rowids are not later than the newest one before the insert.
"""

import json
import logging
import re
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from timer_service.core.ports.database import Parameters, Row
from timer_service.core.ports.transactions import TransactionEnd, number_parameters
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
_CACHED_STATEMENTS = 1000
_VALUES = re.compile(r"\bVALUES\s*(\([^()]*\))")
_RETURNING = re.compile(r"\bRETURNING\b.*", re.DOTALL)
_INSERTED = re.compile(r"\bINSERT INTO (\w+)\b.*\bRETURNING\s+([\w\s,]+)", re.DOTALL)
_EACH_OF = re.compile(r"/\* each of many \*/")
_MANY = "(SELECT value AS parameter_set FROM json_each(?1)) CROSS JOIN "
_ANY_OF = re.compile(r"= ANY \(:(?P<name>\w+)\)")
Run = Callable[[Callable[[sqlite3.Connection], Any]], Awaitable[Any]]
"""Calls a function with a connection, and returns its result. Each call wakes the thread, and then the event loop."""
_NONE: Parameters = {}
_NUL = "\\u0000"
Rows = Sequence[Sequence[Any]]


class Prepared(NamedTuple):
    """A statement with numbered parameters."""

    text: str
    values: Callable[[Parameters], tuple[Any, ...]]
    """Returns the values of named parameters in the order of the numbers."""


@lru_cache(_CACHED_STATEMENTS)
def prepare(sql: str) -> Prepared:
    """Number the parameters, because SQLite looks up each name for each row.

    The list of `= ANY (:names)` becomes a JSON array.
    """
    lists = frozenset(_ANY_OF.findall(sql))
    sql = _ANY_OF.sub(r"IN (SELECT value FROM json_each(:\g<name>))", sql)
    text, names = number_parameters(sql, "?{}".format)
    return Prepared(text, _values_with_lists(names, lists) if lists else _values(names))


def join(sql: str, many: Sequence[Parameters]) -> tuple[str, tuple[str]] | None:
    """Join a statement marked `/* each of many */` to its parameter sets; return the text and the one parameter.

    The statement then runs once for all sets. Returns None for statements without the mark, and for values that contain
    NUL, where SQLite ends a JSON string.
    """
    if _EACH_OF.search(sql) is None:
        return None
    text, values = _prepare_joined(sql)
    sets = json.dumps([values(each) for each in many])
    return None if _NUL in sets else (text, (sets,))


@lru_cache(_CACHED_STATEMENTS)
def prepare_insert(sql: str, count: int) -> str:
    """Return the statement that inserts `count` rows. Its parameters are the values of all rows, in order."""
    text, _ = number_parameters(sql, lambda _number: "?")
    return _VALUES.sub(lambda values: f"VALUES {', '.join([values[1]] * count)}", text, count=1)


@lru_cache(_CACHED_STATEMENTS)
def without_returning(sql: str) -> str:
    """Return an INSERT without its RETURNING clause."""
    return _RETURNING.sub("", sql)


class Inserted(NamedTuple):
    """The table of an INSERT, and the columns of the key that it returns."""

    table: str
    key: tuple[str, ...]


@lru_cache(_CACHED_STATEMENTS)
def inserted_by(sql: str) -> Inserted | None:
    """Return where an INSERT adds rows, or None if it returns nothing."""
    found = _INSERTED.search(sql)
    return None if found is None else Inserted(found[1], tuple(found[2].replace(",", " ").split()))


@lru_cache(_CACHED_STATEMENTS)
def find_older(inserted: Inserted, count: int) -> str:
    """Return the statement that finds which of `count` keys are in rows up to a rowid, its last parameter."""
    wanted = ", ".join(f"wanted_{column}" for column in inserted.key)
    values = ", ".join([f"({', '.join('?' * len(inserted.key))})"] * count)
    # CROSS JOIN: without statistics, SQLite reads the whole index of the table instead of looking up each key.
    return (
        f"WITH wanted ({wanted}) AS (VALUES {values}) SELECT {wanted} FROM wanted "  # noqa: S608 - no user input
        f"CROSS JOIN {inserted.table} ON ({', '.join(inserted.key)}) = ({wanted}) AND rowid <= ?"
    )


@lru_cache(_CACHED_STATEMENTS)
def _prepare_joined(sql: str) -> Prepared:
    """Return a marked statement that reads its parameters from the sets in a JSON array, and how to write one set."""
    text, names = number_parameters(sql, lambda number: f"json_extract(parameter_set, '$[{number - 1}]')")
    return Prepared(_EACH_OF.sub(_MANY, text), _values(names))


def _values(names: tuple[str, ...]) -> Callable[[Parameters], tuple[Any, ...]]:
    """Return a function that returns the values of the names. `itemgetter` is fast, but one name gives no tuple."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda parameters: tuple(parameters[name] for name in names)


def _values_with_lists(names: tuple[str, ...], lists: Collection[str]) -> Callable[[Parameters], tuple[Any, ...]]:
    """Return a function that returns the values of the names; those of `lists` as JSON arrays."""
    return lambda parameters: tuple(
        _write_list(parameters[name]) if name in lists else parameters[name] for name in names
    )


def _write_list(values: Sequence[str]) -> str:
    """Return a list of texts as a JSON array."""
    if any("\0" in value for value in values):
        raise ValueError("a text in the list contains the character U+0000, where SQLite ends a JSON string")
    return json.dumps(values)


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


def _rows(connection: sqlite3.Connection, text: str, values: Any) -> list[Row]:
    """Run a statement; return all its rows. Raises `ConflictError` if a transaction must be tried again."""
    try:
        return connection.execute(text, values).fetchall()
    except sqlite3.OperationalError as error:
        if not str(error).startswith("Could not decode to UTF-8"):
            raise
        reason = "a text in the database is damaged: it is not UTF-8"
        log.error(reason)  # noqa: TRY400 - the error quotes the text
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # from now on
        if connection.in_transaction:  # the statement may have written
            raise ConflictError(reason) from None
        return connection.execute(text, values).fetchall()


def insert(connection: sqlite3.Connection, sql: str, rows: Rows) -> Rows:
    """Insert each of `rows`; return those that were inserted. See `core.ports.database.Transaction.insert`."""
    inserted = inserted_by(sql)
    if inserted is None:
        _insert_plain(connection, sql, rows)
        return rows
    # Rowids grow, so a key that a row up to here has was there before.
    ((newest,),) = connection.execute(f"SELECT COALESCE(MAX(rowid), 0) FROM {inserted.table}")  # noqa: S608 - no user input
    if _insert_plain(connection, without_returning(sql), rows) == len(rows):
        return rows
    existed = {key for part in parts(rows) for key in _find_older(connection, inserted, part, newest)}
    return [row for row in rows if _key_of(inserted, row) not in existed]


def _insert_plain(connection: sqlite3.Connection, sql: str, rows: Rows) -> int:
    """Insert rows with few statements. Return how many were inserted."""
    count = 0
    for part in parts(rows):
        count += connection.execute(prepare_insert(sql, len(part)), list(chain.from_iterable(part))).rowcount
    return count


def _find_older(connection: sqlite3.Connection, inserted: Inserted, rows: Rows, newest: int) -> list[tuple[Any, ...]]:
    """Return the keys of `rows` that rows up to the rowid `newest` have."""
    values = chain.from_iterable(_key_of(inserted, row) for row in rows)
    found = connection.execute(find_older(inserted, len(rows)), [*values, newest])
    return [tuple(key) for key in found]


def _key_of(inserted: Inserted, row: Sequence[Any]) -> tuple[Any, ...]:
    """Return the key of a row: its first values."""
    return tuple(row[: len(inserted.key)])


def parts(rows: Rows) -> Iterator[Rows]:
    """Yield the rows in parts whose sizes are powers of two, so that few statements are prepared."""
    start, size = 0, _MOST_ROWS
    while left := len(rows) - start:
        while _FEW_ROWS <= size > left:
            size //= 2
        length = left if left < _FEW_ROWS else size
        yield rows[start : start + length]
        start += length


class Statements:
    """`core.ports.database.Transaction`, and `Reader` on a connection that only reads."""

    def __init__(self, run: Run, end: TransactionEnd) -> None:
        self._run = run
        self.on_commit = end.on_commit

    async def fetch(self, sql: str, parameters: Parameters = _NONE) -> list[Row]:
        """See `Transaction.fetch`."""
        text, values = prepare(sql)
        rows: list[Row] = await self._run(lambda connection: _rows(connection, text, values(parameters)))
        return rows

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> list[Row]:
        """See `Transaction.fetch_each`."""

        def fetch(connection: sqlite3.Connection) -> list[Row]:
            if joined := join(sql, many):
                return _rows(connection, *joined)
            text, values = prepare(sql)
            return [row for each in many for row in _rows(connection, text, values(each))]

        return await self._run(fetch) if many else []

    async def execute(self, sql: str, parameters: Parameters = _NONE) -> int:
        """See `Transaction.execute`."""
        return await self.executemany(sql, [parameters])

    async def executemany(self, sql: str, many: Sequence[Parameters]) -> int:
        """See `Transaction.executemany`."""
        if not many:
            return 0
        text, values = prepare(sql)
        count: int = await self._run(lambda connection: connection.executemany(text, map(values, many)).rowcount)
        return count

    async def insert(self, sql: str, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """See `Transaction.insert`."""
        return await self._run(partial(insert, sql=sql, rows=rows)) if rows else []

    async def lock(self, names: Sequence[str], *, wait: bool = True) -> Sequence[str]:  # noqa: ARG002 - part of the port
        """Return all names: the transaction has the only lock there is."""
        return names

    async def wait_briefly(self) -> None:
        """Do nothing: the transaction has the only lock there is."""
