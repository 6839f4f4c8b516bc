"""What the adapters of databases share: numbered parameters, and what a transaction calls after its commit."""

import re
from collections.abc import Callable
from typing import NamedTuple

_PARAMETER = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|::|:(?P<name>\w+)", re.DOTALL)
"""Matches parameters. Literals, comments and casts match first, because they may look as if they hold parameters."""


class TransactionEnd:
    """What a transaction calls after its commit."""

    def __init__(self) -> None:
        self._then: list[Callable[[], None]] = []

    def on_commit(self, then: Callable[[], None]) -> None:
        """See `Transaction.on_commit`."""
        self._then.append(then)

    def committed(self) -> None:
        """Call what waits for the commit."""
        for then in self._then:
            then()


class Statement(NamedTuple):
    """A statement with numbered parameters, and the names of the parameters in the order of their numbers."""

    text: str
    names: tuple[str, ...]


def number_parameters(sql: str, placeholder: Callable[[int], str]) -> Statement:
    """Replace each `:name` by the placeholder of its number. Numbers begin at 1."""
    numbers: dict[str, int] = {}

    def replace(match: re.Match[str]) -> str:
        if (name := match["name"]) is None:
            return match[0]
        return placeholder(numbers.setdefault(name, len(numbers) + 1))

    return Statement(_PARAMETER.sub(replace, sql), tuple(numbers))
