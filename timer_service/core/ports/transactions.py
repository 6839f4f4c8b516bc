"""Transactions that are retried after a conflict with another instance, and what the adapters of databases share."""

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar

from timer_service.core.ports.database import Database, Transaction
from timer_service.core.values.errors import ConflictError, DuplicateError

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_TRIES = 5
_LONGEST_PAUSE_SECONDS = 0.05
_PARAMETER = re.compile(r"'[^']*'|--[^\n]*|/\*.*?\*/|::|:(?P<name>\w+)", re.DOTALL)
"""Matches parameters. Literals, comments and casts match first, because they may look as if they hold parameters."""


async def in_transaction(
    database: Database, work: Callable[[Transaction], Awaitable[_T]], *, accepting: bool = False
) -> _T:
    """Run `work` in a write transaction and return its result, retrying on conflicts and duplicates.

    A conflict is, for example, a deadlock. A duplicate may be a row that another instance has just inserted. Raises the
    error of the fifth try. `accepting`: the transaction handles commands.
    """

    async def run_once() -> _T:
        async with database.accepting() if accepting else database.transaction() as tx:
            return await work(tx)

    return await retry_on_conflict(run_once)


async def run_at_once(database: Database, work: Callable[[Transaction], Awaitable[_T]]) -> _T:
    """Like `in_transaction`, for work that awaits nothing but its transaction. It needs fewer turns of the loop."""
    return await retry_on_conflict(partial(database.run, work))


async def retry_on_conflict(work: Callable[[], Awaitable[_T]]) -> _T:
    """Run `work` up to five times, retrying on conflicts and duplicates. The failed transaction was rolled back."""
    for _ in range(1, _TRIES):
        try:
            return await work()
        except (ConflictError, DuplicateError) as error:
            log.info("conflict with another instance; retrying the transaction", extra={"reason": str(error)})
            await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE_SECONDS))  # noqa: S311 - jitter, not a secret
    return await work()


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
        if (name := match["name"]) is None:  # a literal, a comment or a cast, which stays
            return match[0]
        return placeholder(numbers.setdefault(name, len(numbers) + 1))

    return Statement(_PARAMETER.sub(replace, sql), tuple(numbers))
