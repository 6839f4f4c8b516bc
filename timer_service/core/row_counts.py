"""Samples how many rows there are, for the gauges: never per scrape, and never without a bound."""

from collections.abc import Sequence
from typing import NamedTuple

from timer_service.core.database import Database
from timer_service.core.lease import LeasedTable
from timer_service.core.loop import Pass
from timer_service.core.metrics_port import MetricsPort
from timer_service.core.sql import load_sql

_SQL = load_sql("timer_service.core", "row_counts.sql")
_COUNTED_AT_MOST = 1_000_000


class Counted(NamedTuple):
    """Rows to be counted: those of a table in a state, and how an index that holds just them says so, word for word."""

    table: str
    state: str
    where: str

    @property
    def sql(self) -> str:
        """Return the statement that counts them."""
        return _SQL["count"].format(table=self.table, where=self.where)


class RowCounts:
    """A worker whose ticks tell the metrics what is in the tables."""

    def __init__(
        self,
        database: Database,
        metrics: MetricsPort,
        *,
        counted: Sequence[Counted],
        leased: Sequence[LeasedTable],
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._counted = counted
        self._leased = {table.name: overdue_sql(table) for table in leased}

    async def tick(self, now: int) -> Pass:
        """Count the rows of each state, up to a million."""
        reader = self._database.queries
        total = 0
        for each in self._counted:
            (row,) = await reader.fetch(each.sql, {"limit": _COUNTED_AT_MOST})
            self._metrics.counted(each.table, each.state, row["count"])
            total += row["count"]
        for table, sql in self._leased.items():
            (row,) = await reader.fetch(sql, {"now": now, "limit": _COUNTED_AT_MOST})
            since = now if row["oldest_at"] is None else row["oldest_at"]
            self._metrics.overdue(table, row["count"], (now - since) / 1000)
        return Pass(total)


def overdue_sql(table: LeasedTable) -> str:
    """Return what counts the rows that could be claimed and are not yet, and finds since when the oldest could."""
    return _SQL["overdue"].format(table=table.name)
