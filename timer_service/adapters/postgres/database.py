"""The PostgreSQL database: one connection pool for the service's own work, one for queries and gauges."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import asyncpg

from timer_service.adapters.postgres.errors import LOGIN_REFUSED, is_outage, text_of, translate_errors
from timer_service.adapters.postgres.text import insert_from_arrays, is_single_row_insert, one_by_one, translate
from timer_service.core.ports.completion import run_to_completion
from timer_service.core.ports.database import Parameters, Row, Transaction
from timer_service.core.ports.health import HEALTHY, Health, log_waiting
from timer_service.core.ports.transactions import TransactionEnd
from timer_service.core.values.errors import (
    DatabaseBlockedError,
    DatabaseBusyError,
    DatabaseSetupError,
    DatabaseUnavailableError,
    StartError,
)
from timer_service.secret_source import SecretSource

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_NONE: Parameters = {}
_FIRST_CONNECT = timedelta(seconds=10)
_CONNECT_SECONDS = 5
_RECONNECT_SECONDS = 0.2
STATEMENT_SECONDS = 20
_MIGRATION_SECONDS = 3600
ROLLBACK_SECONDS = 5
_WORK_CONNECTIONS = 10
_QUERY_CONNECTIONS = 4
MOST_CONNECTIONS = _WORK_CONNECTIONS + _QUERY_CONNECTIONS
"""How many connections an instance opens at most."""
OLDEST_VERSION = 13

# The plan decides how fast a claim is. Statistics lag behind a queue, and the planner then picks a wrong plan. Every
# statement has an index that returns its rows in the wanted order, so all other plans are disabled. The planner gives a
# disabled plan a very high cost, which would start the JIT compiler, so JIT is disabled too.
_PINNED = "; ".join(
    f"SET LOCAL {setting} = off"
    for setting in (
        *("enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_incremental_sort"),
        *("enable_hashjoin", "enable_mergejoin", "jit"),
    )
)
# All claims skip rows that another session has locked. Without this, a machine that lost its power keeps its locks.
_IDLE_TIMEOUT = "SET LOCAL idle_in_transaction_session_timeout = '10s'"
# Longer than the server's `deadlock_timeout` of 1 s: a deadlock must end as a conflict, which is retried at once.
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '1500ms'"
_WAIT_BRIEFLY = "SET LOCAL lock_timeout = '10ms'"
_BEGIN_MIGRATING = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {_PINNED}; {_IDLE_TIMEOUT}"
BEGIN = f"{_BEGIN_MIGRATING}; {_LOCK_TIMEOUT}"
_BEGIN_READING = f"{BEGIN}; SET TRANSACTION READ ONLY"
"""READ WRITE first, so that a standby refuses the transaction. A standby would return old data without an error."""
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"
_TRY_LOCK = "SELECT :name AS name, pg_try_advisory_xact_lock(hashtextextended(:name, 0)) AS locked"
_CLOCK = "SELECT CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000) AS BIGINT) AS at"
_ONE_MIGRATION_AT_A_TIME = "SELECT pg_advisory_xact_lock(7240021846127)"

_Connection = Any
"""An asyncpg connection from a pool. The stubs of asyncpg have another type for it."""


class _Session:
    """An open transaction on one connection. `core.ports.database.Transaction` describes its methods."""

    def __init__(
        self, connection: _Connection, inserts: dict[str, str], timeout_seconds: float, end: TransactionEnd
    ) -> None:
        self._connection = connection
        self._inserts = inserts
        self._timeout = timeout_seconds
        self.on_commit = end.on_commit
        self.wrote = False
        """Whether a statement changed rows, except one of `fetch`."""

    async def fetch(self, sql: str, parameters: Parameters = _NONE) -> Sequence[Row]:
        text, names = translate(sql)
        rows: Sequence[Row] = await self._connection.fetch(
            text, *(parameters[name] for name in names), timeout=self._timeout
        )
        return rows

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> Sequence[Row]:
        return await self._fetch_each(sql, "", many)

    async def execute(self, sql: str, parameters: Parameters = _NONE) -> int:
        text, names = translate(sql)
        return await self._execute(text, [parameters[name] for name in names])

    async def executemany(self, sql: str, many: Sequence[Parameters]) -> int:
        if not many:
            return 0
        text, names = translate(sql)
        if is_single_row_insert(text):
            return await self._execute(
                await self._insert_from_arrays(text), [[each[name] for each in many] for name in names]
            )
        # Only returned rows can be counted: asyncpg drops the command statuses of a pipeline.
        changed = len(await self._fetch_each(sql, " RETURNING 1 AS one", many))
        self.wrote = self.wrote or changed > 0
        return changed

    async def insert(self, sql: str, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        if not rows:
            return []
        text = await self._insert_from_arrays(translate(sql).text)
        returned = await self._connection.fetch(text, *zip(*rows, strict=True), timeout=self._timeout)
        if "RETURNING" not in text:
            self.wrote = True
            return rows
        inserted_keys = set(map(tuple, returned))
        self.wrote = self.wrote or bool(inserted_keys)
        if len(inserted_keys) == len(rows):
            return rows
        key_length = len(next(iter(inserted_keys), ()))  # the first values of a row are its key
        return [row for row in rows if tuple(row[:key_length]) in inserted_keys]

    async def lock(self, names: Sequence[str], *, wait: bool = True) -> Sequence[str]:
        each = [{"name": name} for name in names]
        if wait:
            await self.fetch_each(_LOCK, each)
            return names
        return [row["name"] for row in await self.fetch_each(_TRY_LOCK, each) if row["locked"]]

    async def wait_briefly(self) -> None:
        await self._connection.execute(_WAIT_BRIEFLY, timeout=self._timeout)

    async def _execute(self, text: str, arguments: Sequence[Any]) -> int:
        """Run a statement. Return how many rows it changed, by the status of the server; 0 for other statements."""
        status: str = await self._connection.execute(text, *arguments, timeout=self._timeout)
        count = status.rpartition(" ")[2]  # "UPDATE 3", "INSERT 0 3", but "CREATE TABLE"
        changed = int(count) if count.isdigit() else 0
        self.wrote = self.wrote or changed > 0
        return changed

    async def _insert_from_arrays(self, text: str) -> str:
        """Return the statement that inserts many rows at once."""
        if text not in self._inserts:
            parameters = (await self._connection.prepare(text)).get_parameters()
            self._inserts[text] = insert_from_arrays(text, [each.name for each in parameters])
        return self._inserts[text]

    async def _fetch_each(self, sql: str, suffix: str, many: Sequence[Parameters]) -> Sequence[Row]:
        """Run a statement, with a suffix, for each of `many` in one round trip. Return all rows."""
        sql, many = one_by_one(sql, many)
        if not many:
            return []
        text, names = translate(sql)
        arguments = [[parameters[name] for name in names] for parameters in many]
        # If asyncpg is cancelled while it sends them, it waits until the timeout for a result that cannot come.
        sending = self._connection.fetchmany(text + suffix, arguments, timeout=self._timeout)
        rows: Sequence[Row] = await run_to_completion(sending)
        return rows


class _Reader:
    """Runs each statement in a read-only transaction."""

    def __init__(self, database: "PostgresDatabase", pool: asyncpg.Pool) -> None:
        self._database = database
        self._pool = pool
        self.health = HEALTHY
        """Whether the last statement met no outage."""

    async def fetch(self, sql: str, parameters: Parameters = _NONE) -> Sequence[Row]:
        async with self._session() as session:
            return await session.fetch(sql, parameters)

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> Sequence[Row]:
        async with self._session() as session:
            return await session.fetch_each(sql, many)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[_Session]:
        """Open a transaction that reads, and record whether the server can be used. A slow statement is no outage."""
        try:
            async with self._database.session(self._pool, _BEGIN_READING) as session:
                yield session
        except DatabaseBlockedError:
            raise
        except DatabaseUnavailableError as error:
            self.health = _health_after(error)
            raise
        self.health = HEALTHY


class PostgresDatabase:
    """`core.ports.database.Database` on PostgreSQL. It reconnects after the server restarts."""

    engine = "postgres"
    exclusive = False

    def __init__(self, work_pool: asyncpg.Pool, query_pool: asyncpg.Pool) -> None:
        self._work_pool = work_pool
        self._query_pool = query_pool
        self.reader = _Reader(self, work_pool)
        self.queries = _Reader(self, query_pool)
        self.health = HEALTHY
        self._inserts: dict[str, str] = {}

    @classmethod
    async def open(cls, url: str | Callable[[], str], *, statement_cache_size: int = 100) -> "PostgresDatabase":
        """Connect. Raises `StartError` at once if the login is refused, and after ten seconds without an answer.

        `url`: or a function that returns it, such as from a file. It is called in a thread for each new connection.
        `statement_cache_size`: prepared statements per connection. It must be 0 behind a pooler in transaction mode.
        """
        secrets = SecretSource(url if callable(url) else lambda: url, "the login at the database")

        async def connect(*_: object, **options: Any) -> _Connection:
            return await _connect(secrets, options)

        def create_pool(max_size: int) -> asyncpg.Pool:
            return asyncpg.create_pool(
                connect=connect,
                min_size=0,  # with 1, a pool whose first connection fails is unusable, and its `close` raises
                max_size=max_size,
                timeout=_CONNECT_SECONDS,
                command_timeout=STATEMENT_SECONDS,
                statement_cache_size=statement_cache_size,
                reset=_skip_reset,
            )

        work_pool, query_pool = await create_pool(_WORK_CONNECTIONS), await create_pool(_QUERY_CONNECTIONS)
        try:
            await _wait_for_server(work_pool)
        except BaseException:
            work_pool.terminate()  # `query_pool` has no connections yet
            raise
        return cls(work_pool, query_pool)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_Session]:
        """Open a write transaction, READ COMMITTED. Raises `ConflictError` on a conflict with another instance."""
        async with self._writing(BEGIN, STATEMENT_SECONDS) as session:
            yield session

    async def run(self, work: Callable[[Transaction], Awaitable[_T]]) -> _T:
        """Run `work` in a write transaction."""
        async with self.transaction() as session:
            return await work(session)

    accepting = transaction

    @asynccontextmanager
    async def migrating(self) -> AsyncIterator[_Session]:
        """Open a write transaction for migrations. One instance migrates at a time. A statement may take an hour.

        Raises `StartError` if the database role lacks a permission.
        """
        try:
            async with self._writing(_BEGIN_MIGRATING, _MIGRATION_SECONDS) as session:
                await session.execute(_ONE_MIGRATION_AT_A_TIME)
                yield session
        except DatabaseSetupError as error:
            if not isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError):
                raise
            raise StartError(
                f"the database role may not apply migrations: {error}. Grant the permission, or run "
                "`timer-service migrate up` as the owner of the tables"
            ) from error

    @asynccontextmanager
    async def session(
        self, pool: asyncpg.Pool, begin: str, timeout_seconds: float = STATEMENT_SECONDS
    ) -> AsyncIterator[_Session]:
        """Open a transaction on a connection of a pool. Raises `DatabaseBusyError` if all connections stay in use."""
        end = TransactionEnd()
        with translate_errors():
            async with _acquire(pool) as connection, _transaction(connection, begin, end):
                yield _Session(connection, self._inserts, timeout_seconds, end)

    @asynccontextmanager
    async def _writing(self, begin: str, timeout_seconds: float) -> AsyncIterator[_Session]:
        """Open a transaction that writes, and record whether the server can be used. A busy or slow server can be."""
        try:
            async with self.session(self._work_pool, begin, timeout_seconds) as session:
                yield session
        except (DatabaseBusyError, DatabaseBlockedError):
            raise
        except DatabaseUnavailableError as error:
            self.health = _health_after(error)
            raise
        if session.wrote:  # a commit without changes succeeds on a full disk too
            self.health = HEALTHY

    @property
    def read_health(self) -> Health:
        """Whether the last read with `reader` succeeded."""
        return self.reader.health

    async def clock_at(self) -> int:
        """Return the time of the server's clock, in microseconds since the epoch."""
        (row,) = await self.reader.fetch(_CLOCK)
        at: int = row["at"]
        return at

    async def close(self) -> None:
        """Close every connection."""
        await self._query_pool.close()
        await self._work_pool.close()


