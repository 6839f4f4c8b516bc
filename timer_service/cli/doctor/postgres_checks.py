"""Checks of a PostgreSQL server: its settings for this role and this database. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from timer_service.cli.doctor.finding import Finding, Status

_OFF = {"off", "false", "no", "0"}


@dataclass(frozen=True, slots=True)
class Server:
    """The server, the database and the role of a session."""

    version: str
    number: int
    """The version in the form of `server_version_num`, such as 150018."""
    database: str
    role: str
    """The database and the role are quoted as SQL identifiers."""
    standby: bool


@dataclass(frozen=True, slots=True)
class Connections:
    """The limits on connections. The limit of a role or a database is -1 if there is none."""

    most: int
    reserved: int
    taken: int
    role_limit: int
    database_limit: int


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, with its value for this session."""

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of the role."""

    schema: str | None
    """The schema of new tables, or None if no schema of the search path exists."""
    may_create: bool
    lacking: Mapping[str, Sequence[str]]
    """Table -> the privileges that the role does not have."""


def check_database(server: Server, oldest: int) -> Finding:
    """Check the version and the role of the server. `oldest` is the oldest version that the service supports."""
    text = f"PostgreSQL {server.version}, database {server.database}, as {server.role}"
    if server.number // 10000 < oldest:
        return Finding("database", Status.FAIL, f"{text}: too old", f"Run PostgreSQL {oldest} or newer.")
    if server.standby:
        remedy = "Name the primary in TIMER_DATABASE_URL, or add target_session_attrs=read-write to it."
        return Finding("database", Status.FAIL, f"{text}: a standby, which refuses writes", remedy)
    return Finding("database", Status.OK, text)


def check_rights(rights: Rights, role: str, *, pending: bool) -> Finding:
    """Check the rights of the role. It must be able to create tables if a migration is `pending`."""
    if rights.schema is None:
        remedy = f"Create the schema, or let the role use it: GRANT USAGE ON SCHEMA … TO {role};"
        return Finding("privileges", Status.FAIL, "the role can use no schema of the search path", remedy)
    if pending and not rights.may_create:
        remedy = f"GRANT CREATE ON SCHEMA {rights.schema} TO {role}; or run `timer-service migrate up` as another role."
        return Finding("privileges", Status.FAIL, f"may not create tables in schema {rights.schema}", remedy)
    if rights.lacking:
        lacking = "; ".join(f"{', '.join(privileges)} on {table}" for table, privileges in rights.lacking.items())
        grants = " ".join(
            f"GRANT {', '.join(privileges)} ON {table} TO {role};" for table, privileges in rights.lacking.items()
        )
        return Finding("privileges", Status.FAIL, f"lacks {lacking}", grants)
    return Finding(
        "privileges", Status.OK, f"the role may do everything that the service needs in schema {rights.schema}"
    )


def check_durability(settings: Mapping[str, Setting], server: Server) -> Iterator[Finding]:
    """Check that a commit survives a crash."""
    commit = f"ALTER ROLE {server.role} IN DATABASE {server.database} SET synchronous_commit = on;"
    if settings["synchronous_commit"].source == "client":
        commit = "Remove it from the options in TIMER_DATABASE_URL."
    costs = {
        "fsync": (
            "a crash of its machine can destroy the database",
            "Set fsync = on in the server's configuration.",
        ),
        "full_page_writes": (
            "a crash while a page is written can destroy the page",
            "Set full_page_writes = on in the server's configuration, unless its file system writes pages atomically.",
        ),
        "synchronous_commit": (
            "a crash loses the last commits: their events are published twice, and reports of workers in them are lost",
            commit,
        ),
    }
    off = [name for name in costs if settings[name].value == "off"]
    for name in off:
        cost, remedy = costs[name]
        text = f"{name} = off (set by: {settings[name].source}): {cost}"
        yield Finding("database durability", Status.WARN, text, remedy)
    if not off:
        text = ", ".join(f"{name} = {settings[name].value}" for name in costs)
        yield Finding("database durability", Status.OK, text)


def check_connections(connections: Connections, per_instance: int) -> Finding:
    """Check that one more instance can open all its connections."""
    for_us = connections.most - connections.reserved
    limits = [limit for limit in (connections.role_limit, connections.database_limit) if limit >= 0]
    usable = min([for_us, *limits])
    free = min(usable, for_us - connections.taken)
    text = f"max_connections = {connections.most}; {usable} for this role, {usable // per_instance} instances with "
    text += f"{per_instance} each; {connections.taken} are taken"
    if free < per_instance:
        remedy = f"Raise {'the CONNECTION LIMIT of role or database' if usable < for_us else 'max_connections'}: "
        remedy += "one more instance, for example in a rolling upgrade, may get too few connections."
        return Finding("database connections", Status.WARN, text, remedy)
    return Finding("database connections", Status.OK, text)


def check_autovacuum(settings: Mapping[str, Setting], table_options: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Check that dead rows are removed; every claim leaves some. `table_options` are the storage parameters."""
    off = [name for name in ("autovacuum", "track_counts") if settings[name].value == "off"]
    for name in off:
        text = f"{name} = off: dead rows accumulate, and claims become slower"
        yield Finding("autovacuum", Status.WARN, text, f"Set {name} = on in the server's configuration.")
    exempt = [table for table, options in table_options.items() if any(map(_exempts, options))]
    for table in exempt:
        remedy = f"ALTER TABLE {table} RESET (autovacuum_enabled);"
        yield Finding("autovacuum", Status.WARN, f"is off for {table}: its dead rows accumulate", remedy)
    if not off and not exempt:
        yield Finding("autovacuum", Status.OK, "is on")


def _exempts(option: str) -> bool:
    name, _, value = option.partition("=")
    return name == "autovacuum_enabled" and value.lower() in _OFF
