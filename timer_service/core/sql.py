"""Portable SQL: named blocks in files beside the Python that uses them, with named parameters."""

import re
from collections.abc import Callable
from importlib.resources import files
from typing import NamedTuple

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PARAMETER = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|::|:(?P<name>\w+)", re.DOTALL)
"""Parameters, and first of all what only looks as if it held some: literals, comments and casts."""


class Statement(NamedTuple):
    """A statement whose parameters have numbers, and the names they had, in order."""

    text: str
    names: tuple[str, ...]


def load_sql(package: str, file: str) -> dict[str, str]:
    """Read the blocks of a `.sql` file of `package`; each begins with a line `-- name: block`."""
    _, *parts = _NAME.split(files(package).joinpath(file).read_text("utf-8"))
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def number_parameters(sql: str, written: Callable[[int], str]) -> Statement:
    """Replace each `:name` by what `written` makes of its number, counted from 1."""
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        if (name := found["name"]) is None:
            return found[0]
        return written(numbers.setdefault(name, len(numbers) + 1))

    return Statement(_PARAMETER.sub(numbered, sql), tuple(numbers))
