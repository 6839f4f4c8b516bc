"""Runs statements on a connection of the user's, of any known driver, in the transaction that is open there.

A driver is recognised by the type of the connection. None of them is imported. Statements have `:name` parameters.
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

Row = Mapping[str, Any]

KNOWN = "sqlite3, aiosqlite, asyncpg, psycopg (3) or SQLAlchemy (Connection, Session, AsyncConnection, AsyncSession)"
_PARAMETER = re.compile(r":(\w+)")
_IN_TRANSACTION = {2, 3}
"""The transaction status of libpq inside a transaction: without and with an error."""
_NO_TRANSACTION = (
    "connection must be in a transaction, because what is not in your transaction could be lost or be done twice: "
    "begin one first, for example with `async with connection.transaction():` (asyncpg, psycopg) or BEGIN (SQLite)"
)


class _Driver(Protocol):
    engine: str

    async def run(self, statement: str, rows: Sequence[Row]) -> int:
        """Run a statement for each row. Returns how many rows of the table it changed."""

    async def is_in_transaction(self) -> bool:
        """Return whether a transaction is open."""


async def insert(connection: Any, table: str, rows: Sequence[Row], more: str = "") -> int:
    """Insert rows in the open transaction of a connection, and return how many were inserted.

    `more` follows the values, for example `ON CONFLICT DO NOTHING`. Raises ValueError if the connection is not one of
    `KNOWN`, or is in no transaction and does not open one by itself.
    """
    driver = await _find(connection)
    names = list(rows[0])
    columns = ", ".join(names)
    if not await driver.is_in_transaction():
        # Most drivers open a transaction with the first statement, unless they commit each statement.
        nothing = ", ".join("NULL" for _ in names)
        await driver.run(f"INSERT INTO {table} ({columns}) SELECT {nothing} WHERE 1 = 0", [{}])
        if not await driver.is_in_transaction():
            raise ValueError(_NO_TRANSACTION)
    values = ", ".join(f":{name}" for name in names)
    return await driver.run(f"INSERT INTO {table} ({columns}) VALUES ({values}) {more}", rows)  # noqa: S608


async def run(connection: Any, statement: str, rows: Sequence[Row]) -> int:
    """Run a statement for each row of parameters, in a transaction or not. Returns how many rows it changed."""
    return await (await _find(connection)).run(statement, rows)


async def run_script(connection: Any, statements: Mapping[str, Sequence[str]]) -> None:
    """Run the statements of the engine of a connection, `sqlite` or `postgresql`, in a transaction or not.

    Raises ValueError if the connection is not one of `KNOWN`.
    """
    driver = await _find(connection)
    for statement in statements[driver.engine]:
        await driver.run(statement, [{}])


def numbered(statement: str, names: Sequence[str]) -> str:
    """Return a statement with the parameters of asyncpg: `$1` for the first of `names`."""
    return _PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", statement) if names else statement


class _Raw:
    """A connection of a driver itself."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def is_in_transaction(self) -> bool:
        return _is_in_transaction(self._connection)


class _Sqlite(_Raw):
    """sqlite3 and aiosqlite."""

    engine = "sqlite"

    async def run(self, statement: str, rows: Sequence[Row]) -> int:
        return await _run(self._connection, statement, rows)


class _Psycopg(_Raw):
    """psycopg 3: a connection for synchronous or asynchronous programs."""

    engine = "postgresql"

    async def run(self, statement: str, rows: Sequence[Row]) -> int:
        named = _PARAMETER.sub(r"%(\1)s", statement) if rows[0] else statement
        return await _run(self._connection, named, rows)


class _Asyncpg(_Raw):
    """asyncpg: a connection, or one of a pool."""

    engine = "postgresql"

    async def run(self, statement: str, rows: Sequence[Row]) -> int:
        names = list(rows[0])
        statement = numbered(statement, names)
        values = [[row[name] for name in names] for row in rows]
        if len(rows) > 1:
            await self._connection.executemany(statement, values)
            return len(rows)
        status: str = await self._connection.execute(statement, *values[0])
        count = status.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0


class _SqlAlchemy:
    """SQLAlchemy: a Connection or an AsyncConnection."""

    _ENGINES: ClassVar = ("sqlite", "postgresql")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.engine = connection.dialect.name
        if self.engine not in self._ENGINES:
            raise ValueError(f"connection must be to SQLite or PostgreSQL, not to {self.engine}")

    async def run(self, statement: str, rows: Sequence[Row]) -> int:
        text = sys.modules["sqlalchemy"].text(statement)
        if len(rows) > 1:
            await _settle(self._connection.execute(text, list(rows)))
            return len(rows)
        count: int = (await _settle(self._connection.execute(text, rows[0]))).rowcount
        return count

    async def is_in_transaction(self) -> bool:
        """Ask the driver: for SQLAlchemy there is a transaction also if each statement is committed."""
        if hasattr(self._connection, "get_raw_connection"):
            raw = await self._connection.get_raw_connection()
        else:
            raw = self._connection.connection
        return _is_in_transaction(raw.driver_connection)


_DRIVERS: Mapping[tuple[str, str], Callable[[Any], _Driver]] = {
    ("sqlite3", "Connection"): _Sqlite,
    ("aiosqlite", "Connection"): _Sqlite,
    ("asyncpg", "Connection"): _Asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _Asyncpg,
    ("psycopg", "Connection"): _Psycopg,
    ("psycopg", "AsyncConnection"): _Psycopg,
    ("sqlalchemy", "Connection"): _SqlAlchemy,
    ("sqlalchemy", "AsyncConnection"): _SqlAlchemy,
}
_SESSIONS = {("sqlalchemy", each) for each in ("Session", "AsyncSession", "scoped_session", "async_scoped_session")}


async def _find(connection: Any) -> _Driver:
    """Return the driver of a connection. Raises ValueError if it is none of `KNOWN`."""
    if _SESSIONS & _names(connection):
        connection = await _settle(connection.connection())
    found = [_DRIVERS[name] for name in _names(connection) if name in _DRIVERS]
    if not found:
        raise ValueError(f"connection must be a connection of {KNOWN}, not a {type(connection).__qualname__}")
    return found[0](connection)


def _names(connection: Any) -> set[tuple[str, str]]:
    """Return the package and the name of the type of a connection, and of the types that it is derived from."""
    return {(each.__module__.partition(".")[0], each.__name__) for each in type(connection).__mro__}


async def _run(connection: Any, statement: str, rows: Sequence[Row]) -> int:
    """Run a statement for each row with a cursor, and return how many rows it changed."""
    cursor = await _settle(connection.cursor())
    if len(rows) > 1:
        await _settle(cursor.executemany(statement, rows))
    elif rows[0]:
        await _settle(cursor.execute(statement, rows[0]))
    else:  # some drivers take no empty parameters
        await _settle(cursor.execute(statement))
    count: int = cursor.rowcount
    await _settle(cursor.close())
    return count


def _is_in_transaction(connection: Any) -> bool:
    """Return whether a transaction is open on a connection of a driver."""
    if hasattr(connection, "in_transaction"):  # sqlite3, aiosqlite
        return bool(connection.in_transaction)
    if hasattr(connection, "is_in_transaction"):  # asyncpg
        return bool(connection.is_in_transaction())
    if hasattr(connection, "info"):  # psycopg, and psycopg2 below SQLAlchemy
        return connection.info.transaction_status in _IN_TRANSACTION
    raise ValueError(f"connection must use a known driver, not {type(connection).__module__}")


async def _settle(result: Any) -> Any:
    """Return a result, or wait for it if the driver is asynchronous."""
    return await result if inspect.isawaitable(result) else result
