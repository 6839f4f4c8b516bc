"""How a PostgreSQL server is set up for this role and this database."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from timer_service.cli.doctor.finding import Finding, Status

_OFF = {"off", "false", "no", "0"}


@dataclass(frozen=True, slots=True)
class Server:
    """Who answers, and as what."""

    version: str
    number: int
    """The version as `server_version_num` has it: 150018."""
    database: str
    role: str
    """Both quoted as SQL wants them."""
    standby: bool


@dataclass(frozen=True, slots=True)
class Connections:
    """How many connections there can be."""

    most: int
    reserved: int
    taken: int
    role_limit: int
    database_limit: int
    """Both -1 for none."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as it is for this session."""

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Rights:
    """What the role lacks."""

    schema: str | None
    """Where new tables would go; None where the search path leads nowhere."""
    may_create: bool
    lacking: Mapping[str, Sequence[str]]
    """Table -> privileges."""


def check_database(server: Server, oldest: int) -> Finding:
    """Judge a server that answers; `oldest` is the first version that will do."""
    text = f"PostgreSQL {server.version}, database {server.database}, as {server.role}"
    if server.number // 10000 < oldest:
        return Finding("database", Status.FAIL, f"{text}: too old", f"Run PostgreSQL {oldest} or newer.")
    if server.standby:
        remedy = "Name the primary in TIMER_DATABASE_URL, or add target_session_attrs=read-write to it."
        return Finding("database", Status.FAIL, f"{text}: a standby, which takes no writes", remedy)
    return Finding("database", Status.OK, text)


def check_rights(rights: Rights, role: str, *, pending: bool) -> Finding:
    """Judge what the role may do; making tables matters while a migration is `pending`."""
    if rights.schema is None:
        remedy = f"Make the schema, or let the role use it: GRANT USAGE ON SCHEMA … TO {role};"
        return Finding("privileges", Status.FAIL, "no schema of the search path is there for this role", remedy)
    if pending and not rights.may_create:
        remedy = f"GRANT CREATE ON SCHEMA {rights.schema} TO {role}; or run `timer-service migrate up` as another role."
        return Finding("privileges", Status.FAIL, f"may not make tables in schema {rights.schema}", remedy)
    if rights.lacking:
        lacking = "; ".join(f"{', '.join(each)} on {table}" for table, each in rights.lacking.items())
        grants = " ".join(f"GRANT {', '.join(each)} ON {table} TO {role};" for table, each in rights.lacking.items())
        return Finding("privileges", Status.FAIL, f"lacks {lacking}", grants)
    return Finding("privileges", Status.OK, f"all that the service does in schema {rights.schema} is permitted")


def check_durability(settings: Mapping[str, Setting], server: Server) -> Iterator[Finding]:
    """Judge whether what is committed stays."""
    commit = f"ALTER ROLE {server.role} IN DATABASE {server.database} SET synchronous_commit = on;"
    if settings["synchronous_commit"].source == "client":
        commit = "Take it out of the options in TIMER_DATABASE_URL."
    costs = {
        "fsync": (
            "a crash of its machine can destroy the database",
            "Set fsync = on in the server's configuration.",
        ),
        "full_page_writes": (
            "a crash in the middle of a page can destroy it",
            "Set full_page_writes = on in the server's configuration, unless its file system never tears a page.",
        ),
        "synchronous_commit": (
            "a crash loses the last commits, and with them commands that were acknowledged to the broker",
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
    """Judge whether one more instance finds the connections it may open."""
    for_us = connections.most - connections.reserved
    limits = [each for each in (connections.role_limit, connections.database_limit) if each >= 0]
    usable = min([for_us, *limits])
    free = min(usable, for_us - connections.taken)
    text = f"max_connections = {connections.most}; {usable} for this role, {usable // per_instance} instances with "
    text += f"{per_instance} each; {connections.taken} are taken"
    if free < per_instance:
        remedy = f"Raise {'the CONNECTION LIMIT of role or database' if usable < for_us else 'max_connections'}: "
        remedy += "one more instance, as in a rolling upgrade, may not find its connections."
        return Finding("database connections", Status.WARN, text, remedy)
    return Finding("database connections", Status.OK, text)


def check_autovacuum(settings: Mapping[str, Setting], table_options: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Judge whether dead rows are cleaned up, which every claim leaves; `table_options`: storage parameters."""
    off = [name for name in ("autovacuum", "track_counts") if settings[name].value == "off"]
    for name in off:
        text = f"{name} = off: dead rows pile up, and claims get slower and slower"
        yield Finding("autovacuum", Status.WARN, text, f"Set {name} = on in the server's configuration.")
    exempt = [table for table, options in table_options.items() if any(map(_exempts, options))]
    for table in exempt:
        remedy = f"ALTER TABLE {table} RESET (autovacuum_enabled);"
        yield Finding("autovacuum", Status.WARN, f"is off for {table}: its dead rows pile up", remedy)
    if not off and not exempt:
        yield Finding("autovacuum", Status.OK, "is on")


def _exempts(option: str) -> bool:
    name, _, value = option.partition("=")
    return name == "autovacuum_enabled" and value.lower() in _OFF
