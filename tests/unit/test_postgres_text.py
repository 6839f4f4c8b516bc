import pytest

from timer_service.adapters.postgres.text import insert_from_arrays, is_single_row_insert, one_by_one, translate


def test_parameters_are_numbered() -> None:
    """Each name gets one number, and the names are returned in the order of the numbers."""
    statement = translate("UPDATE t SET a = :until, b = :at WHERE a = :at AND c < :until")
    assert statement == ("UPDATE t SET a = $1, b = $2 WHERE a = $2 AND c < $1", ("until", "at"))


@pytest.mark.parametrize(
    "text",
    ["SELECT ':name', 'it''s :name'", "SELECT 1 -- of :name\n", "SELECT /* not\n:name */ 1", "SELECT 1::text"],
    ids=["literals", "line comment", "comment", "cast"],
)
def test_text_that_looks_like_a_parameter(text: str) -> None:
    """Literals, comments and casts are not changed."""
    assert translate(text) == (text, ())


def test_markers() -> None:
    """The comment `/* for update */` becomes FOR UPDATE, and the comment `/* skip locked */` becomes its clause."""
    assert translate("SELECT 1 /* skip locked */").text == "SELECT 1 FOR UPDATE SKIP LOCKED"
    assert translate("SELECT 1 /* for update */").text == "SELECT 1 FOR UPDATE"


def test_places_of_rows() -> None:
    """SQLite's `rowid` is PostgreSQL's `ctid`. Many places are an array, which PostgreSQL sorts."""
    text = "WITH picked AS (SELECT rowid AS place FROM t) DELETE FROM t WHERE rowid IN (SELECT place FROM picked)"
    assert translate(text).text == (
        "WITH picked AS (SELECT ctid AS place FROM t) DELETE FROM t WHERE ctid = ANY (ARRAY (SELECT place FROM picked))"
    )


def test_insert_from_arrays() -> None:
    """An insert of one row of parameters becomes an insert from arrays. The rest of the statement is not changed."""
    text = translate("INSERT INTO t (a, b, c) VALUES (:x, :y,\n :x) ON CONFLICT (a) DO UPDATE SET b = excluded.b").text
    assert is_single_row_insert(text)
    assert insert_from_arrays(text, ["text", "int8"]) == (
        "INSERT INTO t (a, b, c) SELECT p1, p2,\n p1 FROM unnest($1::text[], $2::int8[]) AS given (p1, p2)"
        " ON CONFLICT (a) DO UPDATE SET b = excluded.b"
    )


def test_insert_from_arrays_with_literals() -> None:
    """A literal, which is the same in every row, is not changed."""
    text = translate("INSERT INTO t (a, b, c, d) VALUES (:a, 'status.transition', 0, '')").text
    assert is_single_row_insert(text)
    assert insert_from_arrays(text, ["text"]) == (
        "INSERT INTO t (a, b, c, d) SELECT p1, 'status.transition', 0, '' FROM unnest($1::text[]) AS given (p1)"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE t SET a = :a",
        "INSERT INTO t VALUES (:a, :b + 1)",
        "INSERT INTO t VALUES (:a, now())",
        "INSERT INTO t VALUES (:a) ON CONFLICT (a) DO UPDATE SET a = :b",
        "INSERT INTO t SELECT :a",
    ],
)
def test_other_statements(sql: str) -> None:
    """Other statements are not recognized as an insert of one row of parameters."""
    assert not is_single_row_insert(translate(sql).text)


def test_lists_become_statements_of_one_text_each() -> None:
    """A statement with a list finds each text by an equality, whatever the planner thinks of lists."""
    update = "UPDATE t SET a = :a WHERE b = :b AND name = ANY (:names)"
    many = [{"a": 1, "b": "x", "names": ["p", "q"]}, {"a": 2, "b": "y", "names": ["p"]}]
    assert one_by_one(update, many) == (
        "UPDATE t SET a = :a WHERE b = :b AND name = :names",
        [{"a": 1, "b": "x", "names": "p"}, {"a": 1, "b": "x", "names": "q"}, {"a": 2, "b": "y", "names": "p"}],
    )
    other = "UPDATE t SET a = :a WHERE b = :b"
    assert one_by_one(other, many[:1]) == (other, many[:1])
