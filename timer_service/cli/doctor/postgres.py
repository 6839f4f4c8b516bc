"""Checks of PostgreSQL, as the service's role and in a read-only transaction."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg

from timer_service.adapters.migrations import APPLIED, Applied
from timer_service.adapters.postgres.database import MOST_CONNECTIONS, OLDEST_VERSION
from timer_service.adapters.postgres.errors import LOGIN_REFUSED
from timer_service.app.schema import migrations
from timer_service.cli.doctor.database import ZONES, check_schema, check_zones
from timer_service.cli.doctor.finding import Finding, Skew, Status, measure_skew
from timer_service.config import Config

_TIMEOUT_SECONDS = 5
_MIGRATIONS = "schema_migrations"
_SERVER = """
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
    quote_ident(current_database()) AS database, quote_ident(current_user) AS role, pg_is_in_recovery() AS standby,
    quote_ident(current_schema()) AS schema,
    COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false) AS may_create
"""
_SETTINGS = "SELECT name, setting, source FROM pg_settings WHERE name = ANY($1)"
_CONNECTIONS = """
WITH room AS (
    SELECT current_setting('max_connections')::int AS most,
        current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
            - COALESCE(current_setting('reserved_connections', true), '0')::int AS ours,
        (SELECT count(*)::int FROM pg_stat_activity
            WHERE datid IS NOT NULL AND usesysid IS NOT NULL AND pid <> pg_backend_pid()) AS taken
)
SELECT most, taken, ours, LEAST(ours, NULLIF(rolconnlimit, -1), NULLIF(datconnlimit, -1)) AS usable
FROM room, pg_roles, pg_database WHERE rolname = current_user AND datname = current_database()
"""
_LACKING = """
SELECT name, ARRAY(SELECT want FROM unnest($2::text[]) AS want
    WHERE NOT has_table_privilege(to_regclass(name), want) AND (want = 'SELECT' OR name <> $3)) AS lacking
