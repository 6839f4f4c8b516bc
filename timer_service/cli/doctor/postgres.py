"""Reads the facts that doctor checks in PostgreSQL, as the service's role and in a read-only transaction."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg

from timer_service.adapters.postgres.database import MOST_CONNECTIONS, OLDEST_VERSION
from timer_service.app.schema import migrations
from timer_service.cli.doctor.clocks import check_database_clock
from timer_service.cli.doctor.finding import Finding, Skew, Status
from timer_service.cli.doctor.postgres_checks import (
    Connections,
    Rights,
    Server,
    Setting,
    check_autovacuum,
    check_connections,
    check_database,
    check_durability,
    check_rights,
)
from timer_service.cli.doctor.schema import Applied, check_schema
from timer_service.config import Config

_TIMEOUT_SECONDS = 5
_MIGRATIONS = "schema_migrations"
_SERVER = """
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
    quote_ident(current_database()) AS database, quote_ident(current_user) AS role, pg_is_in_recovery() AS standby
"""
_SETTINGS = "SELECT name, setting, source FROM pg_settings WHERE name = ANY($1)"
_WATCHED = ("fsync", "full_page_writes", "synchronous_commit", "autovacuum", "track_counts")
_CONNECTIONS = """
SELECT current_setting('max_connections')::int AS most,
    current_setting('superuser_reserved_connections')::int
        + COALESCE(current_setting('reserved_connections', true), '0')::int AS reserved,
    (SELECT count(*) FROM pg_stat_activity
        WHERE datid IS NOT NULL AND usesysid IS NOT NULL AND pid <> pg_backend_pid()) AS taken,
    rolconnlimit AS role_limit, datconnlimit AS database_limit
FROM pg_roles, pg_database WHERE rolname = current_user AND datname = current_database()
"""
_TABLES = """
SELECT name, COALESCE(reloptions, '{}') AS options,
    ARRAY(SELECT want FROM unnest($2::text[]) AS want
        WHERE NOT has_table_privilege(pg_class.oid, want) AND (want = 'SELECT' OR name <> $3)) AS lacking
FROM unnest($1::text[]) AS name JOIN pg_class ON pg_class.oid = to_regclass(name)
"""
_PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")
_SCHEMA = """
SELECT quote_ident(current_schema()) AS name,
    COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false) AS may_create
"""
_APPLIED = "SELECT number, name, checksum FROM schema_migrations"
_NAMES = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)

_Connection = Any
"""An asyncpg connection."""


async def check_postgres(config: Config, url: str) -> AsyncIterator[Finding]:
    """Log in, and check the server, the schema, durability, connections, the clock and autovacuum."""
    try:
        async with _connect(url, config.database_statement_cache) as connection:
            async for finding in _check_all(connection, config):
                yield finding
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        remedy = "Check the user, the password and the database in TIMER_DATABASE_URL."
        yield Finding("database", Status.FAIL, f"refuses the login: {error}", remedy)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        remedy = "Check TIMER_DATABASE_URL, and that the server runs and has a free connection."
        yield Finding("database", Status.FAIL, f"cannot be used: {str(error) or type(error).__name__}", remedy)


@asynccontextmanager
async def _connect(url: str, statement_cache_size: int) -> AsyncIterator[_Connection]:
    connection = await asyncpg.connect(
        url,
        timeout=_TIMEOUT_SECONDS,
        command_timeout=_TIMEOUT_SECONDS,
        statement_cache_size=statement_cache_size,
    )
    try:
        async with connection.transaction(readonly=True):
            yield connection
    finally:
        await connection.close(timeout=_TIMEOUT_SECONDS)


async def _check_all(connection: _Connection, config: Config) -> AsyncIterator[Finding]:
    server = Server(**await connection.fetchrow(_SERVER))
    yield check_database(server, OLDEST_VERSION)
    tables = {row["name"]: row for row in await connection.fetch(_TABLES, _table_names(), _PRIVILEGES, _MIGRATIONS)}
    async for finding in _check_schema(connection, config, tables, server.role):
        yield finding
    rows = await connection.fetch(_SETTINGS, _WATCHED)
    settings = {row["name"]: Setting(row["setting"], row["source"]) for row in rows}
    for finding in check_durability(settings, server):
        yield finding
    yield check_connections(Connections(**await connection.fetchrow(_CONNECTIONS)), MOST_CONNECTIONS)
    yield await _check_clock(connection)
    for finding in check_autovacuum(settings, {name: row["options"] for name, row in tables.items()}):
        yield finding


def _table_names() -> Sequence[str]:
    return [_MIGRATIONS, *(name for migration in migrations("postgres") for name in _NAMES.findall(migration.text))]


async def _check_schema(
    connection: _Connection, config: Config, tables: Mapping[str, Mapping[str, Any]], role: str
) -> AsyncIterator[Finding]:
    """Check the rights of the role. Check the migrations too if the role can read their table."""
    shipped = migrations("postgres")
    lacking = {name: row["lacking"] for name, row in tables.items() if row["lacking"]}
    applied: Applied = {}
    if _MIGRATIONS not in lacking:
        if _MIGRATIONS in tables:
            applied = {row["number"]: (row["name"], row["checksum"]) for row in await connection.fetch(_APPLIED)}
        yield check_schema(applied, shipped, automatic=config.auto_migrate, setting="TIMER_DATABASE_URL")
    schema = await connection.fetchrow(_SCHEMA)
    rights = Rights(schema["name"], schema["may_create"], lacking)
    pending = _MIGRATIONS not in lacking and len(applied) < len(shipped)
    yield check_rights(rights, role, pending=pending)


async def _check_clock(connection: _Connection) -> Finding:
    """Compare clocks: the database read its clock between the request and the reply."""
    asked_at = datetime.now(UTC)
    read: datetime = await connection.fetchval("SELECT clock_timestamp()")
    half = (datetime.now(UTC) - asked_at) / 2
    return check_database_clock(Skew(asked_at + half - read, half))
