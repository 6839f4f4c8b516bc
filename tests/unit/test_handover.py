"""What hands rows to a worker: when it claims, how many claims there are at a time, and how it ends."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from timer_service.core.due.handover import Handover
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.values.errors import DatabaseUnavailableError

ROW: Any = {"number": 1}


class Transactions:
    """Transactions that end as a test says, and a worker that handles rows until it is released."""

    def __init__(self) -> None:
        self.handled: list[Row] = []
        self.may_claim = True
        self.error: Exception | None = None
        self.released = asyncio.Event()
        self.kept: list[str] = []
        self._ends: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._then: Callable[[], None] = lambda: None
        self.handover = Handover("work", claim=self._claim, handle=self._handle, may_claim=lambda _now: self.may_claim)

    def on_commit(self, then: Callable[[], None]) -> None:
        self._then = then

    def on_rollback(self, undo: Callable[[], None]) -> None:
        self._ends.append((self._then, undo))

    def commit(self) -> None:
        self._ends.pop()[0]()

    def roll_back(self) -> None:
        self._ends.pop()[1]()

    async def claim(self) -> Sequence[Row]:
        return await self.handover.claim(cast("Transaction", self), 0)

    def keep(self, error: DatabaseUnavailableError) -> None:
        self.kept.append(str(error))

    async def _claim(self, _tx: Transaction, _now: int) -> list[Row]:
        return [ROW]

    async def _handle(self, rows: Sequence[Row]) -> None:
        await self.released.wait()
        if self.error is not None:
            raise self.error
        self.handled += rows


@pytest.fixture
async def transactions() -> Transactions:
    opened = Transactions()
    opened.handover.open(opened.keep)
    return opened


async def test_the_worker_begins_after_the_commit(transactions: Transactions) -> None:
    """Rows are handled only when their transaction was committed, and `close` waits until they are."""
    transactions.released.set()
    await transactions.claim()
    closing = asyncio.create_task(transactions.handover.close())
    await asyncio.sleep(0)
    before = (closing.done(), list(transactions.handled))
    transactions.commit()
    await closing
    assert (before, transactions.handled) == ((False, []), [ROW])


async def test_nothing_is_claimed_while_the_loop_does_not_run(transactions: Transactions) -> None:
    """Before `open` and after `close` rows wait for a pass."""
    new = Transactions()
    await transactions.handover.close()
    assert [await new.claim(), await transactions.claim()] == [[], []]


async def test_nothing_is_claimed_while_the_worker_pauses(transactions: Transactions) -> None:
    """The worker decides whether it may claim."""
    transactions.may_claim = False
    assert await transactions.claim() == []


async def test_a_worker_handles_two_claims_at_a_time(transactions: Transactions) -> None:
    """While two claims are not handled, no other rows are claimed. A claim that was rolled back does not count."""
    await transactions.claim()
    transactions.commit()
    await transactions.claim()
    full = await transactions.claim()
    transactions.roll_back()
    await transactions.claim()
    transactions.commit()
    full_again = await transactions.claim()
    transactions.released.set()
    await transactions.handover.close()
    assert (full, full_again, transactions.handled) == ([], [], [ROW, ROW])


@pytest.mark.parametrize(
    ("error", "kept"),
    [(DatabaseUnavailableError("away"), ["away", "away"]), (ValueError("a bug"), [])],
    ids=["outage", "bug"],
)
async def test_an_error_of_the_worker_stops_no_transaction(
    transactions: Transactions, error: Exception, kept: list[str]
) -> None:
    """After an error, the next rows are claimed and handled. The loop learns of an outage."""
    transactions.error = error
    transactions.released.set()
    for _ in range(2):
        await transactions.claim()
        transactions.commit()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    transactions.error = None
    await transactions.claim()
    transactions.commit()
    await transactions.handover.close()
    assert (transactions.handled, transactions.kept) == ([ROW], kept)
