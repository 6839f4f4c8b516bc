"""Portable SQL text -> what asyncpg and PostgreSQL want."""

import re
from functools import lru_cache
from typing import NamedTuple

_MARKERS = {"/* skip locked */": "FOR UPDATE SKIP LOCKED", "/* for update */": "FOR UPDATE"}
_PARAMETER = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|::|:(?P<name>\w+)", re.DOTALL)
"""Parameters, and first of all what only looks as if it held some: literals, comments and casts."""
_DIFFERENT_STATEMENTS = 1000


class Statement(NamedTuple):
    """A statement with `$1` parameters, and the names they had, in order."""

    text: str
    names: tuple[str, ...]


@lru_cache(_DIFFERENT_STATEMENTS)
def translate(sql: str) -> Statement:
    """Number the `:name` parameters and write out the markers of row locks."""
    for marker, clause in _MARKERS.items():
        sql = sql.replace(marker, clause)
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        if (name := found["name"]) is None:
            return found[0]
        return f"${numbers.setdefault(name, len(numbers) + 1)}"

    return Statement(_PARAMETER.sub(numbered, sql), tuple(numbers))
