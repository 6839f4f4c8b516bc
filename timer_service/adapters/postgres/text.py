"""Translation of portable SQL to PostgreSQL and asyncpg."""

import re
from collections.abc import Sequence
from functools import lru_cache

from timer_service.core.ports.database import Parameters
from timer_service.core.ports.transactions import Statement, number_parameters

_MARKERS = {"/* skip locked */": "FOR UPDATE SKIP LOCKED", "/* for update */": "FOR UPDATE"}
_PLACES = re.compile(r"\browid IN \((SELECT place FROM \w+)\)")
_PLACE = re.compile(r"\browid\b")
_VALUE = r"(?:\$\d+|\d+|'\w*(?:\.\w+)*')"
_VALUES = re.compile(rf"\bVALUES\s*\((\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*)\)")
_NUMBERED = re.compile(r"\$(\d+)")
_ANY_OF = re.compile(r"= ANY \(:(\w+)\)")
_CACHED_STATEMENTS = 1000


@lru_cache(_CACHED_STATEMENTS)
def translate(sql: str) -> Statement:
    """Return a statement with numbered parameters. The comments that ask for row locks become FOR UPDATE clauses.

    `rowid` becomes `ctid`. PostgreSQL sorts an array of places before it reads the rows, so each page is visited once.
    """
    for marker, clause in _MARKERS.items():
        sql = sql.replace(marker, clause)
    sql = _PLACE.sub("ctid", _PLACES.sub(r"rowid = ANY (ARRAY (\1))", sql))
    return number_parameters(sql, "${}".format)


def one_by_one(sql: str, many: Sequence[Parameters]) -> tuple[str, Sequence[Parameters]]:
    """Return a statement with a list in `= ANY (:names)` as one for each of its texts.

    Without statistics, the planner goes through the whole list for each row.
    """
    if (found := _ANY_OF.search(sql)) is None:
        return sql, many
    name = found[1]
    return _ANY_OF.sub(r"= :\1", sql), [{**each, name: text} for each in many for text in each[name]]


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
