"""PORT: what the core and the slices need of a database.

SQL is portable text with `:name` parameters (see docs/architecture.md); an adapter translates what its engine needs.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from timer_service.core.health import Health

Parameters = Mapping[str, Any]


class Row(Protocol):
    """One row of an answer, read by column name."""

    def __getitem__(self, column: str, /) -> Any:
        """Return the value of a column."""
        ...


class Reader(Protocol):
    """Asks without changing anything."""

    async def fetch(self, sql: str, parameters: Parameters = ...) -> Sequence[Row]:
        """Run one statement and return all its rows."""
        ...

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> Sequence[Row]:
        """Run one statement once per parameters, in one crossing to the database; return all their rows.

        The rows of one are in the statement's order; those of different parameters may be mixed. No two are the same.
        """
        ...


class Transaction(Reader, Protocol):
    """An open write transaction. Committed when its block ends, rolled back when the block raises."""

    async def execute(self, sql: str, parameters: Parameters = ...) -> int:
        """Run one statement; return how many rows it changed."""
        ...

    async def executemany(self, sql: str, many: Sequence[Parameters]) -> int:
        """Run one statement once per parameters, in one crossing; return how many rows they changed in all.

        No two of them may write the same row: in which order they run, or whether as one, is the engine's affair.
        """
        ...


class Database(Protocol):
    """A store that commits durably. Every method raises `DatabaseUnavailableError` when it can't be reached."""

    @property
    def engine(self) -> str:
        """What runs it, as the names of migrations have it: `sqlite`, `postgres`."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a write transaction. Never await the broker inside.

        Raises `ConflictError` where another one was in the way; see `in_transaction`.
        """
        ...

    def migrating(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a write transaction that waits for other processes' migrations, and is waited for by them."""
        ...

    @property
    def reader(self) -> Reader:
        """Reads what is committed, beside and never behind the writers."""
        ...

    @property
    def queries(self) -> Reader:
        """Reads for users and gauges: they may take their time and never hold up those of `reader`."""
        ...

    @property
    def exclusive(self) -> bool:
        """Whether no other process can have this database open."""
        ...

    @property
    def health(self) -> Health:
        """Whether the last attempt to write succeeded."""
        ...

    async def close(self) -> None:
        """Let go of every connection."""
        ...
