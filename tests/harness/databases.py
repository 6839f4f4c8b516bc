"""A pool of empty PostgreSQL databases. One test at a time uses a database.

Creating a database takes 20 to 300 ms, depending on the file system. Creating its schema takes 5 ms or more per table.
So databases are reused, which takes 1 to 3 ms: tables that a test wrote to are emptied, and tables that it created are
dropped. If the database then still differs from a new one, it is dropped and the next test gets a new one.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from secrets import token_hex
from threading import Thread
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit

import asyncpg

LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""The errors of a statement whose session ended.

asyncpg raises `InternalClientError` if it has read the error of the server but not yet the end of the connection.
"""

Schema: TypeAlias = Callable[[str], Awaitable[None]]
"""A function that creates the schema in the database of a URL."""

_Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
_T = TypeVar("_T")

# Objects of users have an oid of 16384 or more. Smaller oids belong to the system.
_TABLES = """
SELECT oid::regclass::text AS name, pg_relation_size(oid) > 0 OR reltuples >= 0 AS used,
    reltuples < 0 AND CASE WHEN pg_relation_size(oid) > 0 THEN pg_table_size(oid) <= 65536 END
    AND NOT EXISTS (SELECT FROM pg_class WHERE relkind = 'S') AS small
FROM pg_class WHERE relkind IN ('r', 'p') AND oid >= 16384 AND relpersistence <> 't' AND NOT relispartition
"""
# A change of a row of a catalog makes a row with a newer `xmin`. So the number of rows and the newest `xmin` show each
# change, at a tenth of the cost of the rows. Only in `pg_class` they also change when a table is emptied.
_CATALOGS = {
    "pg_attribute": "attrelid >= 16384",
    "pg_attrdef": "TRUE",
    "pg_constraint": "oid >= 16384",
    "pg_index": "indexrelid >= 16384",
    "pg_trigger": "TRUE",
    "pg_proc": "oid >= 16384",
    "pg_type": "oid >= 16384",
    "pg_namespace": "nspname !~ '^pg_'",
    "pg_extension": "TRUE",
}
_CHANGES = "SELECT concat_ws(' ', '{catalog}', count(*), max(xmin::text::bigint)) AS line FROM {catalog} WHERE {those}"
_STRUCTURE = f"""
SELECT string_agg(
    (oid, relname, relnamespace, relowner, relkind, relacl, reloptions, relrowsecurity)::text, ' ' ORDER BY oid
) AS line
FROM pg_class WHERE oid >= 16384
UNION ALL SELECT (oid, pg_sequence_last_value(oid))::text FROM pg_class WHERE relkind = 'S'
{"".join(f"UNION ALL {_CHANGES.format(catalog=catalog, those=those)} " for catalog, those in _CATALOGS.items())}
UNION ALL SELECT (datallowconn, datconnlimit, datacl, setconfig)::text
          FROM pg_database d LEFT JOIN pg_db_role_setting ON d.oid = setdatabase WHERE datname = current_database()
ORDER BY line
"""
_END_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_PATIENCE_SECONDS = 10
_FORGET_STATISTICS = "DELETE FROM pg_statistic WHERE starelid >= 16384"


class _Database(NamedTuple):
    """A database, and its structure and rows when it was new."""

    url: str
    connection: _Connection
    structure: list[asyncpg.Record]
    rows: Mapping[str, list[asyncpg.Record]]
    """The rows that the schema inserted, by table."""


class Databases:
    """The databases of one server. Use it as a context manager."""

    def __init__(self, server_url: str) -> None:
        """Use `server_url` to create and drop databases."""
        self._server_url = server_url
        self._idle: dict[Schema | None, list[_Database]] = defaultdict(list)
        # Connections are kept across tests, because a new connection costs more than the statements that it is for.
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="databases")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Drop all databases."""
        asyncio.run_coroutine_threadsafe(self._drop_idle(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @asynccontextmanager
    async def database(self, schema: Schema | None = None) -> AsyncIterator[str]:
        """Yield the URL of a database that is empty or, with `schema`, has only that schema.

        Its sessions are ended afterwards. Roles belong to the server, so a test must drop the roles that it creates.
        """
        database = await self._in_thread(self._take(schema))
        try:
            yield database.url
        finally:
            await self._in_thread(self._give_back(schema, database))

    async def _in_thread(self, work: Coroutine[Any, Any, _T]) -> _T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _take(self, schema: Schema | None) -> _Database:
        idle = self._idle[schema]
        return idle.pop() if idle else await self._create(schema)

    async def _give_back(self, schema: Schema | None, database: _Database) -> None:
        if await _reset(database):
            self._idle[schema].append(database)
        else:
            await self._drop(database)

    async def _create(self, schema: Schema | None) -> _Database:
        name = f"timer_test_{token_hex(4)}"
        url = urlsplit(self._server_url)._replace(path=f"/{name}").geturl()
        await self._administrate(f"CREATE DATABASE {name} TEMPLATE template0")
        if schema:
            await schema(url)
        connection = await asyncpg.connect(url)
        tables = [table["name"] for table in await connection.fetch(_TABLES)]
        return _Database(url, connection, await connection.fetch(_STRUCTURE), await _rows(connection, tables))

    async def _drop(self, database: _Database) -> None:
        database.connection.terminate()
        await self._administrate(f"DROP DATABASE {urlsplit(database.url).path[1:]} WITH (FORCE)")

    async def _drop_idle(self) -> None:
        for database in [each for idle in self._idle.values() for each in idle]:
            await self._drop(database)

    async def _administrate(self, statement: str) -> None:
        connection = await asyncpg.connect(self._server_url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


async def _reset(database: _Database) -> bool:
    """Empty a database and return whether it is now equal to a new one."""
    connection = database.connection
    seeded = {name: rows for name, rows in database.rows.items() if rows}
    try:
        await _end_sessions(connection)
        await _empty(connection, database.rows)
        return await connection.fetch(_STRUCTURE) == database.structure and await _rows(connection, seeded) == seeded
    except LOST:
        return False


async def _end_sessions(connection: _Connection) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while await connection.fetch(_END_SESSIONS):
            await asyncio.sleep(0.001)


async def _empty(connection: _Connection, rows: Mapping[str, list[asyncpg.Record]]) -> None:
    tables = await connection.fetch(_TABLES)
    if others := [table["name"] for table in tables if table["name"] not in rows]:
        await connection.execute(f"DROP TABLE {', '.join(others)} CASCADE")
    used = [table for table in tables if table["used"] and rows.get(table["name"]) == []]
    # DELETE takes 0.1 ms, TRUNCATE 1.4 ms, because it makes new files for all indexes. The planner takes a table of
    # up to ten pages without statistics for one of ten pages, so it does not see the pages that DELETE leaves.
    if small := [table["name"] for table in used if table["small"]]:
        await connection.execute("; ".join(f"DELETE FROM {name}" for name in small))
    if others := [table["name"] for table in used if not table["small"]]:
        await connection.execute(f"TRUNCATE {', '.join(others)} RESTART IDENTITY CASCADE")
        await connection.execute(_FORGET_STATISTICS)


async def _rows(connection: _Connection, tables: Iterable[str]) -> dict[str, list[asyncpg.Record]]:
    return {name: await connection.fetch(f"SELECT * FROM {name} AS row ORDER BY row::text") for name in tables}
