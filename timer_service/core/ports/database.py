"""PORT: what the core and the slices need from a database.

SQL is portable text with `:name` parameters (see CONTRIBUTING.md). An adapter translates it for its engine.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from timer_service.core.ports.health import Health

_T = TypeVar("_T")

Parameters = Mapping[str, Any]


class Row(Protocol):
    """One row of a result, read by column name or as a whole."""

    def __getitem__(self, column: str, /) -> Any:
        """Return the value of a column."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the values in the order of the columns, which is faster for thousands of rows."""


class Reader(Protocol):
    """Read access to the database."""

    async def fetch(self, sql: str, parameters: Parameters = ...) -> Sequence[Row]:
        """Run one statement and return all its rows."""

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> Sequence[Row]:
        """Run one statement for each of `many`, in one round trip; return all rows.

        The rows for one set of parameters are in the statement's order. Rows for different sets may be mixed. No two
        sets may be equal.
        """


class Transaction(Reader, Protocol):
    """An open write transaction. It is committed when its block ends, and rolled back when the block raises."""

    async def execute(self, sql: str, parameters: Parameters = ...) -> int:
        """Run one statement; return the number of rows it changed."""

    async def executemany(self, sql: str, many: Sequence[Parameters]) -> int:
        """Run one statement for each of `many`, in one round trip; return the number of rows changed in total.

        No two sets of parameters may write the same row: the engine may run them in any order, or as one statement.
        """

    async def insert(self, sql: str, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Run an INSERT of one row for each of `rows`; return those of `rows` that were inserted.

        A row has the values of the parameters in the order in which they occur in `VALUES`. Its first values are the
        key. No two rows may have the same key. A statement that skips rows must return the keys of the inserted rows
        with RETURNING; without RETURNING, all rows count as inserted.
        """

    async def lock(self, names: Sequence[str], *, wait: bool = True) -> Sequence[str]:
        """Lock names, in their order, until the transaction ends. Return those that it has now.

        Without `wait`, it leaves out the names that another transaction has. A name locks nothing but itself.
        """

    async def wait_briefly(self) -> None:
        """Let the statements that follow wait at most 10 ms for a lock. They raise `DatabaseBlockedError` then."""

    def on_commit(self, then: Callable[[], None]) -> None:
        """Call `then` after the commit, also if the task is cancelled meanwhile. It must not raise.

        In `Database.run`, the engine may call it in another thread.
        """


class Database(Protocol):
    """A durable database. Every method raises `DatabaseUnavailableError` when the database cannot be used."""

    @property
    def engine(self) -> str:
        """The engine, as in the file names of migrations: `sqlite` or `postgres`."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a write transaction. Never await the broker inside.

        It begins with its first statement at the latest, so that statement raises the error if it cannot begin.
        Raises `ConflictError` if another transaction wrote the same rows; `in_transaction` retries it.
        """

    async def run(self, work: Callable[[Transaction], Awaitable[_T]]) -> _T:
        """Run `work` in a write transaction and return its result. See `transaction`.

        `work` must await nothing but its transaction: the engine may run all of it at once, in another thread.
        """

    def accepting(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a write transaction for commands, which are acknowledged after its commit.

        Unlike another transaction, it fails if the next process would not find what it commits.
        """

    def migrating(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a write transaction for migrations. Only one process can have such a transaction open; others wait."""

    @property
    def reader(self) -> Reader:
        """Reads committed rows. It never waits for writers and never misses a finished commit."""

    @property
    def queries(self) -> Reader:
        """The reader for users' queries and for gauges. A slow read here does not delay `reader`."""

    @property
    def exclusive(self) -> bool:
        """Whether only this process can have the database open."""

    @property
    def health(self) -> Health:
        """Whether the last attempt to write succeeded, and the reason if not.

        After a failure, only a commit that wrote something counts as a success.
        """

    @property
    def read_health(self) -> Health:
        """Whether the last read with `reader` succeeded, and the reason if not.

        Users' queries do not count: a slow query shows nothing about the database.
        """

    async def close(self) -> None:
        """Close every connection."""
