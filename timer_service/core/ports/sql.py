"""Portable SQL with named parameters, in named blocks of `.sql` files next to the Python code that uses them."""

import re
from collections.abc import Callable
from importlib.resources import files
from typing import NamedTuple

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PARAMETER = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|::|:(?P<name>\w+)", re.DOTALL)
"""Matches parameters. Literals, comments and casts match first, because they may look as if they hold parameters."""


class Statement(NamedTuple):
    """A statement with numbered parameters, and the names of the parameters in the order of their numbers."""

    text: str
    names: tuple[str, ...]


def load_sql(package: str, file: str) -> dict[str, str]:
    """Return the blocks of a `.sql` file in `package`, by name. A block begins with a line `-- name: block`."""
    _, *parts = _NAME.split(files(package).joinpath(file).read_text("utf-8"))
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def number_parameters(sql: str, placeholder: Callable[[int], str]) -> Statement:
    """Replace each `:name` by the placeholder of its number. Numbers begin at 1."""
    numbers: dict[str, int] = {}

    def replace(match: re.Match[str]) -> str:
        if (name := match["name"]) is None:
            return match[0]
        return placeholder(numbers.setdefault(name, len(numbers) + 1))

    return Statement(_PARAMETER.sub(replace, sql), tuple(numbers))