class LoginRefusedError(DatabaseUnavailableError):
    """The server has refused the login, or the driver cannot use the URL. The message says which, and the reason."""


def _health_after(error: DatabaseUnavailableError) -> Health:
    """Return the health after an outage. The texts of a refused login and of a wrong set-up name the database."""
    explained = isinstance(error, LoginRefusedError | DatabaseSetupError)
    return Health.down(str(error) if explained else f"the database is unavailable: {error}")


async def _skip_reset(_connection: _Connection) -> None:
    """Do nothing. All settings are local to a transaction, and asyncpg's own reset costs a round trip."""


async def _connect(secrets: SecretSource[str], options: Mapping[str, Any]) -> _Connection:
    """Open a connection with the newest URL. Raises `LoginRefusedError` if the server refuses it."""
    url = await secrets.read()
    try:
        connection = await asyncpg.connect(url, **options)
    except LOGIN_REFUSED as error:
        raise LoginRefusedError(secrets.refused(f"the database refuses the login: {error}")) from error
    except asyncpg.ClientConfigurationError as error:  # for example, a file of a certificate is missing
        raise LoginRefusedError(secrets.refused(f"the URL of the database cannot be used: {error}")) from error
    secrets.accepted()
    return connection


async def _wait_for_server(pool: asyncpg.Pool) -> None:
    """Wait until the server answers. Raises `StartError` after ten seconds, and at once for any other error."""
    deadline = time.monotonic() + _FIRST_CONNECT.total_seconds()
    reason, version = "", None
    with log_waiting("the database (TIMER_DATABASE_URL)", lambda: reason):
        while version is None:
            try:
                version = int(await pool.fetchval("SHOW server_version_num")) // 10000
            except LoginRefusedError as error:
                raise StartError(f"{error} (TIMER_DATABASE_URL)") from error
            except Exception as error:
                reason = text_of(error)
                if not is_outage(error) or time.monotonic() > deadline:
                    raise StartError(f"cannot connect to the database (TIMER_DATABASE_URL): {reason}") from error
                await asyncio.sleep(_RECONNECT_SECONDS)
    if version < OLDEST_VERSION:
        raise StartError(f"PostgreSQL {version} is too old (TIMER_DATABASE_URL): use {OLDEST_VERSION} or later")


