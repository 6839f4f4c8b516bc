"""Which rows of a claim are published now if their long texts have many characters."""

from typing import Any

import pytest

from timer_service.core.events.pace import share_lengths


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ("", ""),
        ("a9 b9", "a9 b9"),
        ("a10 a10 a1 b0", "a10 b0"),
        ("a4 a4 a4 a4 a4 a4", "a4 a4 a4 a4 a4"),
        ("a0 a0 a30 a1 b1", "a0 a0 b1"),
        ("a30 b30 c30 a1", "a30 b30 c30"),
        ("a9 a9 b1 b1 b1 b1 b1", "a9 b1 b1 b1 b1 b1"),
    ],
    ids=[
        "nothing",
        "they fit",
        "equal shares",
        "one tenant",
        "in order",
        "at least one of each",
        "small ones of another tenant",
    ],
)
def test_share_lengths(rows: str, kept: str) -> None:
    """Of 20 characters, each tenant gets an equal share for its first rows, and at least one row."""
    made: list[Any] = [{"tenant_id": each[0], "length": int(each[1:])} for each in rows.split()]
    found, left = share_lengths(made, lambda row: row["length"], 20)
    assert [f"{each['tenant_id']}{each['length']}" for each in found] == kept.split()
    assert sorted(map(id, [*found, *left])) == sorted(map(id, made))