FROM unnest($1::text[]) AS name WHERE to_regclass(name) IS NOT NULL
"""
_PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")
_NAMES = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)
_CONFIGURED = "in the server's configuration"
_COSTS = {
    "fsync": "a crash of its machine can destroy the database",
    "full_page_writes": "a crash while a page is written can destroy the page",
    "synchronous_commit": (
        "a crash loses the last commits: their events are published twice, and reports of workers in them are lost"
    ),
}

Row = Mapping[str, Any]
_Connection = Any
"""An asyncpg connection."""


async def check_postgres(config: Config, url: str) -> Sequence[Finding | Skew]:
    """Log in, and check the server, the schema, the rights, durability, connections, autovacuum and the clock."""
    try:
        connection: _Connection = await asyncpg.connect(
            url,
            timeout=_TIMEOUT_SECONDS,
            command_timeout=_TIMEOUT_SECONDS,
            statement_cache_size=config.database_statement_cache,
        )
        try:
            async with connection.transaction(readonly=True):
                return await _check_all(connection, config)
        finally:
            await connection.close(timeout=_TIMEOUT_SECONDS)
    except LOGIN_REFUSED as error:
        remedy = "Check the user, the password and the database in TIMER_DATABASE_URL."
        return [Finding("database", Status.FAIL, f"refuses the login: {error}", remedy)]
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        remedy = "Check TIMER_DATABASE_URL, and that the server runs and has a free connection."
        return [Finding("database", Status.FAIL, f"cannot be used: {str(error) or type(error).__name__}", remedy)]


async def _check_all(connection: _Connection, config: Config) -> Sequence[Finding | Skew]:
    """Do the checks of a connection."""
    server = await connection.fetchrow(_SERVER)
    settings = {row["name"]: row for row in await connection.fetch(_SETTINGS, [*_COSTS, "autovacuum"])}
    asked_at = datetime.now(UTC)
    reading: datetime = await connection.fetchval("SELECT clock_timestamp()")
    skew = measure_skew("the database's clock", asked_at=asked_at, reading=reading)
    return [
        check_server(server),
        *await _check_tables(connection, server, automatic=config.auto_migrate),
        *check_settings(settings, server),
        check_connections(await connection.fetchrow(_CONNECTIONS)),
        skew,
    ]


async def _check_tables(connection: _Connection, server: Row, *, automatic: bool) -> Sequence[Finding]:
    """Check the schema and the rights on its tables. Without the right to read the migrations, only the rights."""
    known = migrations()
    tables = [_MIGRATIONS, *(name for migration in known for name in _NAMES.findall(migration.text))]
    rows = await connection.fetch(_LACKING, tables, _PRIVILEGES, _MIGRATIONS)
    lacking = {row["name"]: row["lacking"] for row in rows if row["lacking"]}
    if _MIGRATIONS in lacking:
        return [check_rights(server, lacking, pending=False)]
    applied: Applied = {}
    if any(row["name"] == _MIGRATIONS for row in rows):  # else no migration was applied
        applied = {row["number"]: (row["name"], row["checksum"]) for row in await connection.fetch(APPLIED)}
    pending = len(applied) < len(known)
    zones = [] if pending or lacking else check_zones([tuple(row) for row in await connection.fetch(ZONES)])
    return [
        check_schema(applied, known, automatic=automatic),
        check_rights(server, lacking, pending=pending),
        *zones,
    ]


def check_server(server: Row) -> Finding:
    """Check the version and the role of the server."""
    text = f"PostgreSQL {server['version']}, database {server['database']}, as {server['role']}"
    if server["number"] // 10000 < OLDEST_VERSION:
        return Finding("database", Status.FAIL, f"{text}: too old", f"Run PostgreSQL {OLDEST_VERSION} or newer.")
    if server["standby"]:
        remedy = "Name the primary in TIMER_DATABASE_URL, or add target_session_attrs=read-write to it."
        return Finding("database", Status.FAIL, f"{text}: a standby, which refuses writes", remedy)
    return Finding("database", Status.OK, text)


def check_rights(server: Row, lacking: Mapping[str, Sequence[str]], *, pending: bool) -> Finding:
    """Check the rights of the role. `lacking`: by table. If a migration is `pending`, it must create tables."""
    schema, role = server["schema"], server["role"]
    if schema is None:
        remedy = f"Create the schema, or let the role use it: GRANT USAGE ON SCHEMA … TO {role};"
        return Finding("privileges", Status.FAIL, "the role can use no schema of the search path", remedy)
    if pending and not server["may_create"]:
        remedy = f"GRANT CREATE ON SCHEMA {schema} TO {role}; or run `timer-service migrate up` as another role."
        return Finding("privileges", Status.FAIL, f"may not create tables in schema {schema}", remedy)
    if lacking:
        wanted = [(", ".join(privileges), table) for table, privileges in lacking.items()]
        text = "; ".join(f"{privileges} on {table}" for privileges, table in wanted)
        grants = " ".join(f"GRANT {privileges} ON {table} TO {role};" for privileges, table in wanted)
        return Finding("privileges", Status.FAIL, f"lacks {text}", grants)
    return Finding("privileges", Status.OK, f"the role may do everything that the service needs in schema {schema}")


def check_settings(settings: Mapping[str, Row], server: Row) -> Iterator[Finding]:
    """Check that a commit survives a crash, and that dead rows are removed; every claim leaves some."""
    off = [name for name in _COSTS if settings[name]["setting"] == "off"]
    for name in off:
        source = settings[name]["source"]
        if source == "client":
            remedy = "Remove it from the options in TIMER_DATABASE_URL."
        elif name == "synchronous_commit":  # the only one of them that a role can set
            remedy = f"ALTER ROLE {server['role']} IN DATABASE {server['database']} SET synchronous_commit = on;"
        else:
            remedy = f"Set {name} = on {_CONFIGURED}."
        yield Finding("database durability", Status.WARN, f"{name} = off (set by: {source}): {_COSTS[name]}", remedy)
    if not off:
        text = ", ".join(f"{name} = {settings[name]['setting']}" for name in _COSTS)
        yield Finding("database durability", Status.OK, text)
    if settings["autovacuum"]["setting"] == "off":
        text = "autovacuum = off: dead rows accumulate, and claims become slower"
        yield Finding("autovacuum", Status.WARN, text, f"Set autovacuum = on {_CONFIGURED}.")
    else:
        yield Finding("autovacuum", Status.OK, "is on")


def check_connections(row: Row) -> Finding:
    """Check that one more instance can open all its connections.

    `row`: `most` is max_connections, `ours` is without reserved ones, `usable` also obeys limits of role and database.
    """
    usable, each = row["usable"], MOST_CONNECTIONS
    text = f"max_connections = {row['most']}; {usable} for this role, {usable // each} instances with {each} each"
    text = f"{text}; {row['taken']} are taken"
    if min(usable, row["ours"] - row["taken"]) < each:
        limit = "the CONNECTION LIMIT of role or database" if usable < row["ours"] else "max_connections"
        remedy = f"Raise {limit}: one more instance, for example in a rolling upgrade, may get too few connections."
        return Finding("database connections", Status.WARN, text, remedy)
    return Finding("database connections", Status.OK, text)
