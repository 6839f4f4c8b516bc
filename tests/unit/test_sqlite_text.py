"""The translation of portable SQL for SQLite."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.stores import opened_sqlite
from timer_service.adapters.sqlite.statements import insert, join, parts, prepare

FIND = "SELECT key, number FROM /* each of many */ kept WHERE key = :key AND number = :number"
INSERT = "INSERT INTO kept (key, number) VALUES (:key, :number) ON CONFLICT (key) DO NOTHING"
KEYS = ["x", "007", "1e5", 'it\'s "so"', "\\u0000", "\u2028\U0001f600"]
NUMBERS = [0, -1, 2**53 + 1, 2**63 - 1, -(2**63)]


def test_parameters_are_numbered() -> None:
    """A name gets one number, and text in quotes and comments stays as it is."""
    text, values = prepare("SELECT ':no' WHERE :b = :a AND :b > 0 -- :no")
    assert text == "SELECT ':no' WHERE ?1 = ?2 AND ?1 > 0 -- :no"
    assert values({"a": 1, "b": 2, "c": 3}) == (2, 1)


def test_statement_without_the_mark_is_not_joined() -> None:
    """Only a statement with the mark runs once for many parameter sets."""
    assert join("SELECT :key", [{"key": "x"}]) is None
    assert join(FIND, [{"key": "x", "number": 1}]) is not None


@pytest.mark.parametrize("number", NUMBERS)
async def test_joined_statement_returns_the_same_rows(tmp_path: Path, number: int) -> None:
    """A joined statement finds the same rows as one statement for each parameter set, whatever the keys contain."""
    async with opened_sqlite(tmp_path / "kept.db") as database:
        async with database.transaction() as tx:
            await tx.execute("CREATE TABLE kept (key TEXT, number INTEGER)")
            rows = [{"key": key, "number": number} for key in KEYS]
            await tx.executemany("INSERT INTO kept VALUES (:key, :number)", rows)
        wanted = [{"key": key, "number": number} for key in KEYS]
        joined = await database.reader.fetch_each(FIND, wanted)
        singly = [row for each in wanted for row in await database.reader.fetch_each(FIND, [each])]
        assert [tuple(row) for row in _rows(joined)] == [tuple(row.values()) for row in rows]
        assert _rows(joined) == _rows(singly)
        with_nul = {"key": "x\0y", "number": number}  # SQLite would end the JSON string there, and find x
        assert await database.reader.fetch_each(FIND, [with_nul]) == []
        assert await database.reader.fetch_each(FIND, []) == []


async def test_list_finds_each_of_its_texts(tmp_path: Path) -> None:
    """`= ANY (:names)` finds the rows of all texts in a list, whatever they contain, and of no others."""
    async with opened_sqlite(tmp_path / "kept.db") as database:
        async with database.transaction() as tx:
            await tx.execute("CREATE TABLE kept (key TEXT, number INTEGER)")
            await tx.executemany("INSERT INTO kept VALUES (:key, 0)", [{"key": key} for key in [*KEYS, "y", "x\0y"]])
            update = "UPDATE kept SET number = :number WHERE key = ANY (:keys) AND number < :number"
            assert await tx.executemany(update, [{"number": 7, "keys": KEYS}]) == len(KEYS)
            assert await tx.execute(update, {"number": 8, "keys": []}) == 0
            with pytest.raises(ValueError, match=r"contains the character U\+0000"):
                await tx.execute(update, {"number": 9, "keys": ["x\0y"]})
        rows = await database.reader.fetch("SELECT key FROM kept WHERE number = 7")
        assert [row["key"] for row in rows] == KEYS


def test_sizes_of_inserts() -> None:
    """Many rows are inserted with few statements, of few sizes, so that they stay prepared."""
    sizes = [[len(part) for part in parts([()] * count)] for count in (0, 1, 31, 32, 513, 1000)]
    assert sizes == [[], [1], [31], [32], [512, 1], [512, 256, 128, 64, 32, 8]]


@pytest.mark.parametrize("more", [[], ["x\0y"]])
async def test_insert_without_returning_keeps_every_value(tmp_path: Path, more: list[str]) -> None:
    """An INSERT that returns nothing stores its values as they are, also NUL, and skips rows that exist."""
    rows = list(zip([*KEYS, *more], [*NUMBERS, 1, None], strict=False))
    async with opened_sqlite(tmp_path / "kept.db") as database:
        async with database.transaction() as tx:
            await tx.execute("CREATE TABLE kept (key TEXT PRIMARY KEY, number INTEGER)")
            await tx.insert(INSERT, rows[:2])
            await tx.insert(INSERT, rows)
            await tx.insert(INSERT, [])
        kept = await database.reader.fetch("SELECT key, number FROM kept ORDER BY rowid")
        assert [(row["key"], row["number"]) for row in kept] == rows


def _rows(rows: object) -> list[sqlite3.Row]:
    assert isinstance(rows, list)
    return rows


def test_rows_are_inserted_once() -> None:
    """Rows beside ones that exist are inserted once, also if the table has had other rows before."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE kept (key TEXT, number BIGINT, PRIMARY KEY (key, number))")
        connection.executemany("INSERT INTO kept VALUES (?, ?)", [("a", number) for number in range(0, 1000, 100)])
        connection.execute("DELETE FROM kept WHERE number < 300")
        before = connection.total_changes
        sql = "INSERT INTO kept (key, number) VALUES (:key, :number) ON CONFLICT DO NOTHING RETURNING key, number"
        added = insert(connection, sql, [("a", number) for number in range(1000)])
        assert list(added) == [("a", number) for number in range(1000) if number < 300 or number % 100]
        assert connection.total_changes - before == len(added)
