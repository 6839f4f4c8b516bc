import pytest

from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.errors import ConflictError, DuplicateError


class Work:
    """Work that inserts a number. The first tries end in a conflict, or in another error."""

    def __init__(self, conflicts: int, error: type[Exception] = ConflictError) -> None:
        self.tries = 0
        self._conflicts = conflicts
        self._error = error

    async def __call__(self, tx: Transaction) -> str:
        self.tries += 1
        await tx.execute("INSERT INTO tries VALUES (:number)", {"number": self.tries})
        if self.tries <= self._conflicts:
            raise self._error("another transaction wrote the row")
        return "done"


@pytest.mark.parametrize("error", [ConflictError, DuplicateError])
async def test_conflicts_are_retried(sqlite: SqliteDatabase, error: type[Exception]) -> None:
    """Work is retried after a conflict or a duplicate key, and only its last try is committed."""
    async with sqlite.transaction() as tx:
        await tx.execute("CREATE TABLE tries (number BIGINT)")
    work = Work(4, error)
    assert await in_transaction(sqlite, work) == "done"
    assert [row["number"] for row in await sqlite.reader.fetch("SELECT number FROM tries")] == [5]


async def test_gives_up_after_five_tries(sqlite: SqliteDatabase) -> None:
    """Work that always ends in a conflict raises it after five tries."""
    async with sqlite.transaction() as tx:
        await tx.execute("CREATE TABLE tries (number BIGINT)")
    work = Work(100)
    with pytest.raises(ConflictError):
        await in_transaction(sqlite, work)
    assert work.tries == 5


async def test_other_errors_are_not_retried(sqlite: SqliteDatabase) -> None:
    """Any other error is raised at once."""
    tries = 0

    async def work(_: Transaction) -> None:
        nonlocal tries
        tries += 1
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - raised above
        await in_transaction(sqlite, work)
    assert tries == 1