@asynccontextmanager
async def _acquire(pool: asyncpg.Pool) -> AsyncIterator[_Connection]:
    """Yield a connection of a pool. Raises `DatabaseBusyError` if all of them stay in use."""
    try:
        connection = await pool.acquire(timeout=STATEMENT_SECONDS)
    except TimeoutError as error:
        if pool.get_size() < pool.get_max_size():
            raise  # the server did not accept a connection
        raise DatabaseBusyError(f"all {pool.get_max_size()} connections are in use") from error
    try:
        yield connection
    finally:
        await pool.release(connection)


@asynccontextmanager
async def _transaction(connection: _Connection, begin: str, end: TransactionEnd) -> AsyncIterator[None]:
    """Begin a transaction, and commit it after the block, or roll it back. Both go on if the task is cancelled."""
    try:
        await _begin(connection, begin)
        yield
    except TimeoutError as error:
        if await run_to_completion(_roll_back(connection)):  # so the server answers
            raise DatabaseBlockedError("a statement took too long, and the server answers") from error
        raise
    except BaseException:
        await run_to_completion(_roll_back(connection))
        raise
    await run_to_completion(_commit(connection, end))


async def _begin(connection: _Connection, begin: str) -> None:
    """Begin a transaction. Raises `DatabaseUnavailableError` if the server is a standby."""
    try:
        await connection.execute(begin)
    except asyncpg.FeatureNotSupportedError as error:  # "cannot set transaction read-write mode during recovery"
        connection.terminate()  # a new connection may reach the primary
        raise DatabaseUnavailableError(f"the server is a standby: {error}") from error


async def _roll_back(connection: _Connection) -> bool:
    """Roll back, or end the connection if that fails. Return whether the server has answered."""
    try:
        async with asyncio.timeout(ROLLBACK_SECONDS):  # asyncpg waits for an earlier statement without a limit
            await connection.execute("ROLLBACK")
    except Exception:  # noqa: BLE001 - after any error, a new connection has no open transaction
        with suppress(asyncpg.InterfaceError):  # the connection was lost and is back in the pool
            connection.terminate()
        return False
    return True


async def _commit(connection: _Connection, end: TransactionEnd) -> None:
    """Commit, and call what waits for it. Raises an error if the server has rolled back instead."""
    if await connection.execute("COMMIT") != "COMMIT":
        raise asyncpg.InFailedSQLTransactionError(
            "a statement of the transaction failed, so the transaction was rolled back"
        )
    end.committed()
