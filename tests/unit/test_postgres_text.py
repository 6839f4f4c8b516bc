import pytest

from timer_service.adapters.postgres.text import translate


def test_parameters_are_numbered() -> None:
    """Each name gets a number, the same one wherever it stands, and the names come in the order of the numbers."""
    statement = translate("UPDATE t SET a = :until, b = :at WHERE a = :at AND c < :until")
    assert statement == ("UPDATE t SET a = $1, b = $2 WHERE a = $2 AND c < $1", ("until", "at"))


@pytest.mark.parametrize(
    "text",
    ["SELECT ':name', 'it''s :name'", "SELECT 1 -- of :name\n", "SELECT /* not\n:name */ 1", "SELECT 1::text"],
    ids=["literals", "line comment", "comment", "cast"],
)
def test_what_only_looks_like_a_parameter(text: str) -> None:
    """Literals, comments and casts are left as they are."""
    assert translate(text) == (text, ())


def test_markers() -> None:
    """The markers of row locks become the clauses they stand for."""
    assert translate("SELECT 1 /* skip locked */").text == "SELECT 1 FOR UPDATE SKIP LOCKED"
    assert translate("SELECT 1 /* for update */").text == "SELECT 1 FOR UPDATE"
