"""The schema of SQLite compared with the schema of PostgreSQL."""

import re
from typing import NamedTuple

from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.database import Reader

SAME_TYPE = {"TEXT": "text", "BIGINT": "bigint", "INTEGER": "integer", "BLOB": "bytea"}


class Column(NamedTuple):
    """A column, in a form that both engines share."""

    table: str
    name: str
    type: str
    may_be_null: bool
    default: str | None


class Index(NamedTuple):
    """An index, in a form that both engines share."""

    table: str
    unique: bool
    columns: tuple[str, ...]
    """The columns and the expressions of the index."""
    only_where: str | None


async def sqlite_columns(reader: Reader) -> set[Column]:
    rows = await reader.fetch("""
        SELECT tables.name AS "table", columns.* FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
        WHERE tables.type = 'table'
    """)
    return {
        Column(
            row["table"],
            row["name"],
            SAME_TYPE[row["type"]],
            not (row["notnull"] or row["pk"]),
            row["dflt_value"],
        )
        for row in rows
    }


async def postgres_columns(reader: Reader) -> set[Column]:
    rows = await reader.fetch("SELECT * FROM information_schema.columns WHERE table_schema = 'public'")
    return {
        Column(
            row["table_name"],
            row["column_name"],
            row["data_type"],
            row["is_nullable"] == "YES",
            row["column_default"],
        )
        for row in rows
    }


async def sqlite_indexes(reader: Reader) -> set[Index]:
    rows = await reader.fetch("""
        SELECT tables.name AS "table", indexes.name AS name, indexes."unique" AS is_unique, texts.sql AS sql
        FROM sqlite_master AS tables, pragma_index_list(tables.name) AS indexes
        JOIN sqlite_master AS texts ON texts.name = indexes.name WHERE tables.type = 'table'
    """)
    found = set()
    for row in rows:
        columns = await reader.fetch("SELECT name FROM pragma_index_info(:name) ORDER BY seqno", {"name": row["name"]})
        names = tuple(column["name"] for column in columns)
        definition, _, where = " ".join((row["sql"] or "").split()).partition(" WHERE ")
        if None in names:  # an expression
            listed = definition.partition(f" ON {row['table']} (")[2][:-1]
            names = tuple(re.split(r", (?![^(]*\))", listed))  # at the commas outside of parentheses
        found.add(Index(row["table"], bool(row["is_unique"]), names, _normalize(where)))
    return found


async def postgres_indexes(reader: Reader) -> set[Index]:
    rows = await reader.fetch("""
        SELECT indrelid::regclass::text AS table, indisunique, pg_get_expr(indpred, indrelid) AS predicate,
            ARRAY(SELECT pg_get_indexdef(indexrelid, place, true)
                  FROM generate_series(1, indnkeyatts) AS place ORDER BY place) AS columns
        FROM pg_index WHERE indrelid >= 16384 AND indrelid::regclass::text NOT LIKE 'pg_%'
    """)
    return {
        Index(row["table"], row["indisunique"], tuple(row["columns"]), _normalize(row["predicate"] or ""))
        for row in rows
    }


def _normalize(predicate: str) -> str | None:
    """Return a condition without the casts and parentheses that one engine adds."""
    return re.sub(r"::text|[()]", "", " ".join(predicate.split())) or None


async def test_columns_are_equal(sqlite: SqliteDatabase, postgres: PostgresDatabase) -> None:
    """Both engines have the same tables and columns, with the same types, nullability and defaults."""
    columns = await sqlite_columns(sqlite.reader)
    assert len(columns) > 20
    assert columns == await postgres_columns(postgres.reader)


async def test_indexes_are_equal(sqlite: SqliteDatabase, postgres: PostgresDatabase) -> None:
    """Both engines have the same indexes, over the same columns and rows."""
    indexes = await sqlite_indexes(sqlite.reader)
    assert len(indexes) > 5
    # SQLite has no index for an integer primary key.
    integer_keys = {
        Index("schema_migrations", unique=True, columns=("number",), only_where=None),
        Index("installation", unique=True, columns=("one",), only_where=None),
        Index("command_log", unique=True, columns=("partition_number",), only_where=None),
    }
    assert indexes | integer_keys == await postgres_indexes(postgres.reader)


async def test_check_constraints_are_equal_in_number(sqlite: SqliteDatabase, postgres: PostgresDatabase) -> None:
    """Each table has the same number of CHECK constraints on both engines."""
    texts = await sqlite.reader.fetch("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
    found = await postgres.reader.fetch("""
        SELECT conrelid::regclass::text AS name, count(*) AS checks FROM pg_constraint
        WHERE contype = 'c' AND connamespace = 'public'::regnamespace GROUP BY conrelid
    """)
    checks = {row["name"]: len(re.findall(r"\bCHECK\b", row["sql"])) for row in texts}
    assert {name: count for name, count in checks.items() if count} == {row["name"]: row["checks"] for row in found}


async def test_keys_compare_by_bytes(postgres: PostgresDatabase) -> None:
    """On PostgreSQL all text columns of keys have the collation C, so their order is that of SQLite and Python."""
    rows = await postgres.reader.fetch("""
        SELECT DISTINCT attrelid::regclass::text || '.' || attname AS name, collname::text AS collation
        FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
        JOIN pg_collation ON pg_collation.oid = attcollation
        WHERE indrelid >= 16384 AND indrelid::regclass::text NOT LIKE 'pg_%'
    """)
    assert rows
    assert {row["name"] for row in rows if row["collation"] != "C"} == set()
