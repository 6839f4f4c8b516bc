"""Portable SQL text -> what SQLite runs fastest."""

import re
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from timer_service.core.database import Parameters
from timer_service.core.sql import number_parameters

_DIFFERENT_STATEMENTS = 1000
_EACH_OF = re.compile(r"/\* each of many \*/")
_MANY = "json_each(?1) AS many CROSS JOIN "


class Prepared(NamedTuple):
    """A statement with numbered parameters, and how to take their values out of those with names."""

    text: str
    values: Callable[[Parameters], tuple[Any, ...]]
    joined: bool = False
    """Whether it answers for many parameters at once. It has one of its own then: a JSON array of their values."""


@lru_cache(_DIFFERENT_STATEMENTS)
def prepare(sql: str) -> Prepared:
    """Number the parameters: SQLite looks each name up for each row, which takes 2 us of the 13 of an update."""
    text, names = number_parameters(sql, "?{}".format)
    return Prepared(text, _values(names))


@lru_cache(_DIFFERENT_STATEMENTS)
def prepare_for_many(sql: str) -> Prepared:
    """Join a statement marked `/* each of many */` to its parameters, so that it runs once for all of them.

    Measured with rows found by their keys: 3.7 us a row, and 10 us when the statement runs for each.
    """
    if not _EACH_OF.search(sql):
        return prepare(sql)
    text, names = number_parameters(sql, lambda number: f"json_extract(many.value, '$[{number - 1}]')")
    return Prepared(_EACH_OF.sub(_MANY, text), _values(names), joined=True)


def _values(names: tuple[str, ...]) -> Callable[[Parameters], tuple[Any, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda parameters: tuple(parameters[name] for name in names)
