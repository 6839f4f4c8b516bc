"""PostgreSQL behind the database port: a pool for the service's own work, another for questions."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import asyncpg

from timer_service.adapters.postgres.errors import is_outage, translate_errors
from timer_service.adapters.postgres.text import from_arrays, inserts_rows_of_parameters, translate
from timer_service.core.cancellation import run_to_completion
from timer_service.core.database import Parameters, Row
from timer_service.core.errors import DatabaseUnavailableError, StartError
from timer_service.core.health import HEALTHY, Health

log = logging.getLogger(__name__)

_NONE: Parameters = {}
_FIRST_CONNECT = timedelta(seconds=10)
_CONNECT_SECONDS = 5
_RECONNECT_SECONDS = 0.2
_STATEMENT_SECONDS = 20
_MIGRATION_SECONDS = 3600
_OWN_CONNECTIONS = 10
_QUERY_CONNECTIONS = 4
MOST_CONNECTIONS = _OWN_CONNECTIONS + _QUERY_CONNECTIONS
"""How many an instance may have open."""
OLDEST_VERSION = 13

# The plan decides how fast a claim is, and a planner whose statistics lag behind the queue picks the wrong one. Every
# statement has an index that hands its rows over in the order they are wanted in: leave nothing else to pick. What is
# disabled counts as so dear that it would set off the compiler, hence no jit.
_PINNED = "; ".join(
    f"SET LOCAL {setting} = off"
    for setting in ("enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_hashjoin", "enable_mergejoin", "jit")
)
# Rows locked by a machine that has lost its power are passed over by every other claim until its session ends.
_LETS_GO = "SET LOCAL idle_in_transaction_session_timeout = '10s'"
_BEGIN = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {_PINNED}; {_LETS_GO}"
_BEGIN_READING = f"{_BEGIN}; SET TRANSACTION READ ONLY"
"""Not READ ONLY from the start: a standby would take that, and answer from a while ago as if all were well."""
_CLOCK = "SELECT CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000) AS BIGINT) AS at"
_ONE_MIGRATION_AT_A_TIME = "SELECT pg_advisory_xact_lock(7240021846127)"

_Connection = Any
"""An asyncpg connection out of a pool; its stubs know it under a name of their own."""


class _Session:
    """A transaction that is open on one connection."""

    def __init__(self, connection: _Connection, inserts: dict[str, str], timeout_seconds: float) -> None:
        self._connection = connection
        self._inserts = inserts
        self._timeout = timeout_seconds

    async def fetch(self, sql: str, parameters: Parameters = _NONE) -> Sequence[Row]:
        text, names = translate(sql)
        rows: Sequence[Row] = await self._connection.fetch(
            text, *(parameters[name] for name in names), timeout=self._timeout
        )
        return rows

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> Sequence[Row]:
        return await self._fetch_each(sql, "", many) if many else []

    async def execute(self, sql: str, parameters: Parameters = _NONE) -> int:
        text, names = translate(sql)
        return await self._execute(text, [parameters[name] for name in names])

    async def executemany(self, sql: str, many: Sequence[Parameters]) -> int:
        if not many:
            return 0
        text, names = translate(sql)
        if inserts_rows_of_parameters(text):
            return await self._execute(await self._from_arrays(text), [[each[name] for each in many] for name in names])
        # Only rows that come back can be counted: asyncpg drops the statuses of a pipeline.
        return len(await self._fetch_each(sql, " RETURNING 1 AS one", many))

    async def _execute(self, text: str, arguments: Sequence[Any]) -> int:
        status: str = await self._connection.execute(text, *arguments, timeout=self._timeout)
        count = status.rpartition(" ")[2]  # "UPDATE 3", "INSERT 0 3", but "CREATE TABLE"
        return int(count) if count.isdigit() else 0

    async def _from_arrays(self, text: str) -> str:
        """Return how to insert many rows in one statement.

        Measured: 1000 timers take 52 ms as a pipeline of inserts, and 19 ms so.
        """
        if text not in self._inserts:
            parameters = (await self._connection.prepare(text)).get_parameters()
            self._inserts[text] = from_arrays(text, [each.name for each in parameters])
        return self._inserts[text]

    async def _fetch_each(self, sql: str, suffix: str, many: Sequence[Parameters]) -> Sequence[Row]:
        text, names = translate(sql)
        arguments = [[parameters[name] for name in names] for parameters in many]
        rows: Sequence[Row] = await self._connection.fetchmany(text + suffix, arguments, timeout=self._timeout)
        return rows


class _Reader:
    """Each question in a transaction of its own that can't write."""

    def __init__(self, database: "PostgresDatabase", pool: asyncpg.Pool) -> None:
        self._database = database
        self._pool = pool

    async def fetch(self, sql: str, parameters: Parameters = _NONE) -> Sequence[Row]:
        async with self._database.session(self._pool, _BEGIN_READING) as session:
            return await session.fetch(sql, parameters)

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> Sequence[Row]:
        async with self._database.session(self._pool, _BEGIN_READING) as session:
            return await session.fetch_each(sql, many)


