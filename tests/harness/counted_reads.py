"""A database that counts what transactions read."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from timer_service.core.ports.database import Database, Parameters, Row, Transaction

_T = TypeVar("_T")


@dataclass
class Reads:
    """The rows that a transaction has read, and the characters in them."""

    rows: int = 0
    characters: int = 0

    def count(self, rows: Sequence[Row]) -> Sequence[Row]:
        self.rows += len(rows)
        for row in rows:
            values: list[Any] = list(cast("Any", row).values() if hasattr(row, "values") else cast("Any", row))
            self.characters += sum(len(each) for each in values if isinstance(each, str))
        return rows


class CountedReads:
    """A database whose transactions count their reads."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner
        self.transactions: list[Reads] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._inner.transaction() as tx:
            yield self._counted(tx)

    async def run(self, work: Callable[[Transaction], Awaitable[_T]]) -> _T:
        return await self._inner.run(lambda tx: work(cast("Transaction", self._counted(tx))))

    @asynccontextmanager
    async def accepting(self) -> AsyncIterator[Any]:
        async with self._inner.accepting() as tx:
            yield self._counted(tx)

    def _counted(self, tx: Transaction) -> "_Counted":
        self.transactions.append(Reads())
        return _Counted(tx, self.transactions[-1])


class _Counted:
    def __init__(self, inner: Transaction, reads: Reads) -> None:
        self._inner = inner
        self._reads = reads
        self.execute, self.executemany, self.insert = inner.execute, inner.executemany, inner.insert

    async def fetch(self, sql: str, parameters: Parameters | None = None) -> Sequence[Row]:
        return self._reads.count(await self._inner.fetch(sql, parameters or {}))

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> Sequence[Row]:
        return self._reads.count(await self._inner.fetch_each(sql, many))
