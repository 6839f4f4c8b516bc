"""`isolate` finds the items that fail alone."""

from collections.abc import Sequence
from contextlib import nullcontext

import pytest

from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.adapters.sqlite.statements import Statements
from timer_service.core.due.isolate import Failed, Retries, isolate, isolate_in_transactions
from timer_service.core.ports.database import Transaction
from timer_service.core.values.errors import (
    ConflictError,
    DatabaseBlockedError,
    DatabaseBusyError,
    DatabaseSetupError,
    DatabaseUnavailableError,
)


class Transactions:
    """Runs attempts. An attempt with a bad item raises the error of the first one, and leaves nothing behind."""

    def __init__(self, **bad: Exception) -> None:
        self.bad = bad
        self.tried: list[str] = []
        self.committed: list[str] = []
        self.seconds = 0.0
        self.seconds_each = 0.0

    async def run(self, items: Sequence[str]) -> None:
        self.tried.append("".join(items))
        self.seconds += self.seconds_each
        for item in items:
            if item in self.bad:
                raise self.bad[item]
        self.committed += items

    def monotonic(self) -> float:
        return self.seconds


async def test_all_together() -> None:
    """Items that do not fail are handled in one transaction. Without items there is none."""
    transactions = Transactions()
    assert (await isolate("abcd", transactions.run)).done == ["a", "b", "c", "d"]
    assert await isolate("", transactions.run) == ([], [], [])
    assert transactions.tried == ["abcd"]


async def test_the_item_that_fails_alone() -> None:
    """The others are handled once each, in their order, in parts that are halved around the broken item."""
    error = ValueError("a bug")
    transactions = Transactions(c=error)
    isolated = await isolate("abcdefgh", transactions.run)
    assert isolated == (list("abdefgh"), [("c", error)], [])
    assert transactions.committed == list("abdefgh")
    assert transactions.tried == ["abcdefgh", "abcd", "ab", "cd", "c", "d", "efgh"]


@pytest.mark.parametrize("error", [DatabaseBlockedError("lock timeout"), ConflictError("deadlock")])
async def test_a_locked_item_is_not_broken(error: Exception) -> None:
    """An item that waits for a lock of another session, or conflicts with one, is named apart from broken ones."""
    bug = ValueError("a bug")
    assert await isolate("abc", Transactions(a=error, c=bug).run) == (["b"], [("c", bug)], [("a", error)])


@pytest.mark.parametrize("error", [DatabaseUnavailableError, DatabaseBusyError, DatabaseSetupError])
async def test_faults_of_the_environment_are_raised(error: type[Exception]) -> None:
    """If the database is away, no further item is tried and none is named. Those before stay done."""
    transactions = Transactions(a=ValueError("a bug"), c=error("away"))
    with pytest.raises(error):
        await isolate("abcdefgh", transactions.run)
    assert transactions.committed == ["b"]


async def test_limited_time() -> None:
    """After 2 s, no further part is tried as soon as one item is known. The others are named nowhere."""
    transactions = Transactions(a=DatabaseBlockedError("lock timeout"), b=DatabaseBlockedError("lock timeout"))
    transactions.seconds_each = 5
    isolated = await isolate("abcd", transactions.run, monotonic=transactions.monotonic)
    assert ([each.item for each in isolated.blocked], isolated.done) == (["a"], [])
    assert transactions.tried == ["abcd", "ab", "a"]


async def test_items_that_have_failed_already() -> None:
    """They are not handled together once more: their halves come first. A single item is at fault."""
    error = ValueError("a bug")
    transactions = Transactions(c=error)
    assert (await isolate("abcd", transactions.run, failed=error)).broken == [("c", error)]
    assert transactions.tried == ["ab", "cd", "c", "d"]
    assert (await isolate("a", transactions.run, failed=error)).broken == [("a", error)]


@pytest.mark.parametrize(("bad", "raises"), [("ab", True), ("a", False), ("abc", True)])
async def test_all_are_broken(bad: str, *, raises: bool) -> None:
    """If several items are broken and none is done, the environment is probably at fault. A single one is broken.

    All are named, after at most twice as many attempts as items.
    """
    transactions = Transactions(**{item: ValueError("a bug") for item in bad})
    isolated = await isolate(bad, transactions.run)
    assert ([each.item for each in isolated.broken], len(transactions.tried)) == (list(bad), 2 * len(bad) - 1)
    with pytest.raises(ValueError, match="a bug") if raises else nullcontext():
        isolated.raise_if_all_are_broken()


async def test_parts_wait_only_briefly_for_locks(sqlite: SqliteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first transaction waits for locks as usual. Those with parts of the items do not add to its wait."""
    transactions = Transactions(c=DatabaseBlockedError("lock timeout"))
    briefly: list[int] = []

    async def wait_briefly(_: Statements) -> None:
        briefly.append(len(transactions.tried))

    async def handle(_: Transaction, items: Sequence[str]) -> Sequence[str]:
        await transactions.run(items)
        return items

    monkeypatch.setattr(Statements, "wait_briefly", wait_briefly)
    done: list[str] = []
    isolated = await isolate_in_transactions(sqlite, "abcd", handle, done.extend)
    assert ([each.item for each in isolated.blocked], done, briefly) == (["c"], ["a", "b", "d"], [1, 2, 3, 4])


def test_delays_of_a_row() -> None:
    """A row that fails again waits longer each time. After it was handled, its first delay is the shortest again."""
    retries = Retries[str]("timers")

    def next_at() -> int:
        return retries.of([Failed("a", ValueError("a bug"))], 5).pop("a").at

    assert [next_at(), next_at(), next_at()] == [1005, 2005, 4005]
    retries.forget(["a"])
    assert next_at() == 1005
