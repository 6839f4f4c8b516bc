import pytest

from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.errors import ConflictError, DuplicateError


@pytest.mark.parametrize(
    ("error", "failures", "committed", "tries"),
    [
        (ConflictError("deadlock"), 4, [5], 5),
        (DuplicateError("the row exists"), 4, [5], 5),
        (ConflictError("deadlock"), 99, [], 5),
        (ValueError("a bug"), 1, [], 1),
    ],
    ids=["conflict", "duplicate", "conflict for ever", "other error"],
)
async def test_tries(sqlite: SqliteDatabase, error: Exception, failures: int, committed: list[int], tries: int) -> None:
    """Work is tried five times if it meets a conflict or a duplicate key. Only its last try is committed."""
    tried: list[int] = []

    async def work(tx: Transaction) -> str:
        tried.append(len(tried) + 1)
        await tx.execute("INSERT INTO tries VALUES (:number)", {"number": tried[-1]})
        if tried[-1] <= failures:
            raise error
        return "done"

    async with sqlite.transaction() as tx:
        await tx.execute("CREATE TABLE tries (number BIGINT)")
    if committed:
        assert await in_transaction(sqlite, work) == "done"
    else:
        with pytest.raises(type(error)):
            await in_transaction(sqlite, work)
    assert [row["number"] for row in await sqlite.reader.fetch("SELECT number FROM tries")] == committed
    assert len(tried) == tries
