"""Portable SQL text -> what asyncpg and PostgreSQL want."""

import re
from collections.abc import Sequence
from functools import lru_cache

from timer_service.core.sql import Statement, number_parameters

_MARKERS = {"/* skip locked */": "FOR UPDATE SKIP LOCKED", "/* for update */": "FOR UPDATE"}
_VALUE = r"(?:\$\d+|\d+|'\w*(?:\.\w+)*')"
_VALUES = re.compile(rf"\bVALUES\s*\((\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*)\)")
_NUMBERED = re.compile(r"\$(\d+)")
_DIFFERENT_STATEMENTS = 1000


@lru_cache(_DIFFERENT_STATEMENTS)
def translate(sql: str) -> Statement:
    """Number the `:name` parameters and write out the markers of row locks."""
    for marker, clause in _MARKERS.items():
        sql = sql.replace(marker, clause)
    return number_parameters(sql, "${}".format)


@lru_cache(_DIFFERENT_STATEMENTS)
def inserts_rows_of_parameters(text: str) -> bool:
    """Whether a numbered statement inserts one row of parameters and plain literals, and has no parameter elsewhere."""
    values = _VALUES.search(text)
    return values is not None and len(_NUMBERED.findall(values[1])) == len(_NUMBERED.findall(text))


def from_arrays(text: str, types: Sequence[str]) -> str:
    """Rewrite such a statement to insert many rows, given an array of each parameter's type per parameter."""
    names = [f"p{number}" for number in range(1, len(types) + 1)]
    arrays = ", ".join(f"${number}::{type_}[]" for number, type_ in enumerate(types, 1))

    def selected(values: re.Match[str]) -> str:
        row = _NUMBERED.sub(r"p\1", values[1])
        return f"SELECT {row} FROM unnest({arrays}) AS given ({', '.join(names)})"  # noqa: S608 - numbers and types

    return _VALUES.sub(selected, text, count=1)