class PostgresDatabase:
    """A PostgreSQL database behind `core.database.Database`. It survives the server's restarts."""

    engine = "postgres"
    exclusive = False

    def __init__(self, own: asyncpg.Pool, questions: asyncpg.Pool) -> None:
        self._own = own
        self._questions = questions
        self.reader = _Reader(self, own)
        self.queries = _Reader(self, questions)
        self.health = HEALTHY
        self._inserts: dict[str, str] = {}

    @classmethod
    async def open(cls, url: str, *, statement_cache_size: int = 100) -> "PostgresDatabase":
        """Connect. Raises `StartError` at once when the login is refused, and after ten seconds of no answer.

        `statement_cache_size`: prepared statements kept per connection; 0 for a pooler in transaction mode.
        """

        def pool(largest: int) -> asyncpg.Pool:
            return asyncpg.create_pool(
                url,
                min_size=0,  # a pool whose first connection fails is closed for good, and closing it raises
                max_size=largest,
                timeout=_CONNECT_SECONDS,
                command_timeout=_STATEMENT_SECONDS,
                statement_cache_size=statement_cache_size,
                reset=_nothing_to_reset,
            )

        own, questions = await pool(_OWN_CONNECTIONS), await pool(_QUERY_CONNECTIONS)
        try:
            await _connect(own)
        except BaseException:
            own.terminate()
            questions.terminate()
            raise
        return cls(own, questions)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_Session]:
        """Open a write transaction, READ COMMITTED. Raises `ConflictError` where another instance was in the way."""
        async with self.session(self._own, _BEGIN) as session:
            yield session

    @asynccontextmanager
    async def migrating(self) -> AsyncIterator[_Session]:
        """Open a write transaction that no other instance's migration runs beside, with an hour for a statement.

        Raises `StartError` where the role may not do what it takes.
        """
        try:
            async with self.session(self._own, _BEGIN, _MIGRATION_SECONDS) as session:
                await session.execute(_ONE_MIGRATION_AT_A_TIME)
                yield session
        except asyncpg.InsufficientPrivilegeError as error:
            raise StartError(
                f"the database role may not bring the schema to head: {error}. Grant it that, or run "
                "`timer-service migrate up` as the tables' owner"
            ) from error

    @asynccontextmanager
    async def session(
        self, pool: asyncpg.Pool, begin: str, timeout_seconds: float = _STATEMENT_SECONDS
    ) -> AsyncIterator[_Session]:
        """Open a transaction on a connection of a pool."""
        try:
            with translate_errors():
                async with pool.acquire(timeout=_STATEMENT_SECONDS) as connection, _begun(connection, begin):
                    yield _Session(connection, self._inserts, timeout_seconds)
        except DatabaseUnavailableError as error:
            self.health = Health.down(str(error))
            raise
        self.health = HEALTHY

    async def clock_at(self) -> int:
        """Return what the server's clock says, in microseconds since the epoch."""
        (row,) = await self.reader.fetch(_CLOCK)
        at: int = row["at"]
        return at

    async def close(self) -> None:
        """Let go of every connection."""
        await self._questions.close()
        await self._own.close()


async def _nothing_to_reset(_connection: _Connection) -> None:
    """Every setting is local to its transaction; asyncpg's own reset would cost a round trip each time."""


async def _connect(pool: asyncpg.Pool) -> None:
    deadline = time.monotonic() + _FIRST_CONNECT.total_seconds()
    while True:
        try:
            version = int(await pool.fetchval("SHOW server_version_num")) // 10000
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
            raise StartError(f"the database refuses the login (TIMER_DATABASE_URL): {error}") from error
        except Exception as error:
            if not is_outage(error) or time.monotonic() > deadline:
                reason = str(error) or type(error).__name__
                raise StartError(f"can't connect to the database (TIMER_DATABASE_URL): {reason}") from error
            await asyncio.sleep(_RECONNECT_SECONDS)
        else:
            if version < OLDEST_VERSION:
                raise StartError(f"PostgreSQL {version} is too old (TIMER_DATABASE_URL): {OLDEST_VERSION} or later")
            return


@asynccontextmanager
async def _begun(connection: _Connection, begin: str) -> AsyncIterator[None]:
    try:
        await _begin(connection, begin)
        yield
    except BaseException:
        await run_to_completion(_roll_back(connection))
        raise
    await run_to_completion(_commit(connection))


async def _begin(connection: _Connection, begin: str) -> None:
    try:
        await connection.execute(begin)
    except asyncpg.FeatureNotSupportedError as error:  # "cannot set transaction read-write mode during recovery"
        connection.terminate()  # the next one may find the primary, this one never
        raise DatabaseUnavailableError(f"a standby: {error}") from error


async def _roll_back(connection: _Connection) -> None:
    try:
        await connection.execute("ROLLBACK")
    except Exception:  # noqa: BLE001 - whatever it is, a new connection has no transaction open
        with suppress(asyncpg.InterfaceError):  # it was lost, and the pool has taken it back already
            connection.terminate()


async def _commit(connection: _Connection) -> None:
    if await connection.execute("COMMIT") != "COMMIT":
        raise asyncpg.InFailedSQLTransactionError("a statement of the transaction had failed; it was rolled back")
