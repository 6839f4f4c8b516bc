"""Translation of portable SQL to PostgreSQL and asyncpg."""

import re
from collections.abc import Sequence
from functools import lru_cache

from timer_service.core.sql import Statement, number_parameters

_MARKERS = {"/* skip locked */": "FOR UPDATE SKIP LOCKED", "/* for update */": "FOR UPDATE", "/* each of many */ ": ""}
_VALUE = r"(?:\$\d+|\d+|'\w*(?:\.\w+)*')"
_VALUES = re.compile(rf"\bVALUES\s*\((\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*)\)")
_NUMBERED = re.compile(r"\$(\d+)")
_CACHED_STATEMENTS = 1000


@lru_cache(_CACHED_STATEMENTS)
def translate(sql: str) -> Statement:
    """Return a statement with numbered parameters. The comments that ask for row locks become FOR UPDATE clauses."""
    for marker, clause in _MARKERS.items():
        sql = sql.replace(marker, clause)
    return number_parameters(sql, "${}".format)


@lru_cache(_CACHED_STATEMENTS)
def is_single_row_insert(text: str) -> bool:
    """Return whether a statement inserts one row of parameters and literals, and has no parameter elsewhere."""
    values = _VALUES.search(text)
    return values is not None and len(_NUMBERED.findall(values[1])) == len(_NUMBERED.findall(text))


def insert_from_arrays(text: str, types: Sequence[str]) -> str:
    """Rewrite a single-row insert to insert many rows. It then takes one array per parameter, of that type."""
    names = [f"p{number}" for number in range(1, len(types) + 1)]
    arrays = ", ".join(f"${number}::{type_}[]" for number, type_ in enumerate(types, 1))

    def select_rows(values: re.Match[str]) -> str:
        row = _NUMBERED.sub(r"p\1", values[1])
        return f"SELECT {row} FROM unnest({arrays}) AS given ({', '.join(names)})"  # noqa: S608 - numbers and types

    return _VALUES.sub(select_rows, text, count=1)
