"""Row counts for the gauges. They are sampled at intervals, not at each scrape, and each count has a limit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from timer_service.core.due.due_rows import DueTable
from timer_service.core.due.lease import LeasedTable
from timer_service.core.due.loop import Pass
from timer_service.core.ports.database import Database
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.ports.sql import load_sql

_SQL = load_sql("timer_service.core.due", "row_counts.sql")
_LIMIT = 1_000_000


class CountedRows(NamedTuple):
    """Rows to count. `where` selects them, and must equal the predicate of the partial index that holds them."""

    table: str
    state: str
    where: str

    @property
    def sql(self) -> str:
        """The statement that counts the rows."""
        return _SQL["count"].format(table=self.table, where=self.where)


@dataclass(eq=False)
class RowCounts:
    """A worker that sets the gauges of rows."""

    database: Database
    metrics: MetricsPort
    counted: Sequence[CountedRows]
    """The rows to count by state."""
    overdue: Mapping[str, str]
    """The statements that count overdue rows, by table."""

    async def tick(self, now: int) -> Pass:
        """Count the rows of each state and the overdue rows of each table, each up to a million."""
        reader = self.database.queries
        total = 0
        for each in self.counted:
            (row,) = await reader.fetch(each.sql, {"limit": _LIMIT})
            self.metrics.counted(each.table, each.state, row["count"])
            total += row["count"]
        for table, sql in self.overdue.items():
            (row,) = await reader.fetch(sql, {"now": now, "limit": _LIMIT})
            since = now if row["oldest_at"] is None else row["oldest_at"]  # None: no row is overdue
            self.metrics.overdue(table, row["count"], (now - since) / 1000)
        return Pass(total)


def overdue_sql(table: LeasedTable | DueTable) -> str:
    """Return the statement that counts the claimable rows and finds when the oldest of them became claimable."""
    return _SQL["overdue"].format(table=table.name)
