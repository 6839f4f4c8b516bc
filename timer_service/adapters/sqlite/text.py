"""Translation of portable SQL to the form that SQLite runs fastest."""

import re
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from timer_service.core.database import Parameters
from timer_service.core.sql import number_parameters

_CACHED_STATEMENTS = 1000
_EACH_OF = re.compile(r"/\* each of many \*/")
_MANY = "json_each(?1) AS many CROSS JOIN "


class Prepared(NamedTuple):
    """A statement with numbered parameters."""

    text: str
    values: Callable[[Parameters], tuple[Any, ...]]
    """Returns the values of named parameters in the order of the numbers."""
    joined: bool = False
    """Whether it runs once for many parameter sets. Its only parameter is then a JSON array of their values."""


@lru_cache(_CACHED_STATEMENTS)
def prepare(sql: str) -> Prepared:
    """Number the parameters. SQLite looks up each name for each row, which takes 2 us of the 13 us of an update."""
    text, names = number_parameters(sql, "?{}".format)
    return Prepared(text, _values(names))


@lru_cache(_CACHED_STATEMENTS)
def prepare_for_many(sql: str) -> Prepared:
    """Join a statement marked `/* each of many */` to its parameter sets, so that it runs once for all of them.

    Measured for rows found by their keys: 3.7 us per row, or 10 us per row if the statement runs once per set.
    """
    if not _EACH_OF.search(sql):
        return prepare(sql)
    text, names = number_parameters(sql, lambda number: f"json_extract(many.value, '$[{number - 1}]')")
    return Prepared(_EACH_OF.sub(_MANY, text), _values(names), joined=True)


def _values(names: tuple[str, ...]) -> Callable[[Parameters], tuple[Any, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda parameters: tuple(parameters[name] for name in names)
